"""The examples in the docstrings of data and models print what they show."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "module",
    [
        *("data.federated", "data.generated_text", "data.loading", "data.partition", "data.splitting", "data.store"),
        *("data.vocabulary", "models"),
    ],
)
def test_examples_in_docstrings_run(module):
    pytest.importorskip("sklearn")
    results = doctest.testmod(importlib.import_module(f"coalmine.simulation.{module}"))
    assert results.attempted > 0
    assert results.failed == 0
