"""FedPSG-PUM: how well torn columns are completed, and what that is worth."""
