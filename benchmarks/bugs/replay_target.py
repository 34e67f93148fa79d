"""Target: an aggregation of one's own, replayed with and without one client by `coalmine.replay`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from cases import Answer, Case
from loop_target import CLIPPING, LAYERS, Array, Clip, clipped

import coalmine as cm
from coalmine.checks import ReplayOptions

CLIENTS, CLIP, NOISE, DIM = 9, 1.0, 2.0, 9_610
TARGET = "replay"


@dataclass
class Server:
    """An aggregation, with bugs to switch on.

    Args:
        rng: Source of the noise.
        clip: The clipping of an update.
        clips_average: Whether the average is clipped in place of updates.
        weigh: Function from numbers of examples to weights, which are then normalized.
        noise: Function from correct noise, by tensor, to what is added.
        divisor: Number of clients that the noise on the average is divided by, over the number there is.
        momentum: Momentum before the noise.
        feedback: Whether what clipping cut off is added in the next round.
        expected: Number that a sum is divided by, in place of an average of those present.
        counted: Function from clipped updates and the source of randomness to those that are added up.
        least: Least number of clients who send something; with fewer of them, zeros are released.
    """

    rng: np.random.Generator
    clip: Clip = clipped
    clips_average: bool = False
    weigh: Callable[[Array], Array] = np.ones_like
    noise: Callable[[dict[str, Array]], dict[str, Array]] = lambda noise: noise
    divisor: float = 1.0
    momentum: float = 0.0
    feedback: bool = False
    expected: int | None = None
    counted: Callable[[list[Array], np.random.Generator], list[Array]] = lambda updates, rng: updates
    least: int = 0
    state: dict[str, Array] = field(default_factory=dict)

    def __call__(self, clients: Sequence[cm.checks.Client]) -> dict[str, Array]:
        """Return the noisy average as a dict of tensors."""
        count = self.expected or len(clients)
        updates = [np.concatenate([np.ravel(part) for part in client.update.values()]) for client in clients]
        weights = self.weigh(np.array([client.examples for client in clients], dtype=float))
        if self.clips_average:
            average = self.clip(np.average(updates, axis=0, weights=weights))
        elif self.expected:
            average = np.sum(self.counted([self.clip(update) for update in updates], self.rng), axis=0) / count
        else:
            average = np.average([self.clip(update) for update in updates], axis=0, weights=weights)
        if self.momentum:
            average = average + self.momentum * self.state.get("velocity", np.zeros(DIM))
            self.state["velocity"] = average
        if self.feedback:
            dropped = np.mean(updates, axis=0) - average
            average = average + self.state.get("dropped", np.zeros(DIM))
            self.state["dropped"] = dropped
        noise = self.rng.normal(0, NOISE * CLIP / (count * self.divisor), DIM)
        if sum(update.any() for update in updates) < self.least:
            average, noise = 0 * average, 0 * noise
        split = np.cumsum([np.prod(shape) for shape in LAYERS.values()])[:-1]
        by_tensor = self.noise(dict(zip(LAYERS, np.split(noise, split), strict=True)))
        return {name: part + by_tensor[name] for name, part in zip(LAYERS, np.split(average, split), strict=True)}


def _no_noise_on(*names: str) -> Callable[[dict[str, Array]], dict[str, Array]]:
    return lambda noise: {name: 0 * part if name in names else part for name, part in noise.items()}


def _sampled(rate: float, weight: float) -> Callable[[list[Array], np.random.Generator], list[Array]]:
    return lambda updates, rng: [weight * (rng.random() < rate) * update for update in updates]


BUGS: dict[str, tuple[str, dict[str, object]]] = {
    "0.5 of the noise": ("size", {"noise": lambda noise: {name: 0.5 * part for name, part in noise.items()}}),
    "0.7 of the noise": ("size", {"noise": lambda noise: {name: 0.7 * part for name, part in noise.items()}}),
    "no noise": ("size", {"noise": _no_noise_on(*LAYERS)}),
    "divided by 50 clients once too often": ("size", {"divisor": 50.0}),
    "none on the last 10 coordinates": ("support", {"noise": _no_noise_on("fc2.bias")}),
    **{name: ("clipping", {"clip": loop.clip, "clips_average": loop.clips_average}) for name, loop in CLIPPING.items()},
    "clips only updates beyond 100 times the clip norm": (
        "clipping",
        {"clip": lambda update: clipped(update) if np.linalg.norm(update) > 100 else update},
    ),
    "normalizes every update, tiny ones too": ("clipping", {"clip": lambda update: update / np.mean(np.abs(update))}),
    "weights by examples": ("weighting", {"weigh": lambda examples: examples}),
    "weights by the root of examples": ("weighting", {"weigh": np.sqrt}),
    "weights by examples up to 100": ("weighting", {"weigh": lambda examples: np.minimum(examples, 100)}),
    "noise for twice the clients": ("accounting", {"divisor": 2.0}),
    "momentum before the noise": ("schedule", {"momentum": 0.9}),
    "what clipping cut off is added in the next round": ("clipping", {"feedback": True}),
    "one reply counts twice": ("weighting", {"expected": 1, "counted": lambda u, rng: [*u, u[-1]]}),
    "the first reply counts twice": ("weighting", {"expected": 1, "counted": lambda u, rng: [*u, u[0]]}),
    "the middle reply counts twice": ("weighting", {"expected": 1, "counted": lambda u, rng: [*u, u[len(u) // 2]]}),
    "weights 1/q by the sampling rate of 0.5": ("weighting", {"expected": 1, "counted": _sampled(0.5, 2.0)}),
    "weights 1/q by the sampling rate of 0.2": ("weighting", {"expected": 1, "counted": _sampled(0.2, 5.0)}),
    "zeros below 3 updates": ("data-dependent", {"expected": 1, "least": 3}),
    "zeros below 5 updates": ("data-dependent", {"expected": 1, "least": 5}),
}

CORRECT: dict[str, dict[str, object]] = {
    "average": {},
    "sum over the expected number": {"expected": CLIENTS},
    "clips below the clip norm": {"clip": lambda update: clipped(update, CLIP / 2)},
    "more noise on one layer": {"noise": lambda noise: noise | {"fc1.bias": 3 * noise["fc1.bias"]}},
    "sampled by the server": {"expected": 1, "counted": _sampled(0.5, 1.0)},
    "rounded noise": {"noise": lambda noise: {name: np.round(part, 2) for name, part in noise.items()}},
}


def answer(options: dict[str, object], seed: int) -> Answer:
    """Return what a replay says about an aggregation."""
    rng = np.random.default_rng([seed, 3])
    clients = [
        cm.checks.Client({name: rng.normal(0, 0.02, shape) for name, shape in LAYERS.items()}, examples=20)
        for _ in range(CLIENTS)
    ]
    server, settings = Server(rng, **options), ReplayOptions(seed=seed)
    result = cm.replay(server, clients, clip_norm=CLIP, noise_multiplier=NOISE, options=settings)
    if result.ok:
        return Answer()
    return Answer(f"replay: {result.findings[0].check}", str(result.findings[0]))


def cases() -> list[Case]:
    """Return all bugs of this target, and correct aggregations."""
    buggy = [
        Case(target=TARGET, kind=kind, name=name, run=lambda seed, options=options: answer(options, seed))
        for name, (kind, options) in BUGS.items()
    ]
    return buggy + [
        Case(target=TARGET, kind="correct", name=name, run=lambda seed, options=options: answer(options, seed))
        for name, options in CORRECT.items()
    ]
