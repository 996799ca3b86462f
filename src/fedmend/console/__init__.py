"""The console of a party: its consent, rules, ledgers, table and models in a browser, here only."""
