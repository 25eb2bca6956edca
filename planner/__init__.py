"""plan-parallel: which parallelism settings to train a large model with, proven and explained."""
