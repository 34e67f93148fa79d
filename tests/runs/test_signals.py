"""Locks end with their process, SIGTERM saves the round, and threads change no bit."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coalmine.errors import Terminated
from coalmine.results.directory import RunDirectory
from coalmine.runs.running import run as run_all
from coalmine.runs.settings import run_from_text
from coalmine.runs.termination import Termination

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals and forks are others on Windows")

TEXT = """
[training]
data = "generated-text"
vocabulary_size = 300
positions = 8
clients = 20
rounds = 2
cohort = "poisson:1.0"
clip_norm = 0.5
noise_multiplier = 1.0
model_settings = {embedding = 48, units = 96}
[one-shot]
canaries = 200
view = ["final-change", "updates"]
[mechanism]
noise_multiplier = 1.0
dim = 200000
canaries = 3000
"""


def hold(path, pipe):
    with RunDirectory(path).claimed("x = 1"):
        worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        worker.start()
        pipe.send(worker.pid)
        time.sleep(60)


def test_a_lock_ends_with_its_owner_although_forked_workers_live_on(tmp_path):
    ours, theirs = multiprocessing.Pipe()
    owner = multiprocessing.get_context("fork").Process(target=hold, args=(tmp_path, theirs))
    owner.start()
    worker = ours.recv()
    try:
        assert RunDirectory(tmp_path).in_use()
        owner.kill()
        owner.join()
        os.kill(worker, 0)  # it lives
        assert not RunDirectory(tmp_path).in_use()
    finally:
        os.kill(worker, signal.SIGKILL)


def test_sigterm_saves_the_round_and_says_so(tmp_path, run, monkeypatch):
    file, out = tmp_path / "audit.toml", tmp_path / "run"
    text = TEXT.replace("rounds = 2", "rounds = 6").partition("[mechanism]")[0]
    file.write_text(text.replace("canaries = 200", "canaries = 20").replace("units = 96", "units = 8"))
    real = RunDirectory.log

    def log(self, event, **facts):
        real(self, event, **facts)
        if event == "round" and facts["round"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(RunDirectory, "log", log)
    code, _, err = run("run", str(file), "--out", str(out), "--quiet")
    assert code == 143
    assert "3 of 6 rounds" in err
    assert f"coalmine resume {out}" in err
    assert json.loads((out / "run.json").read_text())["state"] == "stopped"
    assert json.loads((out / "checkpoint" / "checkpoint.json").read_text())["round"] == 3
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    monkeypatch.undo()
    run_all(run_from_text(file.read_text(), "audit"), out=out)
    run_all(run_from_text(file.read_text(), "audit"), out=tmp_path / "undisturbed")
    assert (out / "result.json").read_bytes() == (tmp_path / "undisturbed" / "result.json").read_bytes()


def test_only_the_first_sigterm_is_deferred():
    termination = Termination()
    with termination.watched(), termination.deferred():
        os.kill(os.getpid(), signal.SIGTERM)
        assert termination.requested
        with pytest.raises(Terminated):
            os.kill(os.getpid(), signal.SIGTERM)


def test_elsewhere_sigterm_stops_at_once_and_is_recorded(tmp_path):
    directory = RunDirectory(tmp_path)

    def stopped():
        with Termination().watched(), directory.claimed("x = 1"):
            (tmp_path / "parts").mkdir()
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Terminated):
        stopped()
    assert directory.standing() == ("stopped", "stopped by SIGTERM")


def test_any_number_of_threads_gives_the_same_bytes(tmp_path):
    file = tmp_path / "audit.toml"
    file.write_text(TEXT)
    outcomes = []
    for threads in ("1", "2", None):
        out = tmp_path / f"threads-{threads}"
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        environment |= {} if threads is None else {"OMP_NUM_THREADS": threads}
        environment["PYTHONPATH"] = str(Path(__file__).parents[2] / "src")
        command = [sys.executable, "-m", "coalmine", "run", str(file), "--out", str(out), "--quiet", "--json"]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        outcomes.append({p.name: p.read_bytes() for p in [out / "result.json", *sorted(out.glob("*.npz"))]})
    assert len(outcomes[0]) >= 4
    assert outcomes[0] == outcomes[1] == outcomes[2]
