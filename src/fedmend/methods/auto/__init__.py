"""The model that chooses itself: cross-validation over methods, and what of each is heard."""
