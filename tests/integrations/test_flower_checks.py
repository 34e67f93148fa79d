"""A user's own audit of a Flower training names what breaks the claim: weights, scalars, optimizers, dropouts, …"""

import logging
import random

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'coalmine[flower]'")

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
)

from coalmine import OneShot
from coalmine.claims import Claim
from coalmine.integrations.flower import CanaryGrid, LocalGrid
from coalmine.integrations.flower.arrays import Layout
from coalmine.integrations.flower.replay import StrategyChecks

CLIP, CLIENTS, CANARIES, ROUNDS = 0.5, 10, 20, 4


def model(**more):
    rng = np.random.default_rng(0)
    weight = rng.normal(0, 0.1, (32, 32)).astype(np.float32)
    return {"weight": weight, "bias": np.zeros(32, dtype=np.float32), **more}


def app(examples, change, mods=()):
    """Clients whose updates have norm 1, with the given numbers of examples and change of their arrays."""
    clients = ClientApp(mods=list(mods))

    @clients.train()
    def train(message, context):
        number = int(context.node_config["partition-id"])
        rng = np.random.default_rng(number)
        name, before = next(iter(message.content.array_records.items()))
        after = {key: array.numpy() for key, array in before.items()}
        step = rng.normal(size=after["weight"].shape)
        after["weight"] = (after["weight"] + step / np.linalg.norm(step)).astype(np.float32)
        arrays = change(number, {key: Array(np.asarray(value)) for key, value in after.items()})
        if arrays is None:
            return None
        metrics = MetricRecord({"num-examples": examples(number)})
        return Message(RecordDict({name: ArrayRecord(arrays), "metrics": metrics}), reply_to=message)

    return clients


def audited(
    arrays=None,
    inner=FedAvg,
    wrapper=DifferentialPrivacyServerSideFixedClipping,
    examples=lambda number: 10,
    change=lambda number, arrays: arrays,
    mods=(),
    claim=None,
):
    first = ArrayRecord({key: Array(np.asarray(value)) for key, value in (arrays or model()).items()})
    audit = OneShot(Layout.of(first).dim, rounds=ROUNDS, canaries=CANARIES, view="updates", participation="every-round")
    grid = CanaryGrid(LocalGrid(app(examples, change, mods), nodes=CLIENTS), audit, clip_norm=CLIP, mods=mods)
    settings = {"fraction_train": 1.0, "fraction_evaluate": 0.0, "min_train_nodes": 1, "min_available_nodes": 1}
    strategy = wrapper(inner(**settings), 1.0, CLIP, CLIENTS + 2 * CANARIES)
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    random.seed(0)
    np.random.seed(0)
    strategy.start(grid=grid, initial_arrays=first, num_rounds=grid.rounds, evaluate_fn=grid.recorder())
    return audit.result(claim=claim or Claim(epsilon=20.0, delta=1e-5))


# False-alarm probability of each: 1e-3. One seed.
@pytest.mark.parametrize("side", ["server", pytest.param("client", marks=pytest.mark.slow)])
def test_a_correct_training_has_no_findings(side):
    if side == "server":
        result = audited()
    else:
        result = audited(wrapper=DifferentialPrivacyClientSideFixedClipping, mods=[fixedclipping_mod])
    assert "sensitivity" in result.checks
    assert "fresh noise" in result.checks
    assert list(result.findings) == []
    assert not result.refuted


def only_finding(result):
    assert result.refuted
    [finding] = result.bugs
    return finding


def test_unequal_weights_are_named():
    finding = only_finding(audited(examples=lambda number: 90 if number == 0 else 10))
    assert finding.check == "sensitivity"
    assert "examples = 1,000" in finding.sentence


@pytest.mark.slow
def test_equal_weights_that_could_differ_are_no_finding():
    assert not audited(examples=lambda number: 1000).findings


def test_a_scalar_that_is_not_clipped_is_named():
    finding = only_finding(audited(model(scale=np.array(0.3, dtype=np.float32))))
    assert "scale" in finding.sentence


@pytest.mark.slow
def test_an_empty_array_before_the_others_hides_nothing():
    arrays = {"nothing": np.zeros((0, 3), np.float32), **model()}
    assert "examples" in only_finding(audited(arrays, examples=lambda number: 10 + 200 * (number == 0))).sentence


@pytest.mark.slow
def test_an_integer_counter_of_batch_norm_is_named():
    finding = only_finding(audited(model(num_batches_tracked=np.array(7))))
    assert "num_batches_tracked" in finding.sentence


@pytest.mark.parametrize(
    "inner", [pytest.param(FedAdam, marks=pytest.mark.slow), pytest.param(FedAvgM, marks=pytest.mark.slow), FedMedian]
)
def test_noise_that_does_not_cover_an_optimizer_or_a_median_refutes(inner):
    def build(**settings):
        more = {"server_momentum": 0.9} if inner is FedAvgM else {}
        return inner(**settings, **more)

    result = audited(inner=build)
    assert any(inner.__name__ in finding.sentence for finding in result.bugs)


def test_nodes_that_never_reply_refute():
    result = audited(change=lambda number, arrays: arrays if number < 2 else None)
    assert any("at most" in finding.sentence for finding in result.bugs)


@pytest.mark.slow
def test_reordered_arrays_are_named_only_where_a_client_sends_them():
    alike = {"weight": model()["weight"], "second": 1 + model()["weight"]}
    result = audited(alike, change=lambda number, arrays: dict(reversed(arrays.items())) if number == 0 else arrays)
    assert any("another order" in finding.sentence for finding in result.bugs)


@pytest.mark.slow
def test_a_nan_is_named_once_a_client_has_sent_it():
    def with_nan(number, arrays):
        bias = np.array(arrays["bias"].numpy())
        bias[0] = np.nan if number == 0 else bias[0]
        return {**arrays, "bias": Array(bias)}

    result = audited(change=with_nan)
    assert any("NaN" in finding.sentence for finding in result.bugs)


def test_a_replay_leaves_strategy_and_random_numbers_alone(monkeypatch):
    with_replay = audited()
    monkeypatch.setattr(StrategyChecks, "replay", lambda *_: None)
    without = audited()
    assert np.array_equal(with_replay.scores.members, without.scores.members)
