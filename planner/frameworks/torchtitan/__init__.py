"""torchtitan: registry module with command line (0.3.0) and TOML (0.2.2)."""
