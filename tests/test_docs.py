"""The pages of the documentation show what their snippets print."""

import doctest
import re
from pathlib import Path

import numpy as np
import pytest

from coalmine.results import Verdict

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("page", "least"),
    [
        ("training", 15),
        ("estimators", 4),
        ("simultaneous-bound", 6),
        ("anytime", 5),
        ("claim-test", 7),
        ("theory", 8),
        ("one-shot", 10),
        ("checks", 8),
        ("results", 8),
        ("ldp", 8),
        ("secret-sharer", 12),
        ("bring-your-own", 8),
        ("ci", 6),
        ("replay", 16),
        ("mechanism", 5),
        ("opacus", 12),
    ],
)
def test_pages_show_real_output(page, least, tmp_path, monkeypatch):
    if page in ("opacus", "replay"):
        pytest.importorskip("opacus", reason="Opacus is not installed: pip install 'coalmine[opacus]'")
    monkeypatch.chdir(tmp_path)
    found = doctest.testfile(str(ROOT / "docs" / f"{page}.md"), module_relative=False, encoding="utf-8")
    assert found.attempted > least
    assert found.failed == 0


def test_the_readmes_own_loop_runs_as_shown(capsys):
    (code,) = [c for c in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S) if "plant(" in c]
    rng = np.random.default_rng(0)
    mine = {
        "model": np.zeros(5000, dtype=np.float32),
        "T": 8,
        "C": 0.5,
        "z": 1.0,
        "n": 20,
        "clip": lambda update, norm: update * min(1.0, norm / np.linalg.norm(update)),
        "client_updates": lambda model, t: rng.standard_normal((20, 5000)).astype(np.float32),
        "noise": lambda t: rng.normal(0, 1.0 * 0.5, 5000),
    }
    exec(code, mine)
    assert capsys.readouterr().out.lower().startswith(tuple(Verdict))
    assert mine["audit"].result().bound is not None


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_has_a_placeholder_left(page):
    assert re.findall(r"^\s*[A-Z]+(?:_[A-Z]+)+\s*$", page.read_text(encoding="utf-8"), re.M) == []
