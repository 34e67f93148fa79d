"""The examples in docstrings run, and print what they show."""

import doctest
import importlib
from pathlib import Path

import pytest

import coalmine

ROOT = Path(coalmine.__file__).parent
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def modules_with_examples():
    """Names of all modules of coalmine whose source has an example; nothing is imported yet."""
    for path in sorted(ROOT.rglob("*.py")):
        if path.name != "__main__.py" and ">>> " in path.read_text(encoding="utf-8"):
            parts = ["coalmine", *path.relative_to(ROOT).with_suffix("").parts]
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(name):
    """The module, or a skipped test if it needs an optional extra that is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing_package = isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("coalmine")
        if missing_package or "pip install" in str(error):
            pytest.skip(f"{name} needs an optional extra: {error}")
        raise


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name.endswith((".flower.replay", ".opacus.replay")) else name
        for name in modules_with_examples()
    ],
)
def test_examples_print_what_they_show(name, tmp_path, monkeypatch):
    module = imported(name)
    monkeypatch.chdir(tmp_path)
    # Examples run as a user's script does: functions of coalmine itself are not searched for generators.
    results = doctest.testmod(module, optionflags=OPTIONS, extraglobs={"__name__": "__main__"})
    assert results.attempted > 0
    assert results.failed == 0
