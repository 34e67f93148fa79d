"""The examples in docstrings print what they show."""

import doctest
import importlib
from pathlib import Path

import pytest

import coalmine_reproductions

pytestmark = pytest.mark.slow
MODULES = [path.stem for path in Path(coalmine_reproductions.__file__).parent.glob("*.py") if ">>> " in path.read_text()]


@pytest.mark.parametrize("name", sorted(MODULES))
def test_examples_print_what_they_show(name):
    results = doctest.testmod(importlib.import_module(f"coalmine_reproductions.{name}"))
    assert results.attempted > 0
    assert results.failed == 0
