"""RISA and its baselines: rows only one side has."""
