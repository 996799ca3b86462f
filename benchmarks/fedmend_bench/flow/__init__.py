"""The joined flow: recipes, `fedmend run` itself, the look before it, rows one party knows."""
