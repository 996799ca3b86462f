"""Gradient-boosted trees whose sums over bins may come from another party."""
