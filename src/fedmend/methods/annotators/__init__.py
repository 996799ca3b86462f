"""Several parties label the same rows and err: InC and its baselines."""
