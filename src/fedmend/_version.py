"""The version, stated once: packaging reads it here, and so does ``fedmend.__version__``."""

__version__ = "0.1.0"
