"""Split training between parties and a label party or a server. Knows parties, but no paper."""
