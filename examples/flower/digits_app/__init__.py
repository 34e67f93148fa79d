"""DP-FedAvg on the digits, audited."""
