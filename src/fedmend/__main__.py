"""``python -m fedmend``: the fedmend command."""

from fedmend.cli import main

main()
