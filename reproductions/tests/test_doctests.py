"""The examples in docstrings print what they show."""

import doctest
import importlib
from pathlib import Path

import pytest

import coalmine_reproductions

pytestmark = pytest.mark.slow
SOURCES = Path(coalmine_reproductions.__file__).parent.glob("*.py")
MODULES = [path.stem for path in SOURCES if ">>> " in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("name", sorted(MODULES))
def test_examples_print_what_they_show(name):
    results = doctest.testmod(importlib.import_module(f"coalmine_reproductions.{name}"))
    assert results.attempted > 0
    assert results.failed == 0
