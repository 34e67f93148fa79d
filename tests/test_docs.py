"""The pages of the documentation show what their snippets print."""

import doctest
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coalmine.cli.main import app

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


def test_the_readmes_own_loop_prints_what_the_readme_says_and_saves_a_report(capsys, tmp_path, monkeypatch):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = [c for c in re.findall(r"```python\n(.*?)```", readme, re.S) if "plant(" in c]
    (session,) = [c for c in re.findall(r"```console\n(.*?)```", readme, re.S) if "audit.py" in c]
    assert len([line for line in code.splitlines() if line and not line.startswith("#")]) <= 15
    assert session.count("$ ") <= 3

    monkeypatch.chdir(tmp_path)
    exec(code, {})
    printed = capsys.readouterr().out
    promised = session.split("$ python audit.py\n")[1].split("$ ")[0]
    assert printed.startswith(promised.rstrip().removesuffix(" …"))
    assert CliRunner().invoke(app, ["report", "runs/mine"]).exit_code == 0
    assert (tmp_path / "runs/mine/report.html").stat().st_size > 0


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_has_a_placeholder_left(page):
    assert re.findall(r"^\s*[A-Z]+(?:_[A-Z]+)+\s*$", page.read_text(encoding="utf-8"), re.M) == []
