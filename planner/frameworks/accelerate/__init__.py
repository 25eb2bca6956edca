"""Hugging Face Accelerate: FSDP2 and ParallelismConfig YAML."""
