"""SAGE and its baselines: few labels, many clients; and the simulator's speed."""
