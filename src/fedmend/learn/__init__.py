"""Split training, metrics, networks. Knows parties and ledgers, but no paper."""
