"""The examples run and find what they say."""

import asyncio
import importlib.util
import sys
import warnings
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(path):
    spec = importlib.util.spec_from_file_location(f"example_{Path(path).stem}", EXAMPLES / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_the_plain_loop_makes_three_calls():
    text = (EXAMPLES / "own_loop.py").read_text()
    assert [text.count(f"audit.{call}(") for call in ("plant", "observe", "result")] == [1, 1, 1]
    loop = example("own_loop.py")
    loop.ROUNDS = 1
    assert loop.audited_training(bug="no-clipping").refuted


@pytest.mark.slow
def test_the_opacus_script(tmp_path, monkeypatch, capsys):
    pytest.importorskip("opacus", reason="Opacus is not installed: pip install 'coalmine[opacus]'")
    out = tmp_path / "run"
    command = ["train.py", "--epochs", "1", "--bug", "half-noise", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", command)
    example("opacus/train.py").main()
    verdicts = [line.split()[-1] for line in capsys.readouterr().out.splitlines() if line.startswith("one-shot")]
    assert verdicts == ["refuted", "refuted"]
    assert (out / "result.json").is_file()


def test_opacus_inside_accelerate():
    pytest.importorskip("opacus", reason="Opacus is not installed: pip install 'coalmine[opacus]'")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    updates, final = example("opacus/with_accelerate.py").audited_training()
    assert updates.warnings == []
    assert updates.bound.epsilon > 5
    assert [updates.refuted, final.refuted] == [False, False]


def test_pfl_with_two_postprocessors(monkeypatch):
    pytest.importorskip("pfl", reason="pfl is not installed: pip install --no-deps pfl")
    from pfl.internal.ops import pytorch_ops, selector

    # pfl allows one of NumPy and PyTorch in a process; the studies may have used the other one.
    monkeypatch.setattr(selector, "_framework_module", pytorch_ops)
    loop = asyncio.new_event_loop()  # pfl needs one
    asyncio.set_event_loop(loop)
    try:
        pfl = example("pfl/train.py")
        assert pfl.audited_training(canaries=300, noise_factor=0.4).refuted
    finally:
        loop.close()
        asyncio.set_event_loop(None)
    assert torch.is_grad_enabled()
