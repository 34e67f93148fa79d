"""Replay: correct aggregations pass, each bug is found, and nothing is left behind."""

import json
import random
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

import coalmine as cm
from coalmine.checks.findings import Moved, Replay
from coalmine.errors import InputError
from coalmine.results.summary import causes
from coalmine.testing import assert_sensitivity
from replay_aggregations import DIM, C, Mean, Z, clients, clip, layered, layered_sum, norm_of, weighted


def run(release, people=None, *, clip_norm=C, noise_multiplier=Z, **options):
    people = clients() if people is None else people
    options = cm.checks.ReplayOptions(**options)
    return cm.replay(release, people, clip_norm=clip_norm, noise_multiplier=noise_multiplier, options=options)


def checks(result):
    return {finding.check for finding in result.findings if finding.refutes}


# Correct aggregations


def _sum(rng):
    return lambda updates: sum(clip(u) for u in updates) + rng.normal(0, Z * C, DIM)


def _mean_of_present(rng):
    return lambda updates: np.mean([clip(u) for u in updates], axis=0) + rng.normal(0, Z * C / len(updates), DIM)


def _each_client_adds_noise(rng):
    return lambda updates: sum(clip(u) + rng.normal(0, Z * C / np.sqrt(len(updates)), DIM) for u in updates)


def _capped_weights(rng):
    def release(people):
        return sum(clip(u) * min(max(n, 0), 50) / 50 for u, n in people) + rng.normal(0, Z * C, DIM)

    return release


def _generator_of_its_own(_):
    return lambda updates: sum(clip(u) for u in updates) + np.random.default_rng().normal(0, Z * C, DIM)


def _torch(_):
    def release(updates):
        factors = [1 / max(1.0, float(u.norm()) / C) for u in updates]
        return sum(f * u for f, u in zip(factors, updates, strict=True)) + Z * C * torch.randn(DIM)

    return release


def _model_in_a_closure(rng):
    model = np.zeros(DIM)

    def release(updates):
        nonlocal model
        model = model + (sum(clip(u) for u in updates) + rng.normal(0, Z * C, DIM)) / 6
        return model

    return release


def _momentum_after_noise(rng):
    momentum = np.zeros(DIM)

    def release(updates):
        momentum[:] = 0.9 * momentum + sum(clip(u) for u in updates) + rng.normal(0, Z * C, DIM)
        return momentum.copy()

    return release


def _adaptive_clip_norm(rng):
    """The clip norm of the next round depends on a noisy count, that of this round does not."""
    state = {"norm": C}

    def release(updates):
        norm = state["norm"]
        short = sum(np.linalg.norm(u) <= norm for u in updates) + rng.normal(0, 100)
        total = sum(clip(u, norm) for u in updates) + rng.normal(0, Z * norm, DIM)
        state["norm"] = norm * np.exp(-0.2 * (short / 100 - 0.5))
        return total

    return release


def _tree(rng):
    """Prefix sums with noise from a binary tree. A client of one round is in at most two nodes of two rounds."""
    state = {"round": 0, "total": 0.0, "nodes": {}}

    def release(updates):
        state["round"] += 1
        state["total"] = state["total"] + sum(clip(u) for u in updates)
        t, noise, start = state["round"], np.zeros(DIM), 0
        for level in reversed(range(8)):
            if t & (1 << level):
                node = (level, start)
                if node not in state["nodes"]:
                    state["nodes"][node] = rng.normal(0, np.sqrt(2) * Z * C, DIM)
                noise, start = noise + state["nodes"][node], start + (1 << level)
        return state["total"] + noise

    return release


def _sampled_by_the_server(rng):
    return lambda updates: sum((rng.random() < 0.5) * clip(u) for u in updates) + rng.normal(0, Z * C, DIM)


CORRECT = [
    _sum, _mean_of_present, _sampled_by_the_server, _each_client_adds_noise, _generator_of_its_own, _model_in_a_closure,
    _momentum_after_noise, _adaptive_clip_norm, _tree,
]  # fmt: skip


@pytest.mark.parametrize("make", CORRECT, ids=lambda make: make.__name__.strip("_"))
def test_a_correct_aggregation_is_not_refuted(make):
    result = run(make(np.random.default_rng(0)), rounds=2 if make is _tree else 3)
    assert result.ok, str(result)


def test_a_correct_aggregation_of_other_kinds_of_clients_is_not_refuted():
    rng = np.random.default_rng(0)
    assert run(_capped_weights(rng), weighted()).ok
    assert run(_torch(rng), [torch.tensor(u, dtype=torch.float32) for u in clients()]).ok
    assert run(lambda people: layered_sum(people, rng), layered()).ok
    assert run(
        lambda people: [layered_sum([p.update for p in people], rng)], [cm.checks.Client(u) for u in layered()]
    ).ok


def test_no_alarm_in_random_correct_aggregations():
    """False-alarm probability of the test: at most 15 times 0.1% by the union bound, for this fixed seed once."""
    rng, refuted = np.random.default_rng(5), []
    for index in range(15):
        dim, count = int(rng.integers(20, 300)), int(rng.integers(1, 6))
        norm, z = float(np.exp(rng.normal())), float(np.exp(rng.normal()))
        divisor = [1.0, float(count), None][index % 3]
        people = [rng.normal(0, norm * float(np.exp(rng.normal())) / np.sqrt(dim), dim) for _ in range(count)]

        def release(updates, rng, norm=norm, z=z, dim=dim, divisor=divisor):
            total = sum(clip(u, norm) for u in updates) + rng.normal(0, z * norm, dim)
            return total / (divisor or len(updates))

        result = run(release, people, clip_norm=norm, noise_multiplier=z, seed=index, rounds=1)
        refuted += [] if result.ok else [(index, str(result))]
    assert refuted == []


def test_few_coordinates_that_are_rounded_after_the_noise_are_no_finding():
    """False-alarm probability of the test: at most 12 times 0.1% by the union bound, for these seeds once."""
    rng = np.random.default_rng(0)
    people = [rng.normal(0, 1.0, 3) for _ in range(4)]
    alarms = []
    for seed in range(12):
        result = run(
            lambda us, rng: np.round((sum(clip(u) for u in us) + rng.normal(0, Z * C, 3)) / C) * C, people, seed=seed
        )
        alarms += [] if result.ok else [(seed, str(result))]
    assert alarms == []


# Bugs


def _noise(rng, scale=Z * C, size=DIM):
    return rng.normal(0, scale, size)


def _batch_norm(people, rng):
    total = layered_sum([{k: v for k, v in p.items() if k != "steps"} for p in people], rng)
    return {**total, "steps": np.sum([p["steps"] for p in people])}


def _remembers(rng):
    momentum = np.zeros(DIM)

    def release(updates):
        momentum[:] = 0.9 * momentum + sum(clip(u) for u in updates)
        return momentum + _noise(rng)

    return release


def _feeds_back_what_clipping_cut_off(rng):
    left = np.zeros(DIM)

    def release(updates):
        total = left + sum(clip(u) for u in updates)
        left[:] = sum(u - clip(u) for u in updates)
        return total + _noise(rng)

    return release


def _same_noise_each_round(rng):
    kept = []

    def release(updates):
        kept[:] = kept or [_noise(rng)]
        return sum(clip(u) for u in updates) + kept[0]

    return release


def _by_position(people, rng):
    """Weights arrays by position, as a list of learning rates would, and adds them up by key."""
    total = {}
    for person in people:
        scaled = [part * rate for part, rate in zip(person.values(), (1.0, 0.01), strict=True)]
        factor = 1 / max(1.0, float(np.sqrt(scaled[0] @ scaled[0] + scaled[1] @ scaled[1])) / C)
        for key, part in zip(person, scaled, strict=True):
            total[key] = total.get(key, 0.0) + part * factor
    # "b" is small, so its noise is.
    return {"a": total["a"] + _noise(rng, size=60), "b": total["b"] + _noise(rng, 0.01 * Z * C, size=60)}


BUGS = {
    "no clipping": (lambda rng: lambda u: sum(u) + _noise(rng), "clipping"),
    "clipping by the largest entry": (
        lambda rng: lambda us: sum(u / max(1.0, np.max(np.abs(u)) / C) for u in us) + _noise(rng), "clipping"),
    "clipping each entry": (lambda rng: lambda us: sum(np.clip(u, -C, C) for u in us) + _noise(rng), "clipping"),
    "twice the clip norm": (lambda rng: lambda us: sum(clip(u, 2 * C) for u in us) + _noise(rng), "clipping"),
    "squared norm": (
        lambda rng: lambda us: sum(u / max(1.0, np.sqrt(np.linalg.norm(u) / C)) for u in us) + _noise(rng), "clipping"),
    "half the noise": (lambda rng: lambda us: sum(clip(u) for u in us) + _noise(rng, Z * C / 2), "size of the noise"),
    "variance for standard deviation": (
        lambda rng: lambda us: sum(clip(u) for u in us) + _noise(rng, np.sqrt(Z * C / 2)), "size of the noise"),
    "noise divided twice": (
        lambda rng: lambda us: sum(clip(u) for u in us) / 6 + _noise(rng, Z * C / 36), "size of the noise"),
    "noise on every tensor": (lambda rng: lambda us: sum(clip(u) for u in us), "size of the noise"),
    "a fixed seed": (
        lambda rng: lambda us: sum(clip(u) for u in us) + np.random.default_rng(3).normal(0, Z * C, DIM),
        "size of the noise"),
    "one draw for all coordinates": (lambda rng: lambda us: sum(clip(u) for u in us) + rng.normal(0, Z * C),
                                     "size of the noise"),
    "half of the coordinates": (
        lambda rng: lambda us: sum(clip(u) for u in us) + _noise(rng) * (np.arange(DIM) % 2), "noise on every tensor"),
    "normalized by the others": (
        lambda rng: lambda us: sum(us) * C / max(np.linalg.norm(u) for u in us) + _noise(rng), "other clients"),
    "clips the sum": (lambda rng: lambda us: clip(sum(us), len(us) * C) + _noise(rng), "clipping"),
    "median": (lambda rng: lambda us: np.median([clip(u) for u in us], axis=0) + _noise(rng, Z * C / 7),
               "other clients"),
    "divides by those who reply": (
        lambda rng: lambda us: np.mean([clip(u) for u in us], axis=0) + _noise(rng, Z * C / 7), "dropouts"),
    "noise from the data": (
        lambda rng: lambda us: sum(clip(u) for u in us)
        + _noise(rng, Z * np.median([np.linalg.norm(clip(u)) for u in us])), "other clients"),
    "momentum before noise": (_remembers, "memory"),
    "what clipping cut off comes back": (_feeds_back_what_clipping_cut_off, "memory"),
    "the same noise in every round": (_same_noise_each_round, "memory"),
    "clips one update only once": (
        lambda rng: lambda us: sum(u if i == len(us) - 1 else clip(u) for i, u in enumerate(us)) + _noise(rng),
        "clipping"),
    "the first update is not clipped": (
        lambda rng: lambda us: sum(u if i == 0 else clip(u) for i, u in enumerate(us)) + _noise(rng), "sensitivity"),
    "the middle update counts twice": (
        lambda rng: lambda us: sum(clip(u) for u in [*us, us[len(us) // 2]]) + _noise(rng), "sensitivity"),
    "weights 1/q": (
        lambda rng: lambda us: sum(2 * (rng.random() < 0.5) * clip(u) for u in us) + _noise(rng), "sensitivity"),
    "zeros below 3 updates": (
        lambda rng: lambda us: (sum(clip(u) for u in us) + _noise(rng)) * (sum(u.any() for u in us) >= 3),
        "noise on every tensor"),
}  # fmt: skip


def _largest_by_data(updates, rng):
    """Keeps the largest quarter of the numbers, chosen before the noise."""
    total = sum(clip(u) for u in updates)
    kept = np.argsort(-np.abs(total))[: DIM // 4]
    released = np.zeros(DIM)
    released[kept] = (total + _noise(rng))[kept]
    return released


def _bare_outliers(updates, rng):
    total = sum(clip(u) for u in updates)
    return np.where(np.abs(total) > C / 4, total, total + _noise(rng))


class _Late:
    """Releases what a client sent once more, two rounds later."""

    def __init__(self):
        self.totals = []

    def __call__(self, updates, rng):
        self.totals.append(sum(clip(u) for u in updates))
        return self.totals[-1] + (self.totals[-3] if len(self.totals) > 2 else 0.0) + _noise(rng)


@pytest.mark.parametrize(
    ("release", "check"),
    [
        (_largest_by_data, "noise on every tensor"),
        (_bare_outliers, "noise on every tensor"),
        (_Late(), "memory"),
    ],
    ids=["largest by data", "outliers without noise", "two rounds later"],
)
def test_bugs_that_show_only_in_some_places_are_found(release, check):
    assert check in checks(run(release))


@pytest.mark.parametrize("after", [np.sign, lambda noisy: np.where(np.abs(noisy) > 2 * Z * C, noisy, 0.0)])
def test_what_is_done_after_the_noise_is_no_finding(after):
    """False-alarm probability at most 0.1% each, once for this seed."""
    assert run(lambda updates, rng: after(sum(clip(u) for u in updates) + _noise(rng))).ok


@pytest.mark.parametrize("name", BUGS)
def test_each_bug_is_found(name):
    make, check = BUGS[name]
    result = run(make(np.random.default_rng(0)))
    assert not result.ok
    assert check in checks(result), str(result)


def _krum(updates, rng):
    """Releases the update that is nearest to the others."""
    clipped = [clip(u) for u in updates]
    distances = [sum(np.linalg.norm(one - other) for other in clipped) for one in clipped]
    return clipped[int(np.argmin(distances))] + _noise(rng, Z * C / len(updates))


def _sized_by_sum(updates, rng):
    total = sum(clip(u) for u in updates)
    return total + _noise(rng, Z * np.linalg.norm(total))


TOO_FAR = "client moves the release too far"


@pytest.mark.parametrize(
    ("release", "faults"),
    [
        (lambda us, rng: sum(clip(u) for u in us) / len(us) + _noise(rng, Z * C / len(us) / 2), ["too little noise"]),
        (lambda us, rng: 5 * sum(clip(u) for u in us) / len(us) + _noise(rng, Z * C / len(us)), [TOO_FAR]),
        (_krum, [TOO_FAR]),
        (_sized_by_sum, ["wrong kind of noise"]),
    ],
    ids=["half the noise", "five local steps", "one chosen client", "noise that depends on clients"],
)
def test_the_fault_is_named_the_movement_or_the_noise(release, faults):
    result = run(release)
    assert [cause.finding.fault for cause in causes(result.findings) if cause.finding.refutes] == faults, str(result)


WEIGHT_BUGS = {
    "weights by examples": lambda people, rng: np.average(
        [clip(u) for u, _ in people], axis=0, weights=[n for _, n in people]) + _noise(rng, Z * C / len(people)),
    "clips before it weights": lambda people, rng: sum(clip(u) * n / 20 for u, n in people) + _noise(rng),
    "one step per example": lambda people, rng: sum(clip(u) * min(n, 1000) / 20 for u, n in people) + _noise(rng),
}  # fmt: skip


@pytest.mark.parametrize("name", WEIGHT_BUGS)
def test_weights_that_the_noise_does_not_cover_are_found(name):
    rng = np.random.default_rng(0)
    result = run(lambda people: WEIGHT_BUGS[name](people, rng), weighted())
    assert "examples" in checks(result), str(result)
    assert "examples = " in next(f.sentence for f in result.findings if f.check == "examples")


LAYER_BUGS = {
    "scalars are not clipped": ({"clipped": {"weight", "bias"}}, "one array"),
    "biases are not clipped": ({"clipped": {"weight", "scale"}}, "one array"),
    "each array is clipped by itself": ({"per_array": True}, "clipping"),
    "no noise on biases": ({"noised": {"weight", "scale"}}, "noise on every tensor"),
    "no noise on scalars": ({"noised": {"weight", "bias"}}, "noise on every tensor"),
}


@pytest.mark.parametrize("name", LAYER_BUGS)
def test_bugs_in_one_array_are_found(name):
    rng, (settings, check) = np.random.default_rng(0), LAYER_BUGS[name]
    result = run(lambda people: layered_sum(people, rng, **settings), layered())
    assert check in checks(result), str(result)


@pytest.mark.parametrize(
    ("count", "quantile"), [(5, 0.3), (5, 0.5), (8, 0.2), (8, 0.5), (8, 0.7), (24, 0.5), (24, 0.9)]
)
def test_a_clip_norm_that_is_a_quantile_of_the_norms_is_found(count, quantile):
    def release(updates, rng):
        norm = min(C, float(np.quantile([np.linalg.norm(u) for u in updates], quantile)))
        return sum(clip(u, max(norm, 1e-9)) for u in updates) + _noise(rng)

    assert "other clients" in checks(run(release, clients(count)))


def test_an_integer_counter_that_is_summed_is_found():
    rng = np.random.default_rng(0)
    people = [{**p, "steps": np.array(10)} for p in layered()]
    result = run(lambda p: _batch_norm(p, rng), people)
    assert "noise on every tensor" in checks(result)
    assert "'steps'" in result.findings[0].sentence


def test_what_only_hostile_clients_send_is_a_warning_unless_clients_are_hostile():
    rng = np.random.default_rng(0)

    def naive(updates):
        return sum(u * min(1.0, C / np.linalg.norm(u)) for u in updates) + rng.normal(0, Z * C, DIM)

    trusting, strict = run(naive), run(naive, hostile=True)
    assert trusting.ok
    assert "not finite" in {finding.check for finding in trusting.findings}
    assert "not finite" in checks(strict)  # min(1, nan) is 1: the rest of the update is not clipped


def test_arrays_in_another_order_are_found():
    rng = np.random.default_rng(0)
    people = [{"a": rng.normal(0, 0.1, 60), "b": rng.normal(0, 0.1, 60)} for _ in range(4)]
    honest, hostile = (run(lambda p: _by_position(p, rng), people, hostile=hostile) for hostile in (False, True))
    assert "order" not in checks(honest)
    finding = next(finding for finding in hostile.findings if finding.check == "order")
    assert finding.refutes
    assert "whose arrays come in another order" in finding.sentence


def test_without_noise_movements_are_compared_with_the_clip_norm():
    assert run(lambda us: sum(clip(u) for u in us) / 6, noise_multiplier=None).ok
    result = run(lambda us: sum(us) / 6, noise_multiplier=0)
    assert "clipping" in checks(result)
    assert result.unit == pytest.approx(C / 6)


def test_a_client_who_is_counted_matters_only_if_the_number_of_clients_is_secret():
    release = _mean_of_present(np.random.default_rng(0))
    public, secret = run(release), run(release, adjacency="add-remove")
    assert public.ok
    assert not secret.ok


def test_the_users_own_client_is_tried():
    rng = np.random.default_rng(0)

    def release(updates):  # trusts an update that begins with a magic number
        return sum(u if u[0] == 42.0 else clip(u) for u in updates) + rng.normal(0, Z * C, DIM)

    magic = np.full(DIM, 42.0)
    assert run(release).ok
    assert "given clients" in checks(run(release, [magic, *clients()]))


# Numbers


def test_movements_agree_with_the_closed_form():
    """A client at the clip norm moves the mean by C/m: 1/z standard deviations of its noise, within 4%: five errors."""
    result = run(Mean())
    row = result.moved[0]
    assert row.clip_norms == pytest.approx(1.0, abs=1e-9)
    assert row.excess == pytest.approx(1.0, rel=0.04)
    assert result.noise == pytest.approx(Z * C / 6, rel=0.04)
    assert result.unit == pytest.approx(C / 6)


@pytest.mark.parametrize("factor", [1.5, 3.0, 34.7])
def test_the_excess_is_the_factor_by_which_a_client_exceeds_the_claim(factor):
    result = run(Mean(norm=factor * C))
    finding = next(f for f in result.findings if f.check == "clipping")
    assert finding.refutes
    assert result.worst == pytest.approx(factor, rel=0.04)


def test_a_small_excess_in_one_number_is_found_by_more_draws():
    """Dense updates hardly show it, and the first draws know the noise of one number within a factor of 5."""

    def release(updates, rng):
        total = sum(clip(u) for u in updates)
        total[-1] *= 2.5
        return total + rng.normal(0, Z * C, 2000)

    result = run(release, clients(4, dim=2000), rounds=1)
    assert "one coordinate" in checks(result)
    assert result.worst == pytest.approx(2.5, rel=0.3)


def test_a_divisor_is_measured_unless_it_is_given():
    measured, given = run(Mean(), noise_multiplier=2 * Z), run(Mean(noise=Z / 2), divisor=12)
    assert measured.unit == pytest.approx(C / 6)
    assert "covers 0.5" in measured.findings[0].sentence
    assert given.unit == C / 12
    assert not given.ok


def test_a_quick_replay_takes_fewer_runs_and_finds_a_missing_clip():
    broken, correct = (run(Mean(norm=norm), quick=True) for norm in (9 * C, C))
    assert "clipping" in checks(broken)
    assert correct.ok
    assert correct.calls < run(Mean()).calls / 2


def test_a_client_may_hold_plain_numbers():
    """A float without a name of a count is part of the update."""

    def release(people, rng):
        return sum(clip(p["update"]) * p["loss"] for p in people) + _noise(rng)

    assert "clipping" in checks(run(release, [{"update": u, "loss": 1.0} for u in clients()]))


def test_an_interrupt_stops_a_replay_and_leaves_no_trace():
    random.seed(3)
    state = random.getstate()

    def release(updates):
        random.random()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(release)
    assert random.getstate() == state


def test_who_joins_has_a_name():
    result = run(Mean(norm=2 * C), who="example")
    assert "one example" in str(result)
    assert "one client" not in str(result)


# Randomness


@pytest.mark.parametrize(
    "source", ["numpy", "random", "torch", "closure", "default", "attribute", "global", "seed", "system"]
)
def test_every_source_of_randomness_is_repeated(source):
    owned = np.random.default_rng(0)
    torch_owned = torch.Generator().manual_seed(1)

    def draw(*, generator=np.random.default_rng(2), seed=None):  # noqa: B008
        match source:
            case "numpy":
                return np.random.normal(0, Z * C, DIM)  # noqa: NPY002
            case "random":
                return np.array([random.gauss(0, Z * C) for _ in range(DIM)])
            case "torch":
                return Z * C * torch.randn(DIM, generator=torch_owned).numpy()
            case "closure":
                return owned.normal(0, Z * C, DIM)
            case "default":
                return generator.normal(0, Z * C, DIM)
            case "global":
                return GLOBAL["generator"].normal(0, Z * C, DIM)
            case "system":
                return np.array([random.SystemRandom().gauss(0, Z * C) for _ in range(DIM)])
            case _:
                return np.random.default_rng(seed).normal(0, Z * C, DIM)

    def release(updates):
        return sum(clip(u) for u in updates) + draw()

    result = run({"attribute": Mean(1)}.get(source, release))
    assert result.ok
    assert result.noise == pytest.approx(Z * C, rel=0.04)


GLOBAL = {"generator": np.random.default_rng(9), "calls": 0}


def test_generators_and_state_are_left_as_they_were():
    mean = Mean()
    expected = np.random.default_rng(0).normal()
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    before = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    people = clients()
    kept = [update.copy() for update in people]

    def release(updates):
        GLOBAL["calls"] += 1
        for update in updates:
            np.multiply(update, min(1.0, C / np.linalg.norm(update)), out=update)
        return mean(updates)

    calls = GLOBAL["calls"]
    run(release, people)
    assert GLOBAL["calls"] == calls
    assert mean.rng.normal() == expected
    assert (random.getstate(), True) == (before[0], np.array_equal(np.random.get_state()[1], before[1]))  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before[2])
    assert all(np.array_equal(update, old) for update, old in zip(people, kept, strict=True))


def test_randomness_that_cannot_be_repeated_is_refused():
    def release(updates):
        return sum(clip(u) for u in updates) + np.random.default_rng(time.perf_counter_ns()).normal(0, Z * C, DIM)

    with pytest.raises(InputError, match="cannot be repeated"):
        run(release)


def test_the_same_seed_gives_the_same_replay():
    first, second, other = (run(Mean(norm=2 * C), seed=seed).to_dict() for seed in (4, 4, 5))
    assert first == second
    assert first != other
    assert json.loads(json.dumps(first)) == first


# What it says


def test_a_replay_prints_its_findings():
    text = str(run(Mean(norm=3 * C)))
    assert text.startswith("Refuted: one client moves the release by more than the noise covers")
    assert "Example: 1000 * C * v" in text
    assert "Noise:" in text


def test_what_an_example_names_can_be_built():
    """The example of a missing clip, built as the text says, is as long as the sentence says."""
    result = run(lambda updates, rng: sum(updates) + _noise(rng), seed=3)
    finding = next(finding for finding in result.findings if finding.check == "clipping")
    rng = np.random.default_rng(3)
    draw = rng.uniform(1, 1.2, DIM) * rng.choice([-1, 1], DIM)
    names = {"C": C, "v": draw / np.linalg.norm(draw)}
    assert np.linalg.norm(eval(finding.example, names)) == pytest.approx(1000 * C)
    assert "1,000 clip norms" in finding.sentence


def _without_a_guard(updates, rng):
    """Does not clip what is NaN."""
    average = sum(u * min(1.0, C / max(np.linalg.norm(u), 1e-12)) for u in updates) / len(updates)
    return average + rng.normal(0, Z * C / len(updates), DIM)


def test_a_correct_aggregation_gets_short_warnings():
    """One line each, since they are about clients that nobody may have."""
    result = run(_without_a_guard)
    assert result.ok
    assert {finding.check for finding in result.findings} == {"not finite"}
    assert len(str(result).splitlines()) == 3
    assert all(len(finding.sentence) < 200 for finding in result.findings)


def test_assert_sensitivity_raises_with_the_findings():
    assert assert_sensitivity(Mean(), clients(), clip_norm=C, noise_multiplier=Z).ok
    with pytest.raises(AssertionError, match="moved by"):
        assert_sensitivity(Mean(norm=2 * C), clients(), clip_norm=C, noise_multiplier=Z)
    with pytest.raises(AssertionError, match="Warning"):
        assert_sensitivity(_without_a_guard, clients(), clip_norm=C, noise_multiplier=Z, strict=True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"people": []}, "at least one client"),
        ({"people": ["a", "b"]}, "floating-point arrays"),
        ({"clip_norm": 0.0}, "clip_norm must be a positive number"),
        ({"noise_multiplier": -1.0}, "noise_multiplier must be at least 0"),
        ({"adjacency": "replace"}, "zero-out"),
        ({"rounds": 0}, "rounds must be a whole number"),
        ({"release": 3}, "release must be a function"),
        ({"release": lambda us: "text"}, "release must return"),
        ({"release": lambda us: 1 / 0}, "fails on the clients as they are: ZeroDivisionError"),
        ({"people": iter([1.0])}, "clients must be a list"),
        ({"people": [np.zeros(3), np.zeros(4)]}, r"clients\[1\] is \(4,\), that of clients\[0\] is \(3,\)"),
        ({"people": [{"a": np.zeros(3)}, {"b": np.zeros(3)}]}, r"'a' of clients\[1\] is missing"),
        ({"clip_norm": "1"}, "clip_norm must be a number, got '1'"),
        ({"clip_norm": [1.0]}, r"clip_norm must be a number, got \[1.0\]"),
        ({"clip_norm": None}, "clip_norm must be a number, got None"),
        ({"noise_multiplier": "2"}, "noise_multiplier must be a number"),
        ({"noise_multiplier": (1.0, 2.0)}, "noise_multiplier must be a number"),
        ({"noise_multiplier": float("inf")}, "finite"),
    ],
)
def test_bad_input_gets_a_sentence(arguments, says):
    arguments = {"release": Mean(), **arguments}
    with pytest.raises(InputError, match=says):
        run(arguments.pop("release"), arguments.pop("people", None), **arguments)


def test_norms_of_trees_are_what_the_aggregations_clip():
    assert norm_of({"a": np.array([3.0]), "b": np.array(4.0)}) == 5.0


HISTORY = [{"norms": np.ones(3)}]


def remembering(clients):
    """Changes a global at two depths in every call."""
    HISTORY[0]["norms"][:] += len(clients)
    HISTORY.append({"norms": np.zeros(3)})
    return sum(clients) + np.random.default_rng(len(HISTORY)).normal(size=3)


def test_globals_keep_their_contents_and_their_identity():
    """Whoever else refers to what a global holds finds the same objects afterwards, with the same contents."""
    first, norms = HISTORY[0], HISTORY[0]["norms"]
    run(remembering, [np.ones(3)] * 3, clip_norm=2.0, noise_multiplier=1.0, quick=True, rounds=1)
    assert [first] == HISTORY
    assert HISTORY[0] is first
    assert first["norms"] is norms
    assert norms.tolist() == [1, 1, 1]


def test_a_movement_beyond_the_noise_that_is_no_finding_is_explained():
    row = Moved(check="sensitivity", client="one client joined", example="v", excess=1.15, lower=0.97)
    assert "1.15 of that, which is within the error of the measured noise" in Replay(moved=[row], clip_norm=1.0).summary
    within = Replay(moved=[replace(row, excess=0.9, lower=0.8)], clip_norm=1.0)
    assert "(largest movement: 0.9 of that)" in within.summary
