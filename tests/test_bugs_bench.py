"""The bench of bugs runs, goes on where it stopped, and prints its tables."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def bench(*arguments):
    command = [sys.executable, str(ROOT / "benchmarks" / "bugs"), *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.slow
def test_one_bug_of_several_targets_is_caught_and_rows_are_kept(tmp_path):
    rows = tmp_path / "rows.jsonl"
    options = ("--quick", "--only", "no noise", "--targets", "replay,ldp", "--rows", rows)
    first = bench(*options)
    assert first.returncode == 0, first.stderr
    kept = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [(row["target"], bool(row["check"])) for row in kept] == [("replay", True), ("ldp", True)]
    assert bench(*options).stdout == ""  # nothing is left to do
    table = bench("--rows", rows, "--table").stdout
    assert "| size | no noise |" in table
    assert "| all | 2 | 2 | 2 of 2 (100%) | 2 (100%) | 0 | 0 | 0 |" in table


def test_an_unknown_target_gets_a_sentence():
    answer = bench("--targets", "loops")
    assert answer.returncode == 2
    assert "loops" in answer.stderr
