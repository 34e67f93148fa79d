"""The audit of a single mechanism as a black box (docs/one-shot.md)."""
