"""The eight generators beside their peers."""
