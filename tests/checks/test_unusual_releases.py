"""Correct releases whose noise is hard to see: kept in the state, of few values, or from unusual generators."""

import hashlib
import os
import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import coalmine as cm

DIM = 24


def clip(update, norm=1.0):
    return update / max(1.0, float(np.linalg.norm(update)) / norm)


def total(updates):
    return sum(clip(update) for update in updates)


def on_grid(update, step):
    return np.trunc(clip(update) / step)


def discrete_gaussian(rng, sigma, size):
    values = np.arange(-int(10 * sigma + 10), int(10 * sigma + 11))
    weights = np.exp(-(values**2) / (2 * sigma**2))
    return rng.choice(values, size, p=weights / weights.sum())


class Counter:
    """Noise from a secret and the number of the round."""

    def __init__(self, z, share=1.0):
        self.secret, self.number, self.z, self.share = b"secret", 0, z, share

    def noise(self):
        self.number += 1
        digest = hashlib.sha256(self.secret + self.number.to_bytes(8, "big")).digest()
        return np.random.default_rng(list(digest)).normal(0, self.share * self.z, DIM)

    def __call__(self, updates):
        return total(updates) + self.noise()


class CounterModel(Counter):
    model = 0.0

    def __call__(self, updates):
        self.model = self.model + 0.1 * super().__call__(updates)
        return self.model


def block(z, rows=200):
    rows = list(np.random.default_rng(5).normal(0, z, (rows, DIM)))
    return lambda updates: total(updates) + rows.pop()


def own_generator(z):
    state = {"x": 12345}

    def uniform():
        state["x"] = (6364136223846793005 * state["x"] + 1442695040888963407) % 2**64
        return (state["x"] + 1) / 2**64

    def normal():
        return np.sqrt(-2 * np.log(uniform())) * np.cos(2 * np.pi * uniform())

    return lambda updates: total(updates) + z * np.array([normal() for _ in range(DIM)])


def queue(z, depth=1):
    """Noise is drawn so many rounds ahead."""
    rng = np.random.default_rng(6)
    drawn = [rng.normal(0, z, DIM) for _ in range(depth)]

    def release(updates):
        drawn.append(rng.normal(0, z, DIM))
        return total(updates) + drawn.pop(0)

    return release


def short_queue(z):
    return queue(z, depth=4)


def spare(z):
    """Two vectors at a time, of which the second waits for the next round."""
    rng = np.random.default_rng(7)
    waiting = [rng.normal(0, z, DIM)]

    def release(updates):
        if not waiting:
            waiting.extend(rng.normal(0, z, (2, DIM)))
        return total(updates) + waiting.pop()

    return release


def tree_of_noise_drawn_at_the_start(z):
    nodes, state = np.random.default_rng(2).normal(0, z * np.sqrt(2), (8, 129, DIM)), {"t": 0, "total": 0.0}

    def release(updates):
        state["t"], state["total"] = state["t"] + 1, state["total"] + total(updates)
        noise, start = 0.0, 0
        for level in reversed(range(8)):
            if state["t"] & (1 << level):
                noise, start = noise + nodes[level, start >> level], start + (1 << level)
        return state["total"] + noise

    return release


def discrete(z):
    rng = np.random.default_rng(0)
    return lambda updates: sum(on_grid(u, 1.0) for u in updates) + discrete_gaussian(rng, z, DIM)


def noisy_count(z):
    rng = np.random.default_rng(0)
    return lambda updates: sum(np.linalg.norm(u) > 0.5 for u in updates) + int(discrete_gaussian(rng, z, 1)[0])


def after(change):
    def make(z):
        rng = np.random.default_rng(0)
        return lambda updates: change(total(updates) + rng.normal(0, z, DIM), z)

    return make


def largest(noisy, _):
    return np.where(np.abs(noisy) >= np.sort(np.abs(noisy))[-5], noisy, 0.0)


def modular(z):
    rng, modulus = np.random.default_rng(0), 2**16

    def release(updates):
        noise = np.rint(rng.normal(0, z * 256, DIM)).astype(np.int64)
        whole = (sum(on_grid(u, 1 / 256).astype(np.int64) for u in updates) + noise) % modulus
        return np.where(whole >= modulus // 2, whole - modulus, whole) / 256

    return release


def category(z):
    """The exponential mechanism, by Gumbel noise on counts of one client each, at ε = 1/z."""
    rng = np.random.default_rng(0)

    def release(updates):
        counts = np.bincount([int(np.argmax(np.abs(u)) % 3) for u in updates], minlength=3)
        return float(np.argmax(counts / (2 * z) + rng.gumbel(size=3)))

    return release


def sampled(z):
    rng = np.random.default_rng(0)
    return lambda updates: sum((clip(u) for u in updates if rng.random() < 0.5), np.zeros(DIM)) + rng.normal(0, z, DIM)


@dataclass
class Parts:
    weight: Any
    bias: Any


def tensors(z):
    generator = torch.Generator().manual_seed(0)

    def release(updates):
        noisy = torch.tensor(total(updates)) + z * torch.randn(DIM, generator=generator, dtype=torch.float64)
        return Parts(noisy[:20], (noisy[20:].float(),))

    return release


class OfTheClass:
    rng = np.random.RandomState(4)

    def __init__(self, z):
        self.z = z

    def __call__(self, updates):
        return total(updates) + self.rng.normal(0, self.z, DIM)


def system(z):
    source = secrets.SystemRandom()
    return lambda updates: total(updates) + np.array([source.gauss(0, z) for _ in range(DIM)])


def operating_system(z):
    return lambda updates: total(updates) + np.random.default_rng(list(os.urandom(16))).normal(0, z, DIM)


def bound_method(z):
    normal = np.random.default_rng(0).normal
    return lambda updates: total(updates) + normal(0, z, DIM)


def stream(z):
    def noises(rng):
        while True:
            yield rng.normal(0, z, DIM)

    drawn = noises(np.random.default_rng(1))
    return lambda updates: total(updates) + next(drawn)


IN_THE_STATE = [
    Counter, CounterModel, block, own_generator, tree_of_noise_drawn_at_the_start, queue, short_queue, spare,
]  # fmt: skip

FEW_VALUES = [
    discrete, noisy_count, category, after(lambda noisy, _: np.sign(noisy[:1])),
    after(lambda noisy, _: np.sign(noisy[:3])), after(lambda noisy, z: np.rint(noisy / (3 * z))),
    after(lambda noisy, z: np.where(noisy > 3 * z, noisy, 0.0)), after(largest), after(lambda noisy, _: noisy[0] > 0),
]  # fmt: skip

OTHERS = [
    modular, sampled, tensors, OfTheClass, system, operating_system, bound_method, stream,
    after(lambda noisy, _: noisy.astype(np.float16)), after(lambda noisy, z: np.clip(noisy, -z, z)),
    after(lambda noisy, _: noisy / np.linalg.norm(noisy)), after(lambda noisy, _: [noisy * i for i in range(1, 11)]),
]  # fmt: skip


def replayed(release, z, *, seed=0, **more):
    rng = np.random.default_rng([seed, 9])
    clients = [rng.normal(0, 1.5 / np.sqrt(DIM), DIM) for _ in range(5)]
    options = cm.checks.ReplayOptions(seed=seed, **{"quick": True, **more})
    return cm.replay(release, clients, clip_norm=1.0, noise_multiplier=z, options=options)


def warned(result, words):
    return any(words in finding.sentence for finding in result.findings if not finding.refutes)


@pytest.mark.parametrize("z", [pytest.param(0.3, marks=pytest.mark.slow), 4.0])
@pytest.mark.parametrize("make", [*IN_THE_STATE, *FEW_VALUES, *OTHERS])
def test_an_unusual_correct_release_is_not_refuted(make, z):
    """False-alarm probability at most 0.1% each, once for this seed."""
    result = replayed(make(z), z, rounds=2)
    assert result.ok, str(result)
    assert warned(result, "noise comes from the state") == (make in IN_THE_STATE)


def _fixed_counter(z):
    release = Counter(z)
    return lambda updates: (setattr(release, "number", 0), release(updates))[1]


def _drawn_once(z):
    noise = np.random.default_rng(3).normal(0, z, DIM)
    return lambda updates: total(updates) + noise


def _model_without_noise(z):
    state = {"model": 0.0, "momentum": 0.0, "round": 0}

    def release(updates):
        state["momentum"] = 0.9 * state["momentum"] + total(updates)
        state["model"], state["round"] = state["model"] + state["momentum"], state["round"] + 1
        return {"model": state["model"], "round": float(state["round"])}

    return release


@pytest.mark.parametrize("z", [0.1, 4.0])
@pytest.mark.parametrize(
    "make",
    [_fixed_counter, _drawn_once, _model_without_noise],
    ids=["a counter that stands still", "drawn once", "none in a model"],
)
def test_missing_noise_is_found_although_releases_keep_a_state(make, z):
    assert not replayed(make(z), z).ok


def test_a_tiny_update_that_is_scaled_up_is_no_bug_of_clipping():
    """Zero is refused, and the tiny update that stands for it moves the release by as much as any other."""
    rng = np.random.default_rng(0)

    def release(updates):
        return sum(update / np.linalg.norm(update) for update in updates) + rng.normal(0, 1.0, DIM)

    result = replayed(release, 1.0, quick=False, draws=100)
    assert {str(finding.check) for finding in result.findings if finding.refutes} == {"not finite"}


def test_missing_noise_on_whole_numbers_is_found_where_draws_can_tell():
    """On a grid as wide as the clip norm there are no similar clients. At z = 0.2 no number of draws would tell."""

    def release(updates):
        return sum(on_grid(u, 1.0) for u in updates)

    assert not replayed(release, 1.0, quick=False).ok
    assert replayed(release, 0.2, quick=False).ok


class Linked:
    """Leads to very many objects, as a test session does."""

    def __init__(self, depth):
        self.next = Linked(depth - 1) if depth else None
        self.more = [{} for _ in range(60)]

    def __deepcopy__(self, _):
        return self


SESSION = [Linked(400)]


@pytest.mark.slow
def test_generators_at_hand_are_found_before_what_is_far_away():
    rng = np.random.default_rng(0)

    def release(updates):
        assert SESSION
        return total(updates) + rng.normal(0, 1.0, DIM)

    result = replayed(release, 1.0)
    assert result.ok
    assert not warned(result, "state")
    assert rng.normal() == np.random.default_rng(0).normal()


@pytest.mark.parametrize("weight", [1.0, -1.0])
def test_noise_that_overlaps_with_that_of_the_last_round_is_found(weight):
    class Overlapping(Counter):
        """Half of the noise is that of the last round."""

        def __init__(self):
            self.rng = np.random.default_rng(0)
            self.last = self.rng.normal(size=100)

        def __call__(self, updates):
            last, self.last = self.last, self.rng.normal(size=100)
            return total(updates) + (self.last + weight * last) / np.sqrt(2)

    clients = list(np.random.default_rng(1).normal(size=(4, 100)))
    result = cm.replay(
        Overlapping(), clients, clip_norm=1.0, noise_multiplier=1.0, options=cm.checks.ReplayOptions(quick=True)
    )
    assert "memory" in [finding.check for finding in result.findings if finding.refutes]
    assert "shared with later rounds in part" in str(result)
