"""Predicted against measured: ``compare.validate_file`` reads published runs and reports the errors."""
