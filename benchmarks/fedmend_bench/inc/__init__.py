"""InC: noisy labels of several parties."""
