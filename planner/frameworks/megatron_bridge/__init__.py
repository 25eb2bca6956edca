"""Megatron-Bridge: recipe script with dotted overrides."""
