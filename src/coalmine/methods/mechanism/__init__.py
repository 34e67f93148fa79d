"""The audit of a single mechanism as a black box (docs/mechanism.md)."""
