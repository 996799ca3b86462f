"""The commands of the command line, room by room; `fedmend.cli` puts them together."""
