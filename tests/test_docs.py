"""The pages of the documentation show what their snippets print."""

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_page_on_training_shows_real_output(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = doctest.testfile(str(ROOT / "docs" / "training.md"), module_relative=False, encoding="utf-8")
    assert found.attempted > 15
    assert found.failed == 0


def test_the_page_on_the_ldp_audit_shows_real_output():
    found = doctest.testfile(str(ROOT / "docs" / "ldp.md"), module_relative=False, encoding="utf-8")
    assert found.attempted > 8
    assert found.failed == 0


def test_the_readmes_training_runs_as_shown(tmp_path, monkeypatch, capsys):
    (code,) = [
        c for c in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S) if "Training(" in c
    ]
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    printed = [float(line) for line in capsys.readouterr().out.split()]
    shown = [float(figure) for figure in re.findall(r"print\(.*\)  # (.*)", code)]
    # another processor rounds otherwise: a few of 180 test digits may change sides
    assert printed == [pytest.approx(shown[0], abs=0.005), pytest.approx(shown[1], abs=0.04)]
    assert (tmp_path / "runs" / "digits" / "checkpoint.json").is_file()
