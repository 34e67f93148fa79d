"""The one-shot audit: random updates as extra clients of a single training run (docs/one-shot.md)."""
