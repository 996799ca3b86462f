"""What every method stands on: alignment, secure sums and products, engines, split training."""
