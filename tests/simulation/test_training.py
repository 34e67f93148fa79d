import math
import multiprocessing
import os
import signal
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from coalmine import claims
from coalmine.claims import Poisson
from coalmine.claims.sampling import AtMost, Epochs, FixedSize, Scheduled
from coalmine.errors import InputError
from coalmine.progress import listening
from coalmine.protocol import Audit, Contribution, View
from coalmine.simulation import (
    SGD,
    Adam,
    CentralTraining,
    LocalTraining,
    Mechanism,
    Training,
    evaluate,
    flat,
)
from coalmine.simulation.client import tensors
from coalmine.simulation.kernels.kernel import Kernel
from federations import cnn, federation, mlp, texts, word_model

DATA = federation([3, 9, 4, 12, 5, 7, 6, 2, 8, 5], learnable=True)
PRIVATE = Mechanism(clip_norm=0.5, quantile=0.5, noise_multiplier=0.8)


class Spy(Audit):
    """An audit that inserts what its test asks for and remembers what it observes."""

    def __init__(self, *views, plants=None, frozen=0):
        self.views, self._plants, self._frozen = views, plants, frozen
        self.seen, self.asked = [], []

    def plant(self, round, *, clip_norm, trial=None):
        self.asked.append((round, trial, clip_norm))
        return None if self._plants is None else self._plants(round, clip_norm, trial)

    def record(self, release):
        self.seen.append(release)

    def frozen_rounds(self, round):
        return self._frozen if round == 1 else 0


class FrozenFirst(Spy):
    def frozen_rounds(self, round):
        return self._frozen if round == 0 else 0


def training(**changes):
    if "test" in changes:
        changes.setdefault("evaluate_every", None)
    settings = {
        "model": mlp(),
        "data": DATA,
        "rounds": 6,
        "sampling": Poisson(0.6),
        "client": LocalTraining(optimizer=SGD(learning_rate=0.2), batch_size=4),
        "mechanism": PRIVATE,
        "server": Adam(learning_rate=0.05),
        "test": DATA,
        "evaluate_every": 2,
        "seed": 3,
    }
    return Training(**(settings | changes))


def same(first, second):
    """Whether two trainings are in the same state, to the bit."""
    a, b = first.state, second.state
    assert a.optimizer.keys() == b.optimizer.keys()
    pairs = [(a.model, b.model)]
    pairs += [pair for key in a.optimizer for pair in zip(a.optimizer[key], b.optimizer[key], strict=True)]
    return all(torch.equal(*pair) for pair in pairs) and (a.clip_norm, a.round, a.history) == (
        b.clip_norm,
        b.round,
        b.history,
    )


def finished(**changes):
    run = training(**changes)
    run.run()
    return run


KERNELS = {
    "Stacked": {},
    "Layerwise": {"client": LocalTraining(optimizer=SGD(learning_rate=0.2))},
    "LeanLoop": {"client": LocalTraining(optimizer=Adam(learning_rate=0.01), batch_size=4, epochs=2)},
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_two_workers_give_the_bits_of_one(kernel):
    one, two = finished(**KERNELS[kernel]), finished(**KERNELS[kernel], workers=2)
    assert one.kernel == kernel
    assert same(one, two)
    assert not same(one, finished(**KERNELS[kernel], seed=4))


def test_two_workers_give_the_bits_of_one_for_a_large_model():
    """Noise of two streams, and a server step that is rounded."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 36_000), nn.ReLU(), nn.Linear(36_000, 3))
    settings = {
        "model": model,
        "client": KERNELS["Layerwise"]["client"],
        "server": SGD(learning_rate=0.37),
        "rounds": 2,
    }
    one, two = finished(**settings), finished(**settings, workers=2)
    assert one.dim > 1 << 21
    assert same(one, two)


def test_dropout_too_is_the_same_with_any_number_of_workers():
    torch.manual_seed(0)
    model = nn.Sequential(*mlp()[:3], nn.Dropout(0.5), mlp()[3])
    one, two = finished(model=model), finished(model=model, workers=3)
    assert one.kernel == "LeanLoop"
    assert same(one, two)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_training_resumed_from_a_checkpoint_has_the_bits_of_one_that_never_stopped(kernel, tmp_path):
    whole = finished(**KERNELS[kernel])
    training(**KERNELS[kernel]).run(until=3, checkpoints=tmp_path)
    resumed = training(**KERNELS[kernel]).load(tmp_path)
    assert resumed.state.round == 3
    resumed.run()
    assert same(whole, resumed)


def test_an_audit_that_only_looks_changes_nothing():
    spy = Spy(View("model"), View("update"), frozen=3)
    assert same(finished(), finished(audits=[spy]))
    assert len(spy.seen) == 6 * 2 + 3


def test_the_users_own_generator_and_threads_are_left_alone():
    run = training()
    torch.manual_seed(5)
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    run.run()
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.get_num_threads() == threads


def test_the_users_module_is_left_alone():
    model = mlp()
    before = flat.parameter_vector(model)
    run = training(model=model)
    run.run()
    assert torch.equal(before, flat.parameter_vector(model))
    assert torch.equal(flat.parameter_vector(run.module()), run.state.model)
    assert not torch.equal(before, run.state.model)


def test_views_show_what_they_should_and_nothing_else():
    final, updates, periodic = Spy(View("model", every=None)), Spy(View("update")), Spy(View("model", every=4))
    run = finished(audits=[final, updates, periodic])
    assert [release.round for release in final.seen] == [5]
    np.testing.assert_array_equal(final.seen[0].vector, run.state.model.numpy())
    assert [(release.round, release.kind) for release in updates.seen] == [(i, "update") for i in range(6)]
    assert [release.round for release in periodic.seen] == [3, 5]
    with pytest.raises(ValueError, match="read-only"):
        final.seen[0].vector[0] = 1


def test_releases_stay_what_they_were():
    spy = Spy(View("model"))
    run = training(audits=[spy])
    run.run(until=2)
    first = spy.seen[0].vector.copy()
    run.run()
    np.testing.assert_array_equal(first, spy.seen[0].vector)


def test_what_is_planted_is_added_to_the_sum_and_counted():
    dim = training().dim
    canary = np.zeros(dim, dtype=np.float32)
    canary[7] = 0.3
    plain, spied = Spy(View("update")), Spy(View("update"), plants=lambda *_: Contribution(canary))
    for noise in (0.0, 0.5):
        mechanism = Mechanism(clip_norm=0.3, noise_multiplier=noise)
        plain, spied = Spy(View("update")), Spy(View("update"), plants=lambda *_: Contribution(canary))
        for spy in (plain, spied):
            training(audits=[spy], mechanism=mechanism, rounds=1, sampling=FixedSize(5)).run()
        np.testing.assert_allclose(spied.seen[0].vector * 6 - plain.seen[0].vector * 5, canary, atol=1e-6)
        assert spied.asked == [(0, None, 0.3)]


def test_several_audits_plant_in_one_training():
    dim = training().dim
    vectors = [np.full(dim, v, dtype=np.float32) for v in (1e-3, 2e-3)]
    spies = [Spy(plants=lambda *_, v=v: Contribution(v, clients=0)) for v in vectors]
    watcher, plain = Spy(View("update")), Spy(View("update"))
    mechanism = Mechanism(clip_norm=10.0)
    training(audits=[*spies, watcher], mechanism=mechanism, rounds=1, sampling=FixedSize(5)).run()
    training(audits=[plain], mechanism=mechanism, rounds=1, sampling=FixedSize(5)).run()
    np.testing.assert_allclose(watcher.seen[0].vector - plain.seen[0].vector, 3e-3 / 5, atol=1e-6)


def test_frozen_rounds_have_fresh_cohorts_and_noise_and_leave_the_model_alone():
    spy, other = Spy(frozen=4), Spy(frozen=2)
    run = finished(audits=[spy, other])
    assert same(run, finished())
    assert [(r.round, r.trial, r.kind) for r in spy.seen] == [(1, i, "update") for i in range(4)]
    assert [trial for _, trial, _ in spy.asked if trial is not None] == [0, 1, 2, 3]
    vectors = [release.vector for release in spy.seen + other.seen]
    for i, vector in enumerate(vectors):
        for earlier in vectors[:i]:
            assert not np.array_equal(vector, earlier)


@pytest.mark.parametrize("cohorts", [Poisson(0.6), FixedSize(6), Scheduled([[0, 3, 5]] * 2)])
def test_frozen_rounds_compute_every_client_once_and_release_the_same(cohorts, monkeypatch):
    kernel = KERNELS["Layerwise"]["client"]  # no batches, whose order frozen rounds would draw once
    mechanism = Mechanism(noise_multiplier=0)

    def released(**changes):
        spy = Spy(frozen=30)
        training(audits=[spy], rounds=2, sampling=cohorts, client=kernel, mechanism=mechanism, **changes).run()
        return [release for release in spy.seen if release.trial is not None]

    kept, shared = released(), released(workers=2)
    monkeypatch.setattr(Training, "_frozen_updates", lambda *_: None)
    monkeypatch.setattr("coalmine.simulation.training._MOST_BYTES", 0)  # too little memory to keep any update
    computed = released()
    assert len(kept) == len(computed) == 30
    for a, b, c in zip(kept, computed, shared, strict=True):
        assert a.divisor == b.divisor
        np.testing.assert_allclose(a.vector, b.vector, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(a.vector, c.vector)


def test_a_few_frozen_rounds_train_their_cohorts_only(monkeypatch):
    monkeypatch.setattr(Kernel, "clipped_updates", None)  # what computes every client
    with pytest.raises(TypeError):
        training(audits=[FrozenFirst(frozen=4)], sampling=FixedSize(3)).run(until=1)
    training(audits=[FrozenFirst(frozen=3)], sampling=FixedSize(3)).run(until=1)


def test_a_client_that_diverges_in_a_frozen_round_is_named():
    wild = LocalTraining(optimizer=SGD(learning_rate=1e30), epochs=3)
    changes = {"client": wild, "sampling": Poisson(1.0), "mechanism": Mechanism(noise_multiplier=0)}
    with pytest.raises(InputError, match=r"client 'user-0' has a loss of .* in round 0"):
        training(audits=[FrozenFirst(frozen=20)], **changes).run()


def test_an_audit_can_end_its_frozen_rounds_early_and_say_how_it_goes():
    class Hasty(Spy):
        def frozen_rounds(self, round):
            return 0 if len(self.seen) >= 3 else super().frozen_rounds(round)

        def figures(self):
            return {"seen/lower_bound": float(len(self.seen))}

    hasty, shown = Hasty(frozen=8), []
    with listening(lambda what, total: (lambda done, words: shown.append((what, done, words)), lambda: None)):
        run = finished(audits=[hasty])
    assert same(run, finished())
    assert [release.trial for release in hasty.seen] == [0, 1, 2]
    frozen = [(done, words) for what, done, words in shown if what.startswith("frozen rounds")]
    assert frozen == [(seen, f"ε ≥ {seen}.00 (seen)") for seen in (1, 2, 3)]


@pytest.mark.parametrize(
    ("vector", "clients", "message"),
    [
        (np.zeros(3, dtype=np.float32), 1, "shape"),
        ("nan", 1, "norm nan"),
        ("long", 1, "norm"),
        ("short", -1, "got -1"),
    ],
)
def test_a_bad_contribution_is_refused(vector, clients, message):
    if isinstance(vector, str):
        filling = {"nan": math.nan, "long": 1.0, "short": 1e-9}[vector]
        vector = np.full(training().dim, filling, dtype=np.float32)
    spy = Spy(plants=lambda *_: Contribution(vector, clients))
    with pytest.raises(InputError, match=message):
        training(audits=[spy]).run()


def test_a_client_whose_loss_is_not_finite_is_named_and_the_round_aborted(tmp_path):
    model = mlp()
    poisoned = federation([3] * 6)
    poisoned.inputs[3 * 4] = 3e38  # user-4, finite and yet too large
    for name, kernel in KERNELS.items():
        for count in (1, 2):
            directory = tmp_path / f"{name}-{count}"
            cohorts = Scheduled([[0, 1], [2, 3], [3, 4]])
            settings = {"model": model, "data": poisoned, "sampling": cohorts, "rounds": 3, "test": None, **kernel}
            run = training(workers=count, **settings)
            with pytest.raises(InputError, match=r"client 'user-4' has a loss of .* in round 2"):
                run.run(checkpoints=directory, checkpoint_every=1)
            assert run.state.round == 2
            assert len(run.history) == 2
            assert training(**settings).load(directory).state.round == 2


def test_a_worker_that_dies_is_reported_and_the_training_can_go_on():
    class Deadly(nn.Linear):
        parent = os.getpid()
        armed = True

        def forward(self, inputs):
            if Deadly.armed and os.getpid() != Deadly.parent:
                os._exit(9)
            return super().forward(inputs.flatten(1))

    torch.manual_seed(0)
    run = training(model=Deadly(64, 3), workers=2)
    with pytest.raises(InputError, match="worker process died"):
        run.run()
    assert run.state.round == 0
    Deadly.armed = False
    run.run()
    assert run.state.round == 6


def test_a_worker_that_dies_between_two_rounds_is_reported():
    def kill(metrics):
        if metrics["round"] == 2 and not killed:
            for process in multiprocessing.active_children():
                os.kill(process.pid, signal.SIGKILL)
                process.join()
            killed.append(True)

    killed, run = [], training(workers=2)
    with pytest.raises(InputError, match="worker process died"):
        run.run(progress=kill)
    assert run.state.round == 3
    run.run()
    assert same(run, finished())


def test_an_error_in_a_worker_arrives():
    class Broken(nn.Linear):
        calls = 0

        def forward(self, inputs):
            Broken.calls += 1
            if self.training and Broken.calls > 60:
                raise RuntimeError("out of order")
            return super().forward(inputs.flatten(1))

    with pytest.raises(RuntimeError, match="out of order"):
        training(model=Broken(64, 3), workers=2, rounds=60, test=None).run()


def test_an_empty_cohort_moves_nothing_without_noise():
    run = training(sampling=Scheduled([[], [0]]), rounds=2, mechanism=Mechanism(), server=SGD(learning_rate=1.0))
    before = run.state.model.clone()
    run.run(until=1)
    assert torch.equal(before, run.state.model)
    assert run.history[0] == {"round": 0, "clients": 0}


def test_one_client_can_train_alone():
    run = finished(data=federation([5]), sampling=FixedSize(1), test=None)
    assert [metrics["clients"] for metrics in run.history] == [1] * 6


@pytest.mark.parametrize(
    "cohorts",
    [Poisson(0.5), *(pytest.param(each, marks=pytest.mark.slow) for each in (FixedSize(20), Epochs(4)))],
    ids=str,
)
def test_it_learns(cohorts):
    data = federation([20] * 40, learnable=True)
    run = training(
        data=data,
        test=data,
        rounds=60,
        sampling=cohorts,
        mechanism=Mechanism(clip_norm=1.0),
        server=SGD(learning_rate=1.0, momentum=0.8),
    )
    run.run()
    assert run.history[-1]["accuracy"] > 0.85


def test_with_test_data_alone_the_last_round_is_evaluated():
    history = finished(test=DATA).history
    assert [metrics["round"] for metrics in history if "accuracy" in metrics] == [5]
    with pytest.raises(InputError, match=r"evaluate_every is 2.*test"):
        training(test=None, evaluate_every=2)


def test_evaluation_is_periodic_and_at_the_end():
    history = finished(evaluate_every=4).history
    assert [metrics["round"] for metrics in history if "accuracy" in metrics] == [3, 5]


def test_language_models_are_evaluated_by_recall_and_perplexity():
    data = texts([4] * 6)
    run = training(model=word_model(), data=data, test=data)
    metrics = run.evaluate()
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]))
    logits = word_model()(torch.from_numpy(data.inputs)).argmax(-1).numpy()
    counted = data.targets != 0
    assert metrics["recall@1"] == pytest.approx(float((logits == data.targets)[counted].mean()))


@pytest.mark.parametrize(
    ("cohorts", "sampling"),
    [
        (Poisson(0.6), Poisson(0.6)),
        (Epochs(3), Epochs(3)),
        (Scheduled([[0, 1]] * 6), AtMost(6)),
    ],
)
def test_theory_follows_from_the_configuration(cohorts, sampling):
    claim = training(sampling=cohorts).claim(1e-5)
    expected = claims.Claim(noise_multiplier=0.8, sampling=sampling, rounds=6, delta=1e-5)
    assert claim == expected


def test_a_fixed_cohort_is_accounted_for_replacing_a_client():
    claim = training(sampling=FixedSize(4)).claim(1e-5)
    assert claim == claims.Claim(noise_multiplier=0.4, sampling=FixedSize(4, 10), rounds=6, delta=1e-5)
    assert claim.noise_multiplier * claim.sensitivity == 0.8


def test_without_noise_epsilon_is_infinite():
    for mechanism in (Mechanism(), Mechanism(clip_norm=1.0)):
        for cohorts in (Poisson(0.5), FixedSize(3)):
            assert training(mechanism=mechanism, sampling=cohorts).claim(1e-5).epsilon == math.inf


def test_batch_norm_raises_in_a_private_training_only():
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(108, 3))
    with pytest.raises(InputError, match=r"BatchNorm2d at '1'.*GroupNorm"):
        training(model=model)
    run = finished(model=model, mechanism=Mechanism())
    assert same(run, finished(model=model, mechanism=Mechanism(), workers=2))


def test_models_that_cannot_be_trained_are_refused():
    with pytest.raises(InputError, match="no trainable parameters"):
        training(model=mlp().requires_grad_(False))
    broken = mlp()
    broken[1].weight.data[0, 0] = math.nan
    with pytest.raises(InputError, match="not finite before training"):
        training(model=broken)
    with pytest.raises(InputError, match=r"Sequential must return logits of the shape \(2, 3\) .* got \(2, 5\)"):
        training(model=mlp(classes=5))
    with pytest.raises(InputError, match=r"Linear fails on inputs of the shape \(2, 1, 8, 8\)"):
        training(model=nn.Linear(3, 3))


def test_frozen_parameters_stay_frozen():
    model = mlp()
    model[1].requires_grad_(False)
    run = training(model=model)
    run.run()
    assert run.dim == 16 * 3 + 3
    assert torch.equal(run.module()[1].weight, model[1].weight)


def test_a_double_precision_module_is_trained_in_single():
    assert finished(model=mlp().double()).state.model.dtype == torch.float32


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    training().run(until=1, checkpoints=tmp_path)
    with pytest.raises(InputError, match=r"another training: seed is 3.* 4 here"):
        training(seed=4).load(tmp_path)
    with pytest.raises(InputError, match="mechanism is"):
        training(mechanism=Mechanism()).load(tmp_path)
    with pytest.raises(InputError, match="the number of parameters is"):
        training(model=cnn()).load(tmp_path)


def test_a_checkpoint_that_is_missing_cut_short_or_newer_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"checkpoint\.safetensors cannot be read"):
        training().load(tmp_path)
    training().run(until=1, checkpoints=tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="cannot be read"):
        training().load(tmp_path)
    path.write_bytes(whole.replace(b'format\\": 2', b'format\\": 3'))
    with pytest.raises(InputError, match=r"format 3.*reads format 2"):
        training().load(tmp_path)


@pytest.mark.parametrize(
    ("order", "optimizer"),
    [("shuffled", SGD(learning_rate=0.05, momentum=0.9)), ("by-user", Adam(learning_rate=0.01))],
)
def test_central_training_learns_and_resumes(order, optimizer, tmp_path):
    data = federation([20] * 20, learnable=True)

    def central():
        return CentralTraining(
            model=mlp(), data=data, rounds=6, steps=50, optimizer=optimizer, order=order, test=data, evaluate_every=3
        )

    whole = central()
    spy = Spy(View("model", every=2))
    whole.audits = (spy,)
    whole.run()
    assert whole.history[-1]["accuracy"] > 0.85
    assert [release.round for release in spy.seen] == [1, 3, 5]
    central().run(until=4, checkpoints=tmp_path)
    resumed = central().load(tmp_path)
    resumed.run()
    assert same(whole, resumed)
    assert whole.claim(1e-5).epsilon == math.inf


def test_central_batches_follow_the_order_asked_for(monkeypatch):
    data = federation([5] * 8)
    data.targets[:] = np.arange(40) % 3
    batches = []

    def recorded(batch, *arguments, **options):
        batches.append(batch.inputs)
        return tensors(batch, *arguments, **options)

    monkeypatch.setattr("coalmine.simulation.training.tensors", recorded)
    for order, users_in_batch in (("by-user", 1), ("shuffled", None)):
        batches.clear()
        CentralTraining(model=mlp(), data=data, rounds=2, steps=4, batch_size=5, order=order).run()
        of_users = {data.client(i).inputs.tobytes() for i in range(8)}
        assert ({batch.tobytes() for batch in batches} == of_users) is (users_in_batch == 1)
        everything = np.concatenate(batches)
        assert sorted(map(bytes, everything)) == sorted(map(bytes, data.inputs))


def test_central_training_refuses_an_order_it_does_not_know():
    with pytest.raises(InputError, match="order must be shuffled or by-user, got 'sorted'"):
        CentralTraining(model=mlp(), data=DATA, rounds=1, order="sorted")


def test_a_rerun_goes_on_from_its_own_checkpoint(tmp_path):
    whole = finished()
    training().run(until=3, checkpoints=tmp_path)
    again = training()
    rounds = []
    again.run(checkpoints=tmp_path, progress=lambda metrics: rounds.append(metrics["round"]))
    assert rounds == [3, 4, 5]
    assert same(whole, again)
    with pytest.raises(InputError, match=r"seed is 3.* 4 here"):
        training(seed=4).run(checkpoints=tmp_path)
    with pytest.raises(InputError, match="checkpoint after round 6, past 2"):
        training().run(until=2, checkpoints=tmp_path)


def test_a_checkpoint_of_other_clients_another_model_or_other_audits_is_refused(tmp_path):
    training().run(until=1, checkpoints=tmp_path)
    shuffled = replace(DATA, rows=np.arange(len(DATA.inputs))[::-1].copy())
    with pytest.raises(InputError, match="data is"):
        training(data=shuffled).load(tmp_path)
    with pytest.raises(InputError, match="the initial model is"):
        training(model=mlp(seed=1)).load(tmp_path)
    with pytest.raises(InputError, match=r"audits is \[\].*\[Spy\] here"):
        training(audits=[Spy()]).load(tmp_path)
    with pytest.raises(InputError, match=r"kind is Training.*CentralTraining here"):
        CentralTraining(model=mlp(), data=DATA, rounds=6).load(tmp_path)


class Counter(Audit):
    """Remembers how much it has seen."""

    views = (View("update"),)
    count = 0

    def record(self, release):
        self.count += 1

    def state(self):
        return {"count": np.array(self.count)}

    def restore(self, state):
        self.count = int(state["count"])


def test_a_checkpoint_keeps_what_the_audits_must_remember(tmp_path):
    training(audits=[Spy(), Counter()]).run(until=4, checkpoints=tmp_path)
    counter = Counter()
    training(audits=[Spy(), counter]).load(tmp_path).run()
    assert counter.count == 6


def test_a_checkpoint_that_cannot_be_written_raises_an_input_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        training().run(checkpoints=tmp_path / "file")


def test_a_model_that_diverges_is_noticed_in_its_own_round():
    run = training(server=SGD(learning_rate=1e30), test=DATA, evaluate_every=1)
    with pytest.raises(InputError, match="diverged in round 0"):
        run.run()
    assert run.state.round == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": None}, "data must be FederatedData"),
        ({"sampling": 0.5}, "sampling must be.*got float"),
        ({"sampling": Poisson}, "sampling must be.*got type"),
        ({"audits": Spy()}, "audits must be a list"),
        ({"audits": [3]}, "an audit must be an object of a subclass of coalmine.protocol.Audit, got int"),
    ],
)
def test_arguments_of_the_wrong_type_raise(changes, message):
    with pytest.raises(InputError, match=message):
        training(**changes)


def test_a_resumed_training_reads_the_same_memory_layout(tmp_path):
    data = federation([1], shape=(100,), classes=10)
    torch.manual_seed(0)
    model = nn.Linear(100, 10)
    run = {"model": model, "data": data, "test": None, "evaluate_every": None, "client": LocalTraining()}
    whole = finished(**run)
    training(**run).run(until=2, checkpoints=tmp_path)
    rest = training(**run).load(tmp_path)
    assert rest.state.model.data_ptr() % 64 == 0  # the last bits of a product may depend on it
    rest.run()
    assert same(whole, rest)


def test_a_huge_learning_rate_raises_an_input_error():
    for kernel in ({}, {"batch_size": 4}):
        run = training(client=LocalTraining(optimizer=SGD(learning_rate=1e20), **kernel), mechanism=Mechanism())
        with pytest.raises(InputError, match="aborted"):
            run.run()


def test_central_training_refuses_what_it_cannot_plant():
    dim = training().dim
    for spy in (Spy(plants=lambda *_: Contribution(np.zeros(dim, dtype=np.float32))), Spy(frozen=1)):
        with pytest.raises(InputError, match="Spy inserts updates"):
            CentralTraining(model=mlp(), data=DATA, rounds=3, steps=2, audits=[spy]).run()


def test_federated_test_data_is_evaluated_as_all_examples_of_its_clients():
    two_clients = DATA.subset([2, 5])
    module = mlp()
    assert evaluate(module, DATA.task, two_clients) == evaluate(module, DATA.task, two_clients.pooled())
    assert evaluate(module, DATA.task, two_clients) != evaluate(module, DATA.task, DATA)


def test_a_module_that_keeps_something_of_what_it_sees_gives_the_same_bits(tmp_path):
    torch.manual_seed(0)
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(64, 3))
    model = nn.Sequential(nn.Flatten(), layer)
    for kernel in KERNELS.values():
        one, two = finished(model=model, **kernel), finished(model=model, workers=2, **kernel)
        assert one.kernel == "LeanLoop"
        assert same(one, two)


@pytest.mark.parametrize("seed", range(4))
def test_dropout_never_goes_to_a_kernel_that_does_not_seed_it(seed):
    model = nn.Sequential(*mlp()[:3], nn.Dropout(0.01), mlp()[3])
    data = federation([1] * 12)
    torch.manual_seed(seed)
    run = training(model=model, data=data, test=None, client=LocalTraining())
    assert run.kernel == "LeanLoop"


def test_a_central_training_of_many_tensors_resumes(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), *[nn.Linear(8, 8) for _ in range(6)], nn.Linear(8, 3))

    def central():
        optimizer = SGD(learning_rate=0.1, momentum=0.9)
        return CentralTraining(model=model, data=DATA, rounds=4, steps=5, batch_size=4, optimizer=optimizer)

    whole = central()
    whole.run()
    central().run(until=2, checkpoints=tmp_path)
    resumed = central().load(tmp_path)
    resumed.run()
    assert same(whole, resumed)


def test_an_audit_cannot_write_into_the_training():
    class Vandal(Audit):
        views = (View("model"), View("update"))

        def record(self, release):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's, that the array is not writable
                torch.from_numpy(release.vector).zero_()

    model = finished().state.model
    assert torch.equal(finished(audits=[Vandal()]).state.model, model)


def test_an_audits_own_coins_differ_from_training_to_training():
    class Gambler(Audit):
        def __init__(self):
            self.coins = []

        def plant(self, round, *, clip_norm, trial=None):
            self.coins.append(float(torch.rand(())))

    gamblers = [Gambler(), Gambler()]
    for run in [training(audits=[gambler]) for gambler in gamblers]:
        run.run()
    assert len(set(gamblers[0].coins + gamblers[1].coins)) == 12


def test_an_audits_frozen_rounds_do_not_depend_on_others():
    alone, accompanied = Spy(frozen=2), Spy(frozen=2)
    training(audits=[alone]).run(until=2)
    training(audits=[accompanied, Spy(View("model"))]).run(until=2)
    for release, other in zip(alone.seen, accompanied.seen, strict=True):
        np.testing.assert_array_equal(release.vector, other.vector)


def test_an_empty_round_leaves_an_adaptive_clip_norm_alone():
    run = finished(sampling=Scheduled([[0], [], [1], [2], [3], [4]]))
    assert run.history[2]["clip_norm"] == run.history[1]["clip_norm"]


def test_a_schedule_of_broken_numbers_is_refused():
    with pytest.raises(InputError, match="a participant in the schedule must be a whole number"):
        Scheduled([[0.7, 1.9]])
