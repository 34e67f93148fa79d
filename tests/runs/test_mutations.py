"""Damaged files are refused with a sentence, whatever the damage."""

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coalmine.results.io import write_manifest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import mutations


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("mutations")
    return mutations.finished_run(root), root / "damaged"


@settings(max_examples=40)
@given(seed=st.integers(0, 10**9))
def test_damage_is_refused_with_a_sentence_and_nothing_is_overwritten(place, seed):
    run, damaged = place
    what, outcome, details = mutations.example(seed, run, damaged, ("check", "compare", "resume"))
    assert outcome in ("refused", "accepted"), f"{what}: {details}"


def test_a_damaged_part_names_itself_and_the_way_out(place, tmp_path, run):
    import shutil

    copy = tmp_path / "run"
    shutil.copytree(place[0], copy)
    (copy / "parts" / "one-shot.json").write_text('{"results": [{"method": 3}]}')
    write_manifest(copy)
    before = mutations.contents(copy)
    code, _, err = run("resume", str(copy))
    assert code == 2
    assert "one-shot.json" in err
    assert "delete" in err
    assert mutations.contents(copy) == before
