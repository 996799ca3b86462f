"""The front door: the fedmend command, one file per group of commands."""

from fedmend.cli.entry import app, main

__all__ = ["app", "main"]
