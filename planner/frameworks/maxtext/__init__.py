"""MaxText: YAML configuration for TPUs."""
