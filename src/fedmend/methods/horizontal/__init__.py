"""The same columns of different people: SAGE and its baselines, in rounds of local training."""
