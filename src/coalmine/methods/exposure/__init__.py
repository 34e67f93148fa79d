"""Exposure: canaries ranked by their loss among references, beside random guessing (Jagielski 2023)."""
