"""Megatron-LM: argument file and launch scripts."""
