"""Damaged files are refused with a sentence, whatever the damage."""

import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import mutations


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("mutations")
    return mutations.finished_run(root), root / "damaged"


@settings(max_examples=15)
@given(seed=st.integers(0, 10**9))
def test_damage_is_refused_with_a_sentence_and_nothing_is_overwritten(place, seed):
    run, damaged = place
    what, outcome, details = mutations.example(seed, run, damaged, ("check", "compare", "resume"))
    assert outcome in ("refused", "accepted"), f"{what}: {details}"


def test_a_damaged_part_is_refused_and_nothing_is_overwritten(place, tmp_path, run):
    copy = shutil.copytree(place[0], tmp_path / "run")
    (copy / "parts" / "one-shot.json").write_text('{"results": [{"method": 3}]}')
    before = mutations.contents(copy)
    code, _, err = run("resume", str(copy))
    assert (code, "damaged" in err) == (2, True)
    assert mutations.contents(copy) == before
