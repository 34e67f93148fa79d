"""Canaries that are examples of the training data, for central DP-SGD; see docs/opacus.md."""
