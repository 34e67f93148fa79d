"""The audit of a single mechanism as a black box (docs/checks.md).

`audit` looks for canaries in one call, and has the noise of many further calls attacked by `coalmine.checks`. `method`
is the same audit in a run, with its settings.
"""
