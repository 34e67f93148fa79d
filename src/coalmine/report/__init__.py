"""The report: the page, its first screen, and what all methods share. Methods draw their own sections."""
