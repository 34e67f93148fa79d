"""Exposure: canaries ranked by their loss among references, compared with random guessing (Jagielski 2023)."""
