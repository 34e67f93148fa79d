"""Independent parts, in this process and in several."""

import math
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from coalmine.cli import console
from coalmine.errors import CanaryWarning, InputError, check_delta
from coalmine.parallel import finished
from worker_parts import threads


def test_results_are_the_same_with_any_number_of_workers():
    parts = {str(number): number for number in range(5)}
    assert dict(finished(math.sqrt, parts)) == dict(finished(math.sqrt, parts, workers=2))


@pytest.mark.slow
def test_every_worker_has_one_thread(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for workers in (1, 2):
        assert [found for _, found in finished(threads, {"a": 0, "b": 0}, workers=workers)] == [{1}, {1}]


def test_a_result_comes_before_the_others_are_done():
    parts = finished(time.sleep, {"long": 60, "short": 0}, workers=2)
    assert next(parts) == ("short", None)
    parts.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_part_that_fails_stops_the_others(workers):
    with pytest.raises(InputError, match=r"delta .* got 7"):
        list(finished(check_delta, {"a": 7, "b": 0.1}, workers=workers))


def test_a_worker_that_dies_is_reported():
    with pytest.raises(InputError, match="worker process died"):
        list(finished(os._exit, {"a": 7, "b": 7}, workers=2))


def test_a_warning_of_many_parts_is_printed_once(capsys, monkeypatch):
    parts = dict.fromkeys("abc", CanaryWarning("they outweigh it"))
    for workers in (1, 2):
        monkeypatch.setattr(warnings, "showwarning", console.show_warning)
        console.warned.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            list(finished(warnings.warn, parts, workers=workers))
        assert capsys.readouterr().err == "coalmine: they outweigh it\n"


@pytest.mark.slow
def test_workers_end_with_a_process_that_is_killed(tmp_path):
    files = [tmp_path / "a", tmp_path / "b"]
    parts = {file.name: str(file) for file in files}
    code = f"""
from coalmine.parallel import finished
from worker_parts import wait
list(finished(wait, {parts!r}, workers=2))
"""
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path})
    while not all(file.is_file() and file.read_text() for file in files):
        time.sleep(0.05)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{file.read_text()}").exists() for file in files):
        assert time.monotonic() < deadline
        time.sleep(0.05)
