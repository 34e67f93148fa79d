"""Whatever is read from outside is read or refused with a sentence. `make fuzz` tries far more cases."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import fuzz
from coalmine.errors import InputError
from coalmine.files import parse_json, parse_toml

# Commands take a tenth of a second each, and settings that are accepted a run.
CASES = {"settings .toml": 12, "user's file .py": 15}
TARGETS = [
    pytest.param(
        target, marks=() if fuzz.available(target) else pytest.mark.skip("datasets is not installed"), id=target.name
    )
    for target in fuzz.TARGETS
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.parametrize("target", TARGETS)
def test_unchanged_files_are_accepted(target, directory, monkeypatch):
    monkeypatch.setattr(fuzz, "mutated", lambda content, rng: content)
    assert fuzz.case(target, 0, directory / "whole" / target.name.replace(" ", "-"))[0] == "accepted"


@pytest.mark.parametrize("target", TARGETS)
def test_mutated_files_are_read_or_refused(target, directory):
    cases = CASES.get(target.name, 15 if target.read is None else 60)
    outcomes = [fuzz.case(target, seed, directory / target.file / str(seed)) for seed in range(cases)]
    assert {outcome for outcome, _ in outcomes} <= {"accepted", "refused"}, outcomes
    assert any(outcome == "refused" for outcome, _ in outcomes)


@pytest.mark.parametrize("name", ["scores .csv", "user's file .py"])
def test_a_process_of_its_own_ends_as_well(name, directory):
    (target,) = [target for target in fuzz.TARGETS if target.name == name]
    outcome, details = fuzz.case(target, 3, directory / "process", own_process=True)
    assert outcome in ("accepted", "refused"), details


def test_the_judge_notices_what_must_not_happen():
    assert fuzz._judged(3, "coalmine: internal error", "", (0, 1, 2))[0] == "crashed"
    assert fuzz._judged(2, "Traceback (most recent call last)", "", (0, 1, 2))[0] == "crashed"
    assert fuzz._judged(2, "", "", (0, 1, 2))[0] == "did not say one sentence"
    assert fuzz._judged(2, "coalmine: \x1b[2J", "", (0, 1, 2))[0] == "printed control characters"
    assert fuzz._judged(2, "coalmine: no", "", (0, 1, 2))[0] == "refused"


def outcome_of(read, *arguments, **options):
    """Return what was read and nothing, or nothing and the sentence that refuses it."""
    try:
        return read(*arguments, **options), None
    except InputError as error:
        return None, str(error)


@given(text=st.text(max_size=60))
def test_any_text_is_parsed_or_refused(text):
    for parse in (parse_json, parse_toml):
        _, refusal = outcome_of(parse, text, "any text")
        assert refusal is None or "any text" in refusal
