"""What a training does after the noise refutes nothing: the canaries in a release say how large its noise must be."""

import numpy as np
import pytest
import torch

from coalmine import OneShot
from coalmine.checks.update_noise import noise_findings
from coalmine.checks.update_record import NoiseRecord
from coalmine.checks.update_shares import noise_floor
from coalmine.claims import Claim
from coalmine.layers import Layers
from coalmine.methods.one_shot.canaries import update_canaries

DIM, CLIENTS = 4000, 30


def audited(
    *, add=1.0, noise=1.0, scale=1.0, divisor=None, bare=None, layers=None, canaries=20, rounds=5, clients=CLIENTS,
):  # fmt: skip
    """A loop that adds a share of the canaries, and releases ``scale`` times the noisy mean."""
    audit = OneShot(DIM, rounds=rounds, canaries=canaries, view="updates", participation="every-round", layers=layers)
    rng = np.random.default_rng(0)
    for t in range(rounds):
        planted = audit.plant(t, clip_norm=1.0)
        sent = rng.standard_normal((clients, DIM))
        total = np.sum(sent / np.linalg.norm(sent, axis=1, keepdims=True), axis=0) + add * planted.total
        noisy = total + noise * rng.standard_normal(DIM) * (1 if bare is None else ~bare)
        update = (scale * noisy / (clients + planted.clients)).astype(np.float32)
        audit.observe(t, update=update, divisor=divisor)
    return audit.result(claim=Claim(noise_multiplier=1.0, delta=1e-5))


def test_a_correct_loop_gets_no_finding():
    assert audited().findings == []
    assert audited(layers=[3000, 1000]).findings == []


@pytest.mark.parametrize("kind", ["NumPy", "torch"])
@pytest.mark.parametrize("divides", [True, False])
def test_a_loop_may_add_its_noise_to_the_canaries_in_place(kind, divides):
    """The checks still see the canaries as planted, as in a loop that makes its own sum, and find nothing."""
    audit = OneShot(
        DIM if kind == "NumPy" else torch.zeros(DIM),
        rounds=3,
        canaries=100,
        view="updates",
        participation="every-round",
    )
    rng = np.random.default_rng(0)
    for t in range(3):
        planted = audit.plant(t, clip_norm=1.0)
        noise = rng.standard_normal(DIM).astype(np.float32)
        update = planted.total
        update += noise if kind == "NumPy" else torch.from_numpy(noise)
        if divides:
            update /= 100
        audit.observe(t, update=update, divisor=100 if divides else 1)
    record = audit._checks._noise
    assert not np.allclose(record.products.sum(axis=1) ** 2, (record.canaries * record.news).sum(axis=1))
    assert audit.result(claim=Claim(noise_multiplier=1.0, delta=1e-5)).findings == []


def test_canaries_that_were_never_added_are_missed():
    result = audited(add=0.0)
    (finding,) = result.findings
    assert "use a view that shows more" not in str(result)
    assert finding.check == "canaries in the releases"
    assert not finding.refutes
    assert "they are not in the sum that is released (planted.total" in str(finding)


@pytest.mark.parametrize("strength", [0.5, 1.0])
def test_clients_that_push_canaries_out_of_the_model_are_no_reason_to_miss_them(strength):
    """Clients with a quadratic loss undo what canaries did, so that in later rounds the sums contain none of them."""
    audit = OneShot(DIM, rounds=30, canaries=20, view="updates", participation="every-round")
    rng, model, optimum = np.random.default_rng(0), np.zeros(DIM), np.zeros(DIM)
    for t in range(30):
        planted = audit.plant(t, clip_norm=1.0)
        step = strength * (optimum - model)
        total = 100 * step / max(1.0, np.linalg.norm(step)) + planted.total + rng.standard_normal(DIM)
        update = (total / 120).astype(np.float32)
        model += update
        audit.observe(t, update=update, divisor=120.0)
    assert audit.result(claim=Claim(noise_multiplier=1.0, delta=1e-5)).findings == []


def test_canaries_that_much_more_than_the_claimed_noise_hides_refute_nothing():
    """With a hundred times the noise, the share is 0 within its error whether or not canaries were added."""
    assert not audited(noise=100.0).refuted


def momentum(update, state):
    state["momentum"] = 0.9 * state.get("momentum", 0.0) + update
    return state["momentum"]


def nesterov(update, state):
    return 0.9 * momentum(update, state) + update


def average(update, state):
    before = state.get("average", 0.0)
    state["model"] = state.get("model", 0.0) + update
    state["average"] = 0.99 * before + 0.01 * state["model"]
    return state["average"] - before


def adam(update, state):
    state["first"] = 0.9 * state.get("first", 0.0) + 0.1 * update
    state["second"] = 0.99 * state.get("second", 0.0) + 0.01 * update**2
    return state["first"] / (np.sqrt(state["second"]) + 1e-9)


def largest(update, _):
    return np.where(np.abs(update) >= np.quantile(np.abs(update), 0.9), update, 0.0)


SMALL = Layers.of({"a": 1500, "b": 40, "c": 12})


def moving(rounds):
    """A server that releases the mean of its last noisy sums."""

    def server(x, state):
        state["past"] = [x, *state.get("past", [])][:rounds]
        return np.mean(state["past"], axis=0)

    return server


def decayed(x, state):
    before = state.get("model", 0.0)
    state["model"] = 0.8 * before + x
    return state["model"] - before


def accumulated(x, state):
    """Release the sum of every three rounds."""
    state["sum"], state["round"] = state.get("sum", 0.0) + x, state.get("round", 0) + 1
    return state.pop("sum") if state["round"] % 3 == 0 else 0.0 * x


def owed(x, state):
    """Release the largest twentieth, and add what was left out to the next sum."""
    total = state.get("owed", 0.0) + x
    released = np.where(np.abs(total) >= np.quantile(np.abs(total), 0.95), total, 0.0)
    state["owed"] = total - released
    return released


LINEAR = {
    "as it is": lambda x, _: x,
    "mean of 2": moving(2),
    "mean of 3": moving(3),
    "mean of 5": moving(5),
    "momentum": momentum,
    "Nesterov momentum": nesterov,
    "average of models": average,
    "weight decay": decayed,
    "warmup": lambda x, state: state.setdefault("rates", list(np.linspace(1, 0.1, 30))).pop() * x,
    "sums of 3 rounds": accumulated,
}
OTHERS = {
    "Adam": adam,
    "the largest tenth": largest,
    "error feedback": owed,
    "median of 3": lambda x, state: np.median(state.setdefault("past", []).append(x) or state["past"][-3:], axis=0),
    "signs": lambda x, _: np.sign(x),
}
AWKWARD = {
    "plain": {},
    "3 rounds": {"rounds": 3},
    "Gaussian canaries": {"family": "gaussian"},
    "Poisson participation": {"sampling": 0.5},
    "strong clients": {"clients": 3.0},
    "heavy-tailed clients": {"tails": 2.0},
}
SLOW = [
    pytest.param(server, case, marks=() if "plain" in case and server == "mean of 3" else pytest.mark.slow)
    for server in (*LINEAR, *OTHERS)
    for case in AWKWARD
]


@pytest.mark.parametrize(("server", "case"), SLOW)
def test_limits_on_the_noise_hold_whatever_the_server_and_the_clients_do(server, case):
    """At a level of 5%, limits exceed the noise in at most 5% of 60 runs, and four checks refute in at most 20%.

    Exceeding that by four standard errors has a probability of 3e-5 each.
    """
    broken, refuted = limited(server, **AWKWARD[case])
    assert broken <= 0.05 + 4 * np.sqrt(0.05 * 0.95 / 60)
    assert refuted <= 0.2 + 4 * np.sqrt(0.2 * 0.8 / 60)


def limited(name, *, rounds=15, clients=1.0, family="hadamard", sampling=1.0, tails=None, level=0.05, runs=60):
    """Return the shares of runs in which a limit exceeds the noise that a server releases, and of those refuted.

    The signal of the clients is mostly the same in all rounds, and shrinks. Tensors have factors of their own.
    """
    server, broken, refuted = (LINEAR | OTHERS)[name], 0, 0
    factors = np.array([1.0, 5.0, 0.2])
    # What a linear server makes of noise in each round: what it makes of unit vectors.
    state, gains = {}, np.full(rounds, np.inf)
    for t in range(rounds):
        released = server(np.eye(rounds)[t], state) if name in LINEAR else np.zeros(rounds)
        gains[t] = np.linalg.norm(released) or np.inf
    for seed in range(runs):
        rng, state = np.random.default_rng(seed), {}
        canaries = update_canaries(family, dim=SMALL.dim, count=40, seed=seed)
        planted = canaries.total(np.ones(40))
        signal = clients * rng.standard_normal(SMALL.dim) * np.linspace(0.1, 1, SMALL.dim)
        record = NoiseRecord(SMALL, rounds, seed)
        for t in range(rounds):
            if sampling < 1:
                planted = canaries.total(1.0 * (rng.random(40) < sampling))
            sent = rng.standard_normal(SMALL.dim) if tails is None else rng.standard_t(tails, SMALL.dim)
            sent = 0.9**t * (signal + 0.3 * clients * sent)
            update = server(sent + planted + rng.standard_normal(SMALL.dim), state)
            update = np.repeat(factors, SMALL.sizes) * update
            record.add(t, update.astype(np.float32), planted.astype(np.float32), norm=1.0)
        floor = noise_floor(record, np.ones(record.bins), level)
        seen = record.counts > 0
        truth = np.multiply.outer(gains[seen] / record.norms[seen], factors)  # in units of each update
        # The typical noise of a tensor is compared with that of all rounds together.
        usual = np.sqrt(np.mean(truth**2, axis=0))
        broken += bool((floor.typical[seen].mean(axis=0) > usual).any() or (floor.of_round[seen] > truth).any())
        refuted += any(finding.refutes for finding in noise_findings(record, floor, level))
    return broken / runs, refuted / runs


@pytest.mark.parametrize("layers", [None, [3000, 1000]])
@pytest.mark.parametrize("scale", [1e-3, 0.5, 8.0, 120.0])
def test_a_common_factor_is_no_finding_whatever_the_divisor(scale, layers):
    for divisor in (None, 1.0, CLIENTS):
        assert audited(scale=scale, divisor=divisor, layers=layers, canaries=100).findings == []


AFTER = {
    "momentum": momentum,
    "Nesterov momentum": nesterov,
    "average of models": average,
    "Adam": adam,
    "the largest tenth": largest,
    "a random tenth": lambda update, state: np.where(np.random.default_rng().random(DIM) < 0.1, update, 0.0),
    "a tensor left out": lambda update, _: np.where(np.arange(DIM) < 3000, update, 0.0),
    "rate of each layer": lambda update, _: np.where(np.arange(DIM) < 3000, update, 10 * update),
    "clipped": lambda update, _: np.clip(update, -2 * np.std(update), 2 * np.std(update)),
    "signs": lambda update, _: np.sign(update),
    "four bits": lambda update, _: np.round(4 * update / np.std(update)),
    "normalized": lambda update, _: update / np.linalg.norm(update),
}


@pytest.mark.parametrize("participation", ["every-round", "poisson:0.5"])
@pytest.mark.parametrize("name", AFTER)
def test_what_happens_after_the_noise_refutes_nothing(name, participation):
    """False-alarm probability at most 0.1% each, once for this seed. All canaries take part, or half of them."""
    assert not processed(AFTER[name], participation=participation).bugs


def processed(after, *, participation="every-round", noise=lambda rng, t, state: rng.standard_normal(DIM), rounds=12):
    """A loop whose noise is on the sum, and which releases what ``after`` makes of it."""
    audit = OneShot(
        DIM, rounds=rounds, canaries=200, view="updates", participation=participation, layers=[3000, 1000]
    )  # fmt: skip
    rng, state, drawn = np.random.default_rng(0), {}, {}
    signal = 0.1 * rng.standard_normal(DIM)
    for t in range(rounds):
        planted = audit.plant(t, clip_norm=1.0)
        update = (signal + planted.total + noise(rng, t, drawn)) / 230
        audit.observe(t, update=after(update, state).astype(np.float32))
    return audit.result(claim=Claim(noise_multiplier=1.0, delta=1e-5))


def missing(rng, t, drawn):
    return np.where(np.arange(DIM) < 3000, rng.standard_normal(DIM), 0.0)


def frozen(rng, t, drawn):
    return drawn.setdefault("noise", rng.standard_normal(DIM))


@pytest.mark.parametrize("participation", ["every-round", "poisson:0.5"])
@pytest.mark.parametrize("after", [lambda update, _: 0.3 * update, momentum], ids=["a factor", "momentum"])
def test_missing_noise_is_found_whatever_happens_after_it(after, participation):
    findings = processed(after, participation=participation, noise=missing).bugs
    assert any("tensor 1" in finding.sentence for finding in findings)
    assert not any("tensor 0" in finding.sentence for finding in findings)


@pytest.mark.parametrize("participation", ["every-round", "poisson:0.5"])
def test_noise_that_repeats_is_found_by_the_canaries_or_by_the_lack_of_them(participation):
    finding = processed(lambda update, _: 0.3 * update, participation=participation, noise=frozen).bugs[0]
    assert finding.check == "fresh noise"


@pytest.mark.parametrize("canaries", [20, 100])
def test_missing_noise_has_one_cause(canaries):
    sentences = [finding.sentence for finding in audited(noise=0.3, canaries=canaries, clients=2).findings]
    assert "The update has at most 0." in sentences[0]


def test_the_share_of_bare_numbers_is_not_the_share_near_zero():
    """10% without noise: 11% of the numbers are within a tenth of a standard deviation, 8% by chance."""
    bare = np.random.default_rng(1).random(DIM) < 0.1
    result = audited(bare=bare, canaries=200, rounds=40, clients=1)
    assert any("of the coordinates of the update have next to no noise" in f.sentence for f in result.bugs)
