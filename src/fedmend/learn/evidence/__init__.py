"""Evidential split training: opinions, how they are fused, and whom to trust."""
