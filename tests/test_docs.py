"""The pages of the documentation show what their snippets print."""

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "training.md"


def test_the_page_on_training_shows_real_output(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert found.attempted > 15
    assert found.failed == 0
