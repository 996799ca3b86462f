"""fedmend mends federated data. See https://github.com/fedmend/fedmend for the documentation."""
