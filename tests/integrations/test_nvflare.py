"""NVFLARE trainings under audit."""

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="NVFLARE is not installed: pip install 'coalmine[nvflare]'")

from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from coalmine import OneShot
from coalmine.errors import InputError
from coalmine.integrations.nvflare import CanaryAggregator
from coalmine.results.io import load

pytestmark = pytest.mark.filterwarnings("ignore::coalmine.errors.CanaryWarning")

EXAMPLE = Path(__file__).parents[2] / "examples" / "nvflare"
CLIP, ROUNDS, CLIENTS, SHAPES = 0.5, 4, 6, {"weight": (60, 75), "bias": (75,)}
DIM = 60 * 75 + 75


@pytest.fixture
def noisy_mean():
    return runpy.run_path(str(EXAMPLE / "noisy_mean.py"))["NoisyMean"]


def client_update(number):
    rng = np.random.default_rng(number)
    return {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in SHAPES.items()}


def train(aggregator, rounds=ROUNDS):
    """Return the flat updates of all rounds."""
    updates = []
    for _ in range(rounds):
        aggregator.reset_stats()
        for number in range(CLIENTS):
            aggregator.accept_model(FLModel(params=client_update(number), params_type=ParamsType.DIFF))
        aggregated = aggregator.aggregate_model()
        updates.append(np.concatenate([aggregated.params[name].ravel() for name in SHAPES]))
    return updates


def test_nvflare_gives_the_scores_of_a_plain_loop(noisy_mean, tmp_path):
    audited = CanaryAggregator(
        noisy_mean(CLIP, 1e-6), rounds=ROUNDS, clip_norm=CLIP, noise_multiplier=1.0, canaries=8, out=str(tmp_path)
    )
    train(audited)
    same = OneShot(
        DIM, rounds=ROUNDS, canaries=8, view="updates", participation="every-round", design="fixed", layers=SHAPES
    )
    clients = [np.concatenate([client_update(number)[name].ravel() for name in SHAPES]) for number in range(CLIENTS)]
    total = sum(update * min(1, CLIP / np.linalg.norm(update)) for update in clients)
    for t in range(ROUNDS):
        planted = same.plant(t, clip_norm=CLIP)
        update = ((total + planted.total) / (CLIENTS + 8)).astype(np.float32)
        same.observe(t, update=update, divisor=CLIENTS + 8)
    (saved,) = load(tmp_path)
    for scores, expected in zip((saved.scores.members, saved.scores.nonmembers), same.scores(), strict=True):
        assert np.sort(scores) == pytest.approx(np.sort(expected), abs=1e-4)


# The correct aggregator is refuted with probability 5% at most; the seed is fixed.
@pytest.mark.parametrize(("factor", "clip", "refuted"), [(1.0, CLIP, False), (0.5, CLIP, True), (1.0, 5 * CLIP, True)])
def test_missing_noise_and_clipping_are_refuted(noisy_mean, factor, clip, refuted, tmp_path):
    # An aggregator that clips at five clip norms, with the noise that is right for one.
    inner = noisy_mean(clip, factor * 2.0 * CLIP / clip, seed=1)
    train(CanaryAggregator(inner, rounds=ROUNDS, clip_norm=CLIP, noise_multiplier=2.0, canaries=40, out=str(tmp_path)))
    (result,) = load(tmp_path)
    assert (str(result.verdict) == "refuted") is refuted


def test_the_number_of_models_is_the_same_in_every_round(noisy_mean, tmp_path):
    inner, counts = noisy_mean(CLIP, 1.0), []
    aggregate = inner.aggregate_model
    inner.aggregate_model = lambda: (counts.append(inner._count), aggregate())[1]
    train(CanaryAggregator(inner, rounds=3, clip_norm=CLIP, noise_multiplier=1.0, canaries=5, out=str(tmp_path)), 4)
    assert counts == [CLIENTS + 5] * 3 + [CLIENTS]  # rounds after the last one are not audited


def test_whole_models_are_refused(noisy_mean):
    audited = CanaryAggregator(noisy_mean(CLIP, 1.0), rounds=1, clip_norm=CLIP, noise_multiplier=1.0)
    with pytest.raises(InputError, match="DIFF"):
        audited.accept_model(FLModel(params=client_update(0), params_type=ParamsType.FULL))


@pytest.mark.slow
def test_the_example_runs_in_the_simulator(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE)
    for name in ("noisy_mean", "job"):
        sys.modules.pop(name, None)
    runpy.run_path(str(EXAMPLE / "job.py"))["simulate"](out=str(tmp_path / "run"), rounds=2, canaries=9, clients=2)
    (result,) = load(tmp_path / "run")
    assert str(result.verdict) == "not refuted"
    assert result.claim.rounds == 2
