"""The audit of a single mechanism as a black box (docs/checks.md).

`audit` looks for canaries in one call. The `battery` attacks the noise of many `calls`: by its size, shape and values
(`attacks`), by noise that it repeats (`twins`) and where there is less of it (`places`).
"""
