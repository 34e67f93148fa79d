"""One file a method: plant → observe → score → estimate."""
