"""The gallery: notebooks show what they print, and every planted bug is caught."""

import re
import sys
from pathlib import Path

import pytest

from coalmine.results import Verdict

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs" / "building"))

import notebooks  # noqa: E402
import planted_bugs  # noqa: E402

NAMES = sorted(path.stem for path in notebooks.GALLERY.glob("*.ipynb"))
QUICK = ("own-loop",)  # takes a second or two


@pytest.fixture(scope="module")
def kernel():
    pytest.importorskip("nbclient", reason="nbclient is not installed: pip install 'coalmine[test]'")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: pip install 'coalmine[test]'")
    from jupyter_client.manager import KernelManager

    # One kernel for all notebooks, since imports take long.
    manager = KernelManager(transport="ipc")
    yield manager
    manager.shutdown_kernel(now=True)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_a_notebook_shows_what_it_prints(name, kernel):
    package = notebooks.NEEDS.get(name)
    if package:
        pytest.importorskip(package, reason=f"the notebook {name} needs {package}, which is not installed")
    stored = notebooks.read(notebooks.GALLERY / f"{name}.ipynb")
    fresh = {"cell_type": "code", "id": "reset", "metadata": {}, "execution_count": None, "outputs": []}
    fresh["source"] = "%reset -f"  # nothing of an earlier notebook is left

    again = notebooks.executed({**stored, "cells": [fresh, *stored["cells"]]}, kernel)

    assert notebooks.shown(stored)
    assert notebooks.shown(again) == notebooks.shown(stored)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_becomes_a_page_with_its_pictures(name):
    page, pictures = notebooks.as_page(notebooks.read(notebooks.GALLERY / f"{name}.ipynb"), name)
    assert "\n# " in page
    assert pictures
    for file, svg in pictures.items():
        assert f"]({file})" in page
        assert svg.startswith("<svg")


def test_every_notebook_is_listed_in_the_gallery_and_on_the_site():
    index = (notebooks.GALLERY / "index.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\(([\w-]+)\.ipynb\)", index)) == NAMES
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert {f"gallery/{name}.md" for name in [*NAMES, "index", "bugs"]} == set(
        re.findall(r"gallery/[\w-]+\.md", navigation)
    )


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(bug, id=bug.name, marks=[pytest.mark.slow] * (number > 2))
        for number, bug in enumerate(planted_bugs.BUGS)
    ],
)
def test_planted_bugs_are_caught(bug):
    assert bug.audited().verdict is Verdict.REFUTED


@pytest.mark.parametrize("part", ["noise", "cohort"])
def test_the_loop_without_a_bug_is_not_refuted(part):
    # False-alarm rate: at most 5% each; the random numbers are fixed.
    correct = planted_bugs.Bug("none", "", getattr(planted_bugs, part), part)
    assert correct.audited().verdict in (Verdict.NOT_REFUTED, Verdict.TOO_WEAK)


@pytest.mark.slow
def test_the_page_of_bugs_has_source_sentence_picture_and_report(tmp_path, monkeypatch):
    first = planted_bugs.BUGS[0]
    monkeypatch.setattr(planted_bugs, "BUGS", [first])
    files = planted_bugs.page(tmp_path)
    page = files["bugs.md"]
    assert "def half_the_noise" in page
    assert "All tensors together have at most" in page
    assert files["half-the-noise.svg"].startswith("<svg")
    assert "half-the-noise.svg" in page
    assert "half-the-noise-report.html" in page
    assert first.title in files["half-the-noise-report.html"]
