"""The study of Flower's differential privacy: facts about the installed Flower, which a fixed version will change."""

import logging
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'coalmine[flower]'")

from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping

STUDY = Path(__file__).parents[2] / "studies" / "flower_dp"
SCRIPTS = sorted(path.name for path in (STUDY / "scripts").glob("*.py") if path.name != "common.py")


@pytest.fixture(autouse=True)
def study_on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(STUDY.parent)
    monkeypatch.syspath_prepend(STUDY)
    monkeypatch.syspath_prepend(STUDY / "scripts")
    logging.getLogger("flwr").setLevel(logging.CRITICAL)


def test_flower_does_not_clip_a_scalar():
    import bench
    import findings

    model = {"weight": np.zeros(8, dtype=np.float32), "scale": np.array(0.3, dtype=np.float32)}
    setting = bench.Setting(model=model, honest=[{"weight": np.full(8, 0.1)}] * 2, length=20.0)
    strategy = DifferentialPrivacyServerSideFixedClipping(bench.fed_avg(), 3.0, bench.CLIP, 3)
    result = bench.audit_round(setting, strategy, canary=np.eye(9)[8], trials=60, delta=1e-5, confidence=0.99)
    assert result.bound.epsilon > findings.claimed_epsilon(3.0, 1, 1e-5)


def test_the_study_prints_a_table(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["flower_dp", "--only", "adaptive-count"])
    paths = runpy.run_path(str(STUDY))  # imports without running
    assert "adaptive-count" in paths["PATHS"]
    monkeypatch.setitem(
        paths["PATHS"], "adaptive-count", lambda: sys.modules["findings"].Finding("a path", 1, 2, None, 0.1, "")
    )
    paths["main"]()
    header, _, row = capsys.readouterr().out.splitlines()[-3:]
    assert "claimed ε | lower bound" in header
    assert row.startswith("| a path | 0.1 | 1.00 | 2.00 |  | **refuted** |")


@pytest.mark.parametrize("script", SCRIPTS)
def test_each_script_shows_its_finding(script, capsys):
    runpy.run_path(str(STUDY / "scripts" / script))
    printed = capsys.readouterr().out
    for line in printed.splitlines():
        if "standard deviations" in line:
            measured = float(line.split("by ")[-1].split(" standard")[0])
            assert measured > 1.5, line
    assert printed


@pytest.mark.parametrize("row", ["weights", "FedAvgM", "scalar", "server-fixed"])
def test_replay_flags_the_rows_of_the_study_that_are_refuted(row):
    import replays

    assert replays.REPLAYS[row].run().refuted == (row != "server-fixed")
