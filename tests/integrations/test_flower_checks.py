"""A user's own audit of a Flower training names what breaks the claim: weights, scalars, optimizers, dropouts, …"""

import logging
import random
import threading

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
    FedYogi,
    Strategy,
)

from coalmine import OneShot
from coalmine.checks import ReplayOptions
from coalmine.claims import Claim
from coalmine.errors import InputError
from coalmine.integrations.flower import CanaryGrid, LocalGrid, replay_strategy
from coalmine.integrations.flower.arrays import Layout
from coalmine.integrations.flower.replay import StrategyChecks

CLIP, CLIENTS, CANARIES, ROUNDS = 0.5, 10, 20, 4
NOISE = Claim(noise_multiplier=1.0, delta=1e-5)


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


class Outside(Strategy):
    """Post-processes what a DP wrapper releases, as an update of what clients received."""

    def __init__(self, private, process):
        self.private, self.process, self.memory = private, process, {}

    def configure_train(self, server_round, arrays, config, grid):
        self.before = {key: array.numpy() for key, array in arrays.items()}
        return self.private.configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        arrays, metrics = self.private.aggregate_train(server_round, replies)
        if arrays is None:
            return None, metrics
        update = {key: array.numpy() - self.before[key] for key, array in arrays.items()}
        after = {key: self.process(self.before[key], part, self.memory, key) for key, part in update.items()}
        arrays.clear()  # as FedAvgM does
        return ArrayRecord({key: Array(part.astype(np.float32)) for key, part in after.items()}), metrics

    def configure_evaluate(self, *_):
        return []

    def aggregate_evaluate(self, *_):
        return None

    def summary(self):
        pass


def momentum(before, update, memory, key):
    memory[key] = 0.9 * memory.get(key, 0) + update
    return before + memory[key]


def average_of_models(before, update, memory, key):
    memory[key] = 0.5 * memory.get(key, before) + 0.5 * (before + update)
    return memory[key]


def largest_tenth(before, update, memory, key):
    return before + np.where(np.abs(update) >= np.quantile(np.abs(update), 0.9), update, 0)


PROCESSES = {
    "server learning rate": lambda before, update, memory, key: before + 0.5 * update,
    "momentum": momentum,
    "largest tenth": largest_tenth,
    "average of models": average_of_models,
    "weight decay": lambda before, update, memory, key: 0.98 * (before + update),
    "signs": lambda before, update, memory, key: before + 0.01 * np.sign(update),
}


def optimizer_outside(optimizer, **settings):
    """Flower's own optimizer, which gets the wrapper's release as its only reply."""

    class OptimizerOutside(optimizer):
        def __init__(self, private):
            super().__init__(fraction_evaluate=0.0, **settings)
            self.wrapped = [private]

        def configure_train(self, server_round, arrays, config, grid):
            super().configure_train(server_round, arrays, config, grid)
            return self.wrapped[0].configure_train(server_round, arrays, config, grid)

        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            arrays, metrics = self.wrapped[0].aggregate_train(server_round, replies)
            content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})})
            only = Message(content, reply_to=Message(RecordDict(), 1, "train"))
            return super().aggregate_train(server_round, [only])[0], metrics

    return OptimizerOutside


def audited(
    arrays=None,
    inner=FedAvg,
    wrapper=DifferentialPrivacyServerSideFixedClipping,
    examples=lambda number: 10,
    change=lambda number, arrays: arrays,
    mods=(),
    claim=None,
    outside=lambda private: private,
    length=1.0,
):
    first = ArrayRecord({key: Array(np.asarray(value)) for key, value in (arrays or model()).items()})
    audit = OneShot(Layout.of(first).dim, rounds=ROUNDS, canaries=CANARIES, view="updates", participation="every-round")
    nodes = LocalGrid(app(examples, change, mods), nodes=CLIENTS)
    grid = CanaryGrid(nodes, audit, clip_norm=CLIP, mods=mods, length=length)
    settings = {"fraction_train": 1.0, "fraction_evaluate": 0.0, "min_train_nodes": 1, "min_available_nodes": 1}
    strategy = outside(wrapper(inner(**settings), 1.0, CLIP, CLIENTS + 2 * CANARIES))
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


# A finding here is false with probability 2e-3 (1e-3 of the checks, 1e-3 of the replay), and a refuted claim with 5%.
@pytest.mark.parametrize("process", PROCESSES)
def test_what_follows_the_dp_wrapper_is_no_finding(process):
    result = audited(outside=lambda private: Outside(private, PROCESSES[process]), claim=NOISE)
    assert not result.refuted, result.summary
    assert list(result.findings) == []
    assert {"sensitivity", "fresh noise"} <= set(result.checks)


@pytest.mark.parametrize(
    "outside",
    [optimizer_outside(FedAdam), optimizer_outside(FedYogi), optimizer_outside(FedAvgM, server_momentum=0.9)],
)
def test_an_optimizer_that_follows_the_dp_wrapper_is_no_finding(outside):
    result = audited(outside=outside, claim=NOISE)
    assert not result.refuted, result.summary
    assert list(result.findings) == []


def test_a_subclass_of_the_dp_wrapper_may_process_what_super_releases():
    class HalfSteps(DifferentialPrivacyServerSideFixedClipping):
        def aggregate_train(self, server_round, replies):
            before, (arrays, metrics) = self.current_arrays, super().aggregate_train(server_round, replies)
            half = {key: Array((array.numpy() + before[key].numpy()) / 2) for key, array in arrays.items()}
            return ArrayRecord(half), metrics

    result = audited(wrapper=HalfSteps, claim=NOISE)
    assert not result.refuted, result.summary
    assert list(result.findings) == []


class Blend(Outside):
    """Adds a tenth of the average without noise to what it makes of the release."""

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies := list(replies))
        exact, _ = self.private.strategy.aggregate_train(server_round, replies)
        blend = {key: np.float32(0.9) * arrays[key].numpy() + np.float32(0.1) * exact[key].numpy() for key in arrays}
        return ArrayRecord({key: Array(part) for key, part in blend.items()}), metrics


class ThrowsAway(DifferentialPrivacyServerSideFixedClipping):
    """Adds noise, and returns the average without it."""

    def aggregate_train(self, server_round, replies):
        super().aggregate_train(server_round, replies := list(replies))
        return self.strategy.aggregate_train(server_round, replies)


@pytest.mark.parametrize(
    "settings", [{"wrapper": ThrowsAway}, {"outside": lambda private: Blend(private, momentum)}], ids=["all", "a tenth"]
)
def test_a_model_that_bypasses_the_dp_wrapper_refutes(settings):
    sentence = audited(**settings).bugs[0].sentence
    assert "'weight after the DP wrapper'" in sentence
    assert "without noise" in sentence


def test_a_server_optimizer_inside_the_dp_wrapper_is_named_whatever_follows_it():
    result = audited(inner=FedAdam, outside=lambda private: Outside(private, momentum))
    assert "FedAdam" in result.bugs[0].sentence


def test_what_follows_the_dp_wrapper_runs_seldom_and_need_not_be_copied():
    calls = []

    class Saves(Outside):
        def aggregate_train(self, server_round, replies):
            calls.append(server_round)
            return super().aggregate_train(server_round, replies)

    audited(outside=lambda private: Saves(private, momentum))
    assert len(calls) == ROUNDS + 2

    class Locks(Outside):
        lock = property(lambda self: self.memory.setdefault("lock", threading.Lock()))

        def configure_train(self, *args):
            assert self.lock
            return super().configure_train(*args)

    result = audited(inner=FedAdam, outside=lambda private: Locks(private, momentum))
    assert "FedAdam" in result.bugs[0].sentence
    assert any("Locks cannot be copied" in warning for warning in result.warnings)
    # What was not replayed is not listed as checked, and everything that is printed says so.
    assert "sensitivity" not in result.checks
    assert "Not tested: whether clients show in what strategies around" in str(result)


@pytest.mark.parametrize("outside", [False, True])
def test_a_patched_method_is_refused_and_leaves_the_strategy_alone(outside):
    """A function in place of a method is shared by copies, so that replaying one would step the training's strategy."""
    made = []

    def patched(private):
        strategy = Outside(private, momentum)
        layer = strategy if outside else private
        original = layer.aggregate_train
        layer.aggregate_train = lambda server_round, replies: original(server_round, list(replies))
        made.append(strategy)
        return strategy

    result = audited(outside=patched, claim=NOISE)
    made[0].memory.clear()  # nothing is left of the guard
    assert not result.refuted, result.summary
    assert "sensitivity" not in result.checks
    [warning] = [warning for warning in result.warnings if warning.startswith("Not tested")]
    assert "uses the strategy of the training itself" in warning
    with pytest.raises(InputError, match="uses the strategy of the training itself"):
        replay_strategy(made[0], ArrayRecord({key: Array(part) for key, part in model().items()}))


def test_longer_canaries_test_clipping_without_a_wrapper():
    result = audited(wrapper=lambda strategy, *_: strategy, length=5.0)
    assert "clipping" in result.checks
    assert "Not tested: clipping" not in result.summary


@pytest.mark.parametrize("which", [0, -1])
def test_a_reply_that_counts_twice_is_named(which):
    class CountsTwice(FedAvg):
        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            return super().aggregate_train(server_round, [*replies, replies[which]])

    assert only_finding(audited(inner=CountsTwice)).check == "sensitivity"


def replayed(outside):
    """Findings for honest clients of equal weight, without dropouts: Flower's wrapper alone has none."""
    small = ArrayRecord({"weight": Array(np.zeros((8, 32), np.float32)), "bias": Array(np.zeros(32, np.float32))})
    private = DifferentialPrivacyServerSideFixedClipping(FedAvg(fraction_evaluate=0.0), 1.0, CLIP, 10)
    clients = [{key: np.full(array.shape, 0.1, np.float32) for key, array in small.items()}] * 9
    options = ReplayOptions(dropouts=False, quick=True)
    findings = replay_strategy(outside(private), small, clients, options=options).findings
    return [finding for finding in findings if finding.check != "examples" and finding.refutes]


@pytest.mark.parametrize("process", ["server learning rate", "momentum", "weight decay"])
def test_replay_judges_what_the_dp_wrapper_releases(process):
    assert replayed(lambda private: Outside(private, PROCESSES[process])) == []


def test_replay_names_a_model_that_bypasses_the_dp_wrapper():
    assert "'weight after the DP wrapper'" in replayed(lambda private: Blend(private, momentum))[0].sentence


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


def test_nodes_that_never_reply_are_warned_of():
    """The noise for 50 nodes is 0.84 of that for 42, which is too near to 1 for 20 canaries in four rounds."""
    result = audited(change=lambda number, arrays: arrays if number < 2 else None)
    assert any("8 of 50 nodes sent no reply" in warning for warning in result.warnings)


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


@pytest.mark.parametrize(("rate", "refuted"), [(0.1, False), (0.2, True)])
def test_momentum_inside_the_wrapper_adds_up_over_rounds(rate, refuted):
    """A client in all rounds moves the model rate / (1 - 0.9) times as far as without momentum, and the noise is 1."""

    def build(**settings):
        return FedAvgM(**settings, server_learning_rate=rate, server_momentum=0.9)

    sentences = [finding.sentence for finding in audited(inner=build).bugs]
    assert any("FedAvgM" in sentence and "19 rounds before" in sentence for sentence in sentences) is refuted
    assert refuted or not sentences


def test_replay_can_leave_out_what_flower_trusts_nodes_with():
    small = ArrayRecord({"weight": Array(np.zeros((30, 20), np.float32))})
    private = DifferentialPrivacyServerSideFixedClipping(FedAvg(fraction_evaluate=0.0), 2.0, 0.5, 9)
    assert "weighted_by=None" in str(replay_strategy(private, small, options=ReplayOptions(quick=True)))
    honest = ReplayOptions(dropouts=False, quick=True)
    assert replay_strategy(private, small, weighted_by=None, options=honest).ok
