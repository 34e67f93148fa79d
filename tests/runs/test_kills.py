"""A run that is killed goes on to the same bytes, and nobody else may have its directory meanwhile."""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from coalmine import __version__, files
from coalmine.errors import InputError
from coalmine.results.directory import FORMAT, RunDirectory, _try_lock
from coalmine.runs.running import run as run_all
from coalmine.runs.settings import run_from_text

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))  # processes of their own must find it too
import kills

TINY = """
[training]
partition = "iid:10"
rounds = 3
noise_multiplier = 0
model_settings = {hidden = 4}
client = {epochs = 1, batch_size = "all"}
[one-shot]
canaries = 10
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A run that nobody disturbs."""
    root = tmp_path_factory.mktemp("alone")
    file = root / "audit.toml"
    file.write_text(kills.SETTINGS)
    kills.run_to_end(file, root / "run")
    return file, root / "run"


@pytest.mark.slow
def test_a_run_killed_in_every_phase_gives_the_same_bytes(alone, tmp_path):
    file, run = alone
    out, rng = tmp_path / "run", np.random.default_rng(5)
    phases = []
    for reached in (
        lambda: kills.was_logged(out, "running"),
        lambda: kills.was_logged(out, "round"),
        (out / "parts" / "training.json").exists,
        (out / "parts" / "one-shot.json").exists,
        (out / "parts" / "canife.json").exists,
    ):
        kills.kill_when(file, out, reached, float(rng.uniform(0, 0.005)))
        assert json.loads((out / "run.json").read_text())["state"] == "running"
        phases.append(kills.phase(out))
    parts = [f"after the part {name}" for name in ("training", "one-shot", "canife")]
    assert phases == ["at the start", "in the training", *parts]
    kills.run_to_end(file, out)
    assert kills.read_results(out) == kills.read_results(run)
    assert len(kills.read_results(out)) == 7


@pytest.mark.slow
def test_a_second_process_is_refused_while_the_first_goes_on(tmp_path, run):
    file, out = tmp_path / "audit.toml", tmp_path / "run"
    file.write_text(kills.SETTINGS)
    assert (
        run("run", str(file), "--out", str(tmp_path / "before"), "--quiet")[0] == 0
    )  # imports take longer than the run
    first = kills.start(file, out)
    deadline = time.monotonic() + 60
    while not (out / "run.json").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    code, _, err = run("resume", str(out))
    assert RunDirectory(out).standing()[0] == "running"
    first.kill()
    first.join()
    assert (code, "in use" in err) == (2, True)
    deadline = time.monotonic() + 10
    while RunDirectory(out).standing()[0] == "running" and time.monotonic() < deadline:
        time.sleep(0.01)  # the system closes the files of a killed process one after the other
    assert RunDirectory(out).standing()[0] == "stopped"


def test_a_claim_waits_for_whoever_only_asks(tmp_path):
    directory, config = RunDirectory(tmp_path), run_from_text(TINY, "tiny").to_toml()
    with directory.claimed(config):
        assert directory.standing()[0] == "running"
    with (tmp_path / ".lock").open("r+") as asking:
        assert _try_lock(asking)
        started = time.monotonic()
        with pytest.raises(InputError, match="in use"), directory.claimed(config):
            pass
        assert time.monotonic() - started > 0.3


def test_a_full_disk_is_a_sentence_and_the_last_checkpoint_stays(tmp_path, monkeypatch):
    settings, out = run_from_text("[run]\ncheckpoint_every = 1\n" + TINY, "tiny"), tmp_path / "run"
    run_all(settings, out=tmp_path / "whole")
    written, real = 0, files.os.fsync

    def full(handle):
        nonlocal written
        written += 1
        if written > 8:
            raise OSError(28, "No space left on device")
        real(handle)

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(InputError, match="No space left on device"):
        run_all(settings, out=out)
    monkeypatch.setattr(files.os, "fsync", real)
    assert not list(out.rglob(".*.new"))
    assert (out / "checkpoint" / "checkpoint.safetensors").is_file()
    run_all(settings, out=out)
    assert (out / "result.json").read_bytes() == (tmp_path / "whole" / "result.json").read_bytes()


@pytest.mark.skipif(os.name == "nt", reason="permissions are others on Windows")
def test_a_directory_that_cannot_be_written_to_is_a_sentence(tmp_path, monkeypatch, run):
    file = tmp_path / "audit.toml"
    file.write_text(TINY)
    (tmp_path / "file").write_text("in the way")
    code, _, err = run("run", str(file), "--out", str(tmp_path / "file" / "run"))
    assert (code, str(tmp_path) in err) == (2, True)

    def refused(*arguments, **names):
        raise PermissionError(30, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refused)
    code, _, err = run("run", str(file), "--out", str(tmp_path / "run"))
    assert (code, "Read-only file system" in err) == (2, True)


@pytest.mark.parametrize("command", ["resume", "check", "compare"])
def test_a_directory_of_a_newer_version_is_refused_with_both_versions(tmp_path, run, command):
    (tmp_path / "run.json").write_text(json.dumps({"format": FORMAT + 1, "coalmine": "9.8.7", "state": "done"}))
    code, _, err = run(command, str(tmp_path), *([str(tmp_path / "other")] if command == "compare" else []))
    assert code == 2
    assert "coalmine 9.8.7" in err
    assert f"coalmine {__version__}" in err
