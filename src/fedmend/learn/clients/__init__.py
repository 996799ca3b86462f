"""Horizontal training: clients with the same columns, their rounds, and the simulator."""
