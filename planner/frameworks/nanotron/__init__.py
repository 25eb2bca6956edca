"""nanotron: YAML configuration."""
