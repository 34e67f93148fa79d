"""Interchangeable ways to compute a clipped sum of clients' updates."""
