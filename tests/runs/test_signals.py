"""Locks end with their process, SIGTERM stops a run, and threads change no bit."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coalmine.results.directory import RunDirectory
from coalmine.runs.running import run as run_all
from coalmine.runs.settings import run_from_text

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals and forks are others on Windows")

TEXT = """
[training]
data = "generated-text"
vocabulary_size = 300
positions = 8
clients = 12
rounds = 2
cohort = "poisson:1.0"
clip_norm = 0.5
noise_multiplier = 1.0
model_settings = {embedding = 32, units = 64}
[one-shot]
canaries = 60
view = ["final-change"]
"""

SMALL = """
[training]
partition = "iid:10"
rounds = 6
noise_multiplier = 0
model_settings = {hidden = 4}
client = {epochs = 1, batch_size = "all"}
[one-shot]
canaries = 10
view = ["final-change"]
"""


def test_sigterm_stops_a_run_that_then_resumes_to_the_same_bytes(tmp_path, run, monkeypatch):
    file, out = tmp_path / "audit.toml", tmp_path / "run"
    file.write_text(SMALL)
    real = RunDirectory.log

    def log(self, event, **facts):
        real(self, event, **facts)
        if event == "round" and facts["round"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(RunDirectory, "log", log)
    code, _, err = run("run", str(file), "--out", str(out), "--quiet")
    assert code == 130
    assert f"coalmine resume {out}" in err
    assert json.loads((out / "run.json").read_text())["state"] == "stopped"
    monkeypatch.undo()
    run_all(run_from_text(file.read_text(), "audit"), out=out)
    run_all(run_from_text(file.read_text(), "audit"), out=tmp_path / "undisturbed")
    assert (out / "result.json").read_bytes() == (tmp_path / "undisturbed" / "result.json").read_bytes()


@pytest.mark.slow
def test_any_number_of_threads_gives_the_same_scores(tmp_path):
    scores = set()
    for threads in ("1", "2"):
        out = tmp_path / f"threads-{threads}"
        source = str(Path(__file__).parents[2] / "src")
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "PYTHONPATH": source}
        settings = [part for text in ("dim=200000", "canaries=3000", "calls=0") for part in ("--set", text)]
        command = ["audit", "mechanism", "--noise-multiplier", "1", *settings, "--out", str(out), "--json"]
        subprocess.run([sys.executable, "-m", "coalmine", *command], env=environment, check=False, capture_output=True)
        scores.add(((out / "result.json").read_bytes(), (out / "scores-mechanism-release.npz").read_bytes()))
    assert len(scores) == 1


def test_a_training_gives_the_same_bytes_with_any_number_of_threads(tmp_path):
    import torch
    from threadpoolctl import threadpool_limits

    text, results, usual = TEXT.replace("rounds = 2", "rounds = 1"), set(), torch.get_num_threads()
    for threads in (1, 2):
        out = tmp_path / str(threads)
        with threadpool_limits(threads):
            torch.set_num_threads(threads)
            run_all(run_from_text(text, "threads"), out=out)
            assert torch.get_num_threads() == threads
        results.add((out / "result.json").read_bytes())
    torch.set_num_threads(usual)
    assert len(results) == 1
