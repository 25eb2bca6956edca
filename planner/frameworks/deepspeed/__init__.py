"""DeepSpeed: JSON configuration."""
