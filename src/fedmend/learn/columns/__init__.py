"""Models that learn the columns of another party: linear, trees, neural, and their stacking."""
