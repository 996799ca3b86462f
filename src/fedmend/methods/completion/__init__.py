"""FedPSG-PUM: a party's rows get the columns that only the other party has."""
