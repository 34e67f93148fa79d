"""Flower trainings under audit."""

import logging
import random
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'coalmine[flower]'")

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)
from flwr.supercore.privacy_accounting import NeighboringRelation, PrivacyConfig, SamplingMethod
from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant

import coalmine
from coalmine import Canife, OneShot
from coalmine.claims import Claim
from coalmine.claims.sampling import Observed
from coalmine.errors import CanaryWarning, InputError
from coalmine.integrations.flower import CanaryGrid, FrozenRounds, LocalGrid, canary_mod
from coalmine.integrations.flower.arrays import Layout
from coalmine.methods.canife.canaries import GivenUpdates

CLIP, ROUNDS, CLIENTS, DIM = 0.5, 3, 4, 310


@pytest.fixture(autouse=True)
def quiet_and_seeded():
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    random.seed(0)
    np.random.seed(0)


def first_model():
    rng = np.random.default_rng(5)
    return ArrayRecord(
        {
            "weight": Array(rng.normal(0, 0.1, (30, 10)).astype(np.float32)),
            "bias": Array(rng.normal(0, 0.1, 10).astype(np.float32)),
        }
    )


def local_step(model, partition):
    """Return what a client's training makes of a model, both as flat vectors."""
    direction = np.random.default_rng(partition).normal(0, 0.2, DIM).astype(np.float32)
    return (0.9 * model + direction).astype(np.float32)


def client_app(mods=(), fails=lambda partition: None):
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message, context):
        partition = context.node_config["partition-id"]
        failure = fails(partition)
        if failure == "dies":
            raise RuntimeError("out of memory")
        if failure == "silent":
            return None
        arrays = message.content["arrays"]
        layout = Layout.of(arrays)
        before = layout.vector(arrays)
        update = local_step(before, partition) - before
        if failure == "nan":
            update[7] = np.nan
        metrics = MetricRecord({"num-examples": 8, "loss": float(partition)})
        return Message(RecordDict({"arrays": layout.moved(arrays, update), "metrics": metrics}), reply_to=message)

    return app


def one_shot(**more):
    settings = {"view": "updates", "participation": "every-round", "canaries": 6, "seed": 2} | more
    return OneShot(DIM, rounds=ROUNDS, **settings)


def train(strategy, audits, *, app=None, rounds=ROUNDS, **settings):
    grid = CanaryGrid(LocalGrid(app or client_app(), nodes=CLIENTS), audits, **{"clip_norm": CLIP, **settings})
    result = strategy.start(grid=grid, initial_arrays=first_model(), num_rounds=rounds, evaluate_fn=grid.recorder())
    return result, grid


def server_side(nodes, noise=1.0, inner=None, **more):
    return DifferentialPrivacyServerSideFixedClipping(
        inner or FedAvg(fraction_evaluate=0.0), noise, CLIP, nodes, **more
    )


def accountant(nodes):
    return RdpAccountant(
        PrivacyConfig(1e-5, nodes, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION)
    )


def plain_loop(audit, noise=1.0):
    """The same training without Flower: clip, average, add noise as Flower draws it."""
    layout = Layout.of(first_model())
    model = layout.vector(first_model())
    nodes = CLIENTS + len(audit.seats(0))
    for t in range(audit.rounds):
        planted = audit.plant(t, clip_norm=CLIP)
        total = planted.total.astype(np.float64)
        for partition in range(CLIENTS):
            update = local_step(model, partition) - model
            total += update * min(1.0, CLIP / np.linalg.norm(update))
        drawn = [np.random.normal(0, noise * CLIP / nodes, shape).ravel() for shape in layout.shapes.values()]
        update = (total / nodes + np.concatenate(drawn)).astype(np.float32)
        model = (model + update).astype(np.float32)
        audit.observe(t, update=update, divisor=nodes)
    return model


def test_the_readmes_training_runs_as_it_is_written():
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", readme, re.S) if "CanaryGrid" in block]
    known = {"cm": coalmine, "model": DIM, "first": first_model(), "grid": LocalGrid(client_app(), nodes=20)}
    exec(code, known)
    assert not known["result"].refuted
    assert [warning for warning in known["result"].warnings if "num_sampled_clients" in warning] == []


# Of a fixed number of canaries, only the inserted ones are nodes.
@pytest.mark.parametrize(("design", "nodes"), [("coin-flips", 12), ("fixed", 6)])
def test_flower_gives_the_scores_of_a_plain_loop(design, nodes):
    flower, plain = one_shot(design=design), one_shot(design=design)
    result, _ = train(server_side(CLIENTS + nodes), flower)
    assert len(flower.seats(0)) == nodes
    np.random.seed(0)
    model = plain_loop(plain)
    for ours, theirs in zip(plain.scores(), flower.scores(), strict=True):
        np.testing.assert_allclose(theirs, ours, atol=2e-5)
    np.testing.assert_allclose(Layout.of(first_model()).vector(result.arrays), model, atol=1e-6)
    assert flower.notes == ()


def test_more_canary_nodes_than_clients_cause_one_warning():
    with pytest.warns(CanaryWarning, match=f"12 canaries beside {CLIENTS} clients") as caught:
        train(server_side(CLIENTS + 12), one_shot())
    assert len([warning for warning in caught if warning.category is CanaryWarning]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", CanaryWarning)
        train(server_side(CLIENTS + 4), one_shot(canaries=4, design="fixed"))


@pytest.mark.slow
def test_long_canaries_are_clipped_like_any_update():
    short, long = one_shot(), one_shot()
    train(server_side(CLIENTS + 12), short)
    np.random.seed(0)
    train(server_side(CLIENTS + 12), long, length=10.0)
    np.testing.assert_allclose(short.scores()[0], long.scores()[0], atol=1e-4)


def test_accounted_mode_works_with_two_views():
    audit = one_shot()
    final = audit.seen_by("final-change", initial=Layout.of(first_model()).vector(first_model()))
    strategy = server_side(CLIENTS + 12, noise=2.0, accountant=accountant(CLIENTS + 12))
    train(strategy, [audit, final])
    spent = strategy.privacy_spent()
    assert spent.num_releases == ROUNDS
    claim = Claim(noise_multiplier=2.0, delta=1e-5, accountant="rdp")
    assert audit.tested_claim(claim).epsilon == pytest.approx(spent.epsilon)
    for seen in (audit, final):
        result = seen.result(claim=Claim(noise_multiplier=2.0, delta=1e-5))
        assert not result.refuted
        assert [w for w in result.warnings if "too few" not in w] == []


def test_only_canaries_that_are_due_are_nodes_and_none_in_evaluation():
    audit = one_shot(participation="epochs:1")
    counts, inner = [], LocalGrid(client_app(), nodes=CLIENTS)
    grid = CanaryGrid(inner, audit, clip_norm=CLIP)
    strategy = server_side(CLIENTS + 4)

    class Watching(type(strategy)):
        def configure_train(self, *args):
            messages = list(super().configure_train(*args))
            counts.append(len(messages))
            return messages

        def configure_evaluate(self, server_round, arrays, config, grid):
            assert list(grid.get_node_ids()) == list(inner.get_node_ids())
            return []

    strategy.__class__ = Watching
    strategy.start(grid=grid, initial_arrays=first_model(), num_rounds=ROUNDS, evaluate_fn=grid.recorder())
    assert counts == [CLIENTS + 4] * ROUNDS
    assert audit.result().metrics["inserted"] + audit.result().metrics["held_out"] == 12


def test_nodes_have_ids_of_64_bits_as_in_a_deployment(monkeypatch):
    local = LocalGrid(client_app(), nodes=CLIENTS)
    ids = [1, 2**63 - 1, 2**63, 2**64 - 100]
    monkeypatch.setattr(local, "_nodes", ids)
    audits = [one_shot(), one_shot(participation=Observed(size=16, population=16), seed=3)]
    grid = CanaryGrid(local, audits, clip_norm=CLIP)
    strategy = server_side(CLIENTS + 24)
    strategy.start(grid=grid, initial_arrays=first_model(), num_rounds=ROUNDS, evaluate_fn=grid.recorder())
    assert sorted(audits[0].state()["cohort_ids"].tolist()) == [-(2**63), -100, 1, 2**63 - 1]


@pytest.mark.slow
def test_observed_participation_is_accounted_as_sampling_without_replacement():
    audit = one_shot(participation=Observed(size=8, population=CLIENTS + 12))
    strategy = server_side(8, noise=2.0, inner=FedAvg(fraction_train=0.5, fraction_evaluate=0.0))
    sampled, took_part = [], audit.took_part
    audit.took_part = lambda t, seats, trial=None: (sampled.append(len(seats)), took_part(t, seats, trial))
    train(strategy, audit)
    assert all(0 < count <= 8 for count in sampled)
    assert str(audit.sampling) == "fixed:8/16"
    warnings = audit.result(claim=Claim(noise_multiplier=2.0, delta=1e-5)).warnings
    assert [w for w in warnings if "too few" not in w] == []


def test_a_strategy_that_leaves_out_due_canaries_raises():
    strategy = server_side(8, inner=FedAvg(fraction_train=0.5, fraction_evaluate=0.0))
    with pytest.raises(InputError, match=r"fraction_train=1\.0"):
        train(strategy, one_shot())


@pytest.mark.parametrize(
    ("failure", "wrapped", "warning"),
    [
        ("dies", False, "1 of 16 nodes failed"),
        ("dies", True, "did not change"),
        ("silent", True, "1 of 16 nodes sent no reply"),
        ("nan", False, "1 of 310 parameters are not finite"),
    ],
)
def test_the_audit_continues_after_a_client_that(failure, wrapped, warning):
    failures = iter([failure] + [None] * 100)
    app = client_app(fails=lambda partition: next(failures) if partition == 2 else None)
    audit = one_shot()
    train(server_side(CLIENTS + 12) if wrapped else FedAvg(fraction_evaluate=0.0), audit, app=app)
    result = audit.result()
    assert any(warning in text and text.startswith("round 0") for text in result.warnings)
    assert np.isfinite(result.bound.epsilon)


def test_hosts_send_the_same_canaries_and_no_vector_travels():
    near, far = one_shot(), one_shot()
    train(server_side(CLIENTS + 12), near)
    np.random.seed(0)
    sizes = []

    def measured(message, context, call_next):
        configs = list(message.content.config_records.values())
        sizes.append(sum(len(str(value)) for config in configs for value in config.values()))
        return call_next(message, context)

    train(server_side(CLIENTS + 12), far, app=client_app(mods=[measured, canary_mod]), hosts=[3, 4])
    for ours, theirs in zip(near.scores(), far.scores(), strict=True):
        np.testing.assert_allclose(theirs, ours, atol=2e-5)
    assert max(sizes) < 200


@pytest.mark.slow
def test_client_side_clipping_tests_canaries_with_the_mods_of_the_app():
    for wrapper, mod in (
        (DifferentialPrivacyClientSideFixedClipping, fixedclipping_mod),
        (DifferentialPrivacyClientSideAdaptiveClipping, adaptiveclipping_mod),
    ):
        nodes = CLIENTS + 12
        inner = FedAvg(fraction_evaluate=0.0)
        strategy = wrapper(inner, 1.0, CLIP, nodes) if mod is fixedclipping_mod else wrapper(inner, 1.0, nodes, CLIP)
        audit = one_shot()
        train(strategy, audit, app=client_app(mods=[mod]), mods=[mod], length=5.0, clip_norm=None)
        assert np.isfinite(audit.result().bound.epsilon)


def test_frozen_rounds_leave_model_accountant_and_clip_norm_as_they_were():
    perfect = np.zeros(DIM)
    perfect[0] = 1
    audit = Canife(canaries=GivenUpdates(perfect), rounds=ROUNDS, every=2, trials=30)
    grid = CanaryGrid(LocalGrid(client_app(), nodes=CLIENTS), audit, clip_norm=CLIP)
    private, seen = server_side(CLIENTS + 1, noise=0.3, accountant=accountant(CLIENTS + 1)), []
    strategy = FrozenRounds(private, grid)
    evaluated = grid.recorder(lambda number, arrays: seen.append((number, arrays["bias"].numpy()[0])))
    strategy.start(grid=grid, initial_arrays=first_model(), num_rounds=grid.rounds, evaluate_fn=evaluated)
    assert grid.rounds == ROUNDS + 60
    assert private.privacy_spent().num_releases == ROUNDS
    assert [number for number, _ in seen] == [0, 1, 2, 3]
    assert len({value for _, value in seen}) == 4
    result = audit.result(claim=Claim(noise_multiplier=0.3, delta=1e-5))
    assert result.metrics["attack_accuracy"] > 0.85
    assert result.warnings == [w for w in result.warnings if "frozen round" not in w]


def test_running_canife_scores_the_trainings_own_rounds():
    perfect = np.zeros(DIM)
    perfect[0] = 1
    audit = Canife(canaries=GivenUpdates(perfect), rounds=12, every=12, trials=12, mode="running", seed=1)
    grid = CanaryGrid(LocalGrid(client_app(), nodes=CLIENTS), audit, clip_norm=CLIP)
    strategy = server_side(CLIENTS + 1, noise=0.1)
    strategy.start(grid=grid, initial_arrays=first_model(), num_rounds=12, evaluate_fn=grid.recorder())
    assert audit.result(claim=Claim(noise_multiplier=0.1, delta=1e-5)).metrics["attack_accuracy"] > 0.8


def test_a_layout_covers_floating_point_arrays_and_copies():
    arrays = ArrayRecord(
        {
            "half": Array(np.ones((2, 2), dtype=np.float16)),
            "count": Array(np.array(7, dtype=np.int64)),
            "scalar": Array(np.array(0.5, dtype=np.float32)),
            "none": Array(np.zeros((0, 3), dtype=np.float32)),
        }
    )
    layout = Layout.of(arrays)
    assert layout.dim == 5
    moved = layout.moved(arrays, np.arange(5, dtype=np.float32))
    assert [array.dtype for array in moved.values()] == ["float16", "int64", "float32", "float32"]
    assert moved["scalar"].numpy() == 4.5
    assert moved["count"].numpy() == 7
    vector = layout.vector(arrays)
    vector[:] = 0
    assert layout.vector(arrays).sum() == 4.5
    nudged = layout.vector(layout.nudged(arrays, 1e-6))
    assert np.count_nonzero(nudged != layout.vector(arrays)) == 1
    with pytest.raises(InputError, match=r"'half' had shape \(2, 2\)"):
        layout.vector(ArrayRecord({"half": Array(np.ones(3, dtype=np.float16))}))


def test_settings_that_do_not_fit_raise():
    with pytest.raises(InputError, match=r"311 parameters.* 310"):
        train(server_side(4), OneShot(311, rounds=ROUNDS, canaries=2, view="updates", seed=1))
    with pytest.raises(InputError, match="got NoneType"):
        CanaryGrid(None, one_shot())
    with pytest.raises(InputError, match=r"\[3, 9\]"):
        CanaryGrid(LocalGrid(client_app(), nodes=2), [one_shot(), OneShot(DIM, rounds=9, canaries=2, seed=4)])
    with pytest.raises(InputError, match="different seeds"):
        CanaryGrid(LocalGrid(client_app(), nodes=2), [one_shot(), one_shot()])
    canife = Canife(canaries=GivenUpdates(np.ones(DIM)), rounds=1, every=1, trials=4)
    with pytest.raises(InputError, match="got crafted"):
        CanaryGrid(LocalGrid(client_app(), nodes=2), canife, hosts=[1])
    for rounds in (ROUNDS - 1, ROUNDS + 1):
        with pytest.raises(InputError, match=f"num_rounds is {rounds}, but this grid has {ROUNDS} rounds left"):
            train(server_side(4), one_shot(), rounds=rounds)
    local = LocalGrid(client_app(), nodes=CLIENTS)
    recorder = CanaryGrid(local, one_shot()).recorder()
    with pytest.raises(InputError, match="does not use this grid"):
        server_side(4).start(grid=local, initial_arrays=first_model(), num_rounds=ROUNDS, evaluate_fn=recorder)


def test_a_node_that_is_sampled_twice_gets_a_sentence():
    class Repeats(FedAvg):
        def configure_train(self, *args):
            messages = list(super().configure_train(*args))
            real = next(message for message in messages if message.metadata.dst_node_id > 0)
            return [*messages, real]

    with pytest.raises(InputError, match=r"node \d was sampled 2 times.* list each once"):
        train(server_side(4, inner=Repeats(fraction_evaluate=0.0)), one_shot())


def test_a_reply_that_arrives_twice_gets_a_warning():
    class Repeats(LocalGrid):
        def send_and_receive(self, messages, *, timeout=None):
            replies = list(super().send_and_receive(messages, timeout=timeout))
            return [*replies, *replies[:1]]

    audit = one_shot()
    grid = CanaryGrid(Repeats(client_app(), nodes=CLIENTS), audit)
    strategy = server_side(CLIENTS + 12)
    strategy.start(grid=grid, initial_arrays=first_model(), num_rounds=ROUNDS, evaluate_fn=grid.recorder())
    assert "round 0: 1 of 16 nodes replied twice, which counts twice" in audit.result().warnings


@pytest.mark.parametrize("counted", [10, 40])
def test_noise_for_another_number_of_nodes_gets_a_sentence(counted):
    audit = one_shot(canaries=4, design="fixed")
    sentence = f"num_sampled_clients is {counted}, {CLIENTS + 4} nodes reply: set {CLIENTS + 4}"
    with pytest.warns(CanaryWarning, match=sentence):
        train(server_side(counted), audit)
    assert f"round 0: {sentence}" in audit.result().warnings


def test_a_canary_passes_secure_aggregation():
    from flwr.app import Context
    from flwr.client import NumPyClient
    from flwr.client.mod import secaggplus_mod
    from flwr.compat.common.parameter import ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.server import LegacyContext, ServerConfig
    from flwr.server.strategy import FedAvg as LegacyFedAvg
    from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow

    from coalmine.integrations.flower.nodes import canary_request
    from coalmine.methods.one_shot.canaries import update_canaries

    canaries, scores = update_canaries("gaussian", dim=100, count=4, seed=3), []

    class Client(NumPyClient):
        def fit(self, parameters, config):
            return [array + 0.01 for array in parameters], 1, {}

    class Marking(LegacyFedAvg):
        def configure_fit(self, server_round, parameters, client_manager):
            (client, asked), *others = super().configure_fit(server_round, parameters, client_manager)
            layout = Layout({"0": (20, 5)})
            asked.config = canary_request(canaries, "gaussian", layout, canary=1, norm=2.0)
            return [(client, type(asked)(asked.parameters, asked.config))] + [
                (other, type(asked)(asked.parameters, {})) for other, _ in others
            ]

        def aggregate_fit(self, server_round, results, failures):
            parameters, metrics = super().aggregate_fit(server_round, results, failures)
            (array,) = parameters_to_ndarrays(parameters)
            scores.append(canaries.dots((4 * array.ravel() - 0.03).astype(np.float32)) / 2)
            return parameters, metrics

    first = ndarrays_to_parameters([np.zeros((20, 5), dtype=np.float32)])
    strategy = Marking(fraction_evaluate=0.0, min_fit_clients=4, min_available_clients=4, initial_parameters=first)
    context = LegacyContext(
        context=Context(1, 0, {}, RecordDict(), {}), config=ServerConfig(num_rounds=1), strategy=strategy
    )
    workflow = DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2, max_weight=1))
    app = ClientApp(client_fn=lambda context: Client().to_client(), mods=[secaggplus_mod, canary_mod])
    workflow(LocalGrid(app, nodes=4), context)
    expected = canaries.dots(canaries.canary(1))
    np.testing.assert_allclose(scores[0], expected, atol=1e-4)


def test_frozen_rounds_have_the_same_number_of_nodes():
    canife = Canife(canaries=GivenUpdates(np.eye(DIM)[0]), rounds=ROUNDS, every=ROUNDS, trials=8, seed=1)
    grid = CanaryGrid(LocalGrid(client_app(), nodes=CLIENTS), [canife, one_shot()], clip_norm=CLIP)
    strategy = FrozenRounds(server_side(CLIENTS + 12 + 1), grid)
    seen = []
    canife.record = lambda release, record=canife.record: (seen.append(release.divisor), record(release))
    strategy.start(grid=grid, initial_arrays=first_model(), num_rounds=grid.rounds, evaluate_fn=grid.recorder())
    assert {divisor for divisor in seen if divisor} == {CLIENTS + 12 + 1}


def test_parameters_are_matched_by_name_in_any_order():
    layout = Layout.of(first_model())
    other = ArrayRecord(dict(sorted(first_model().items())))
    update = np.arange(DIM, dtype=np.float32)
    assert list(other) != list(first_model())
    np.testing.assert_allclose(layout.vector(layout.moved(other, update)) - layout.vector(other), update, atol=1e-4)


def test_the_share_that_was_sampled_is_accounted():
    audit = one_shot(participation=Observed(2, 1000))
    train(FedAvg(fraction_evaluate=0.0), audit)
    assert str(audit.sampling) == f"fixed:{CLIENTS + 12}/{CLIENTS + 12}"
    assert any("declared 2 of 1000" in note for note in audit.notes)


def test_metrics_are_averaged_as_flower_does():
    app = ClientApp()

    @app.train()
    def train_alike(message, context):
        partition = context.node_config["partition-id"]
        metrics = MetricRecord({"num-examples": 1 + 30 * partition, "loss": float(partition)})
        return Message(RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message)

    result, _ = train(FedAvg(fraction_evaluate=0.0), one_shot(), app=app)
    sizes = 1 + 30 * np.arange(CLIENTS)
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx(np.average(np.arange(CLIENTS), weights=sizes))


def test_replies_keep_the_order_of_the_messages():
    grid = CanaryGrid(LocalGrid(client_app(), nodes=CLIENTS), one_shot(), clip_norm=CLIP)
    grid.audited.begin(first_model())
    asked = [n for n in grid.get_node_ids() if n < 0]
    content = RecordDict({"arrays": first_model()})
    replies = grid.send_and_receive([Message(content, node, "train") for node in asked])
    assert [reply.metadata.src_node_id for reply in replies] == asked


def test_a_large_held_out_step_raises():
    half = ArrayRecord({"weight": Array(np.ones(DIM, dtype=np.float16))})
    layout = Layout.of(half)
    assert layout.representable_step(half, 1e-9) > 1e-3
    grid = CanaryGrid(LocalGrid(client_app(), nodes=CLIENTS), one_shot(), clip_norm=0.01)
    grid.audited.begin(half)
    with pytest.raises(InputError, match="float32"):
        grid.send_and_receive([Message(RecordDict({"arrays": half}), node, "train") for node in grid.get_node_ids()])
