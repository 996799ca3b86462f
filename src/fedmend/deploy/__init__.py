"""Several machines: kits, a party's own file and screen, its processes, and runs over them."""
