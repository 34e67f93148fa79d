"""How far one client moves the model: a probe of the user's own strategy, without statistics.

A copy of the strategy, without its noise, aggregates seven replies twice; the last client differs. The model must not
move by more than the clip norm / number of clients, which is what the noise is made for. Nothing is trained, and the
strategy itself and all random numbers stay as they are.
"""

from __future__ import annotations

import copy
import logging
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message
from flwr.serverapp.strategy import Strategy

from coalmine.arrays import Floats
from coalmine.results.finding import Finding

SENSITIVITY = "sensitivity"

_CLIENTS = 7  # an odd number, so that one client decides a median
_TOLERANCE = 1.02  # for rounding to float32
_LONG = 100.0  # length of updates that must be clipped, in clip norms
_KEY = "num-examples"

Reply = Callable[[ArrayRecord, Mapping[str, float]], Message]
"""Returns the reply of a client with these arrays and metrics, through the mods of the ClientApp."""


def calling_strategy() -> Strategy | None:
    """Return the strategy whose ``start`` is running, or None.

    Flower does not tell a grid which strategy uses it. It is on the call stack, where `Strategy.start` calls the grid.
    """
    frame = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, Strategy):
            return caller
        frame = frame.f_back  # type: ignore[assignment]
    return None


def noise_multiplier_of(strategy: Strategy | None) -> float | None:
    """Return the noise multiplier of one of Flower's DP wrappers, None for any other strategy."""
    if strategy is None or not hasattr(strategy, "num_sampled_clients"):
        return None
    noise_multiplier = float(getattr(strategy, "noise_multiplier", 0.0))
    return noise_multiplier if noise_multiplier > 0 else None


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Probes of one strategy.

    Args:
        strategy: A DP wrapper that has configured a round.
        server_round: Flower's number of that round.
        arrays: The model that clients received.
        reply: How a client replies.
        clip_norm: The clip norm.
        clipped: Whether updates go through clipping, on the server or in a mod of the client.
    """

    strategy: Strategy
    server_round: int
    arrays: ArrayRecord
    reply: Reply
    clip_norm: float
    clipped: bool

    def findings(self) -> list[Finding]:
        """Return every kind of client that moves the model further than the noise covers."""
        first = next(iter(self._floats()))
        probes: list[tuple[str, Callable[[], float]]] = [
            ("joined", lambda: self._moved(self._dense(1.0))),
            ("joined, and clients are of two minds", lambda: self._moved(self._along(first, 1.0), apart=first)),
        ]
        if self.clipped:
            scalars = [key for key, array in self.arrays.items() if array.shape == ()]
            probes += [
                (f"with an update of {_LONG:g} clip norms joined", lambda: self._moved(self._dense(_LONG))),
                *((f"changed the scalar {key} by {_LONG:g}", self._scalar(key)) for key in scalars[:4]),
            ]
        findings: list[Finding] = []
        for what, probe in probes:
            finding = self._finding(what, probe)
            if finding is not None and not (findings and what.startswith("joined, and")):
                findings.append(finding)
        return findings

    def nan_finding(self) -> Finding | None:
        """Return what a client with a NaN in its update can do, if it can do more than others."""
        first = next(iter(self._floats()))
        return self._finding("sent a NaN and a long update", lambda: self._moved(self._with_nan(first)))

    def order_finding(self) -> Finding | None:
        """Return what a client that reorders its arrays can do, if it can do more than others."""
        return self._finding(
            "sent its arrays in another order", lambda: self._moved(dict(reversed(self.arrays.items())))
        )

    def weight_ratio(self) -> float:
        """Return how much further a client with nine times the examples moves the model, 1 if weights are equal."""
        try:
            return self._moved(self._dense(1.0), examples=9) / max(self._moved(self._dense(1.0)), 1e-12)
        except Exception:
            return 1.0

    def _finding(self, what: str, probe: Callable[[], float]) -> Finding | None:
        """Return a finding if a kind of client moves the model too far."""
        try:
            ratio = probe()
        except Exception:
            return None  # a strategy that refuses such a client is right to do so
        if ratio <= _TOLERANCE:
            return None
        inner = getattr(self.strategy, "strategy", self.strategy)
        return Finding(
            check=SENSITIVITY,
            sentence=f"One client that {what} moved the model by {ratio:.3g} × clip norm / clients "
            f"({type(self.strategy).__name__} around {type(inner).__name__}); the noise covers 1.",
            example=f"{_CLIENTS - 1} clients and one that {what}",
        )

    # Clients

    def _dense(self, length: float) -> dict[str, Array]:
        rng = np.random.default_rng(0)
        steps = {key: rng.normal(size=array.shape) for key, array in self._floats().items() if array.shape}
        norm = np.sqrt(sum(float(np.sum(step**2)) for step in steps.values()))
        return self._plus({key: step * (length * self.clip_norm / norm) for key, step in steps.items()})

    def _along(self, key: str, length: float) -> dict[str, Array]:
        step = np.zeros(self.arrays[key].shape)
        step.flat[0] = length * self.clip_norm
        return self._plus({key: step})

    def _scalar(self, key: str) -> Callable[[], float]:
        return lambda: self._moved(self._plus({key: np.array(_LONG)}))

    def _with_nan(self, key: str) -> dict[str, Array]:
        arrays = self._dense(_LONG)
        values = np.array(arrays[key].numpy())
        values.flat[0] = np.nan
        return {**arrays, key: Array(values)}

    def _floats(self) -> dict[str, Array]:
        """Return the arrays that an update can move: empty ones have nowhere to go."""
        return {
            key: array
            for key, array in self.arrays.items()
            if np.dtype(array.dtype).kind == "f" and np.prod(array.shape)
        }

    def _plus(self, steps: Mapping[str, Floats]) -> dict[str, Array]:
        moved = dict(self.arrays)
        for key, step in steps.items():
            before = self.arrays[key].numpy()
            moved[key] = Array(np.asarray((before + step).astype(before.dtype)))
        return moved

    # Aggregation

    def _moved(self, arrays: Mapping[str, Array], *, apart: str | None = None, examples: int = 1) -> float:
        """Return how far a client with these arrays moves the model, in clip norms / clients.

        Args:
            arrays: What the client sends. Without it, it sends the model nearly unchanged.
            apart: A tensor along whose first number half of the others pull one way and half the other; one client
                decides then. The round after, without the client, counts as well: momentum must not remember it.
            examples: Its number of examples.
        """
        still = self._along(next(iter(self._floats())), 1e-6)
        if apart is None:
            others = [still] * (_CLIENTS - 1)
        else:
            others = [self._along(apart, sign) for sign in [1.0, -1.0] * (_CLIENTS // 2)]
        squares = []
        with _quiet():
            runs = [self._copied(), self._copied()]
            sent = [(still, 1), (arrays, examples)]
            for later in range(1 if apart is None else 2):
                outcomes = []
                for strategy, (last, weight) in zip(runs, sent if later == 0 else [(still, 1)] * 2, strict=True):
                    _seed()
                    replies = [self._client(other, 1) for other in others] + [self._client(last, weight)]
                    aggregated, _ = strategy.aggregate_train(self.server_round + later, replies)
                    outcomes.append(aggregated)
                squares.append(_distance(*outcomes) ** 2)
        return float(np.sqrt(sum(squares))) * _CLIENTS / self.clip_norm

    def _client(self, arrays: Mapping[str, Array], examples: int) -> Message:
        return self.reply(ArrayRecord(dict(arrays)), {_KEY: examples})

    def _copied(self) -> Any:
        """Return a copy of the strategy for seven clients, without noise and accountant."""
        # An accountant refers to Python modules, which deepcopy cannot copy: they are passed as already copied.
        duplicate = copy.deepcopy(self.strategy, {id(module): module for module in sys.modules.values()})
        layer: Any = duplicate
        while layer is not None:
            for name, value in (("num_sampled_clients", _CLIENTS), ("noise_multiplier", 0.0), ("accountant", None)):
                if hasattr(layer, name):
                    setattr(layer, name, value)
            layer = getattr(layer, "strategy", None)
        return duplicate


def _distance(one: ArrayRecord | None, other: ArrayRecord | None) -> float:
    """Return the distance of two models, leaving out numbers that are not finite."""
    if one is None or other is None:
        return 0.0
    total = 0.0
    for key in one:
        change = other[key].numpy().astype(np.float64) - one[key].numpy().astype(np.float64)
        total += float(np.sum(np.square(change[np.isfinite(change)])))
    return float(np.sqrt(total))


def _seed() -> None:
    np.random.seed(0)  # noqa: NPY002 - the generator that Flower's noise comes from
    random.seed(0)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep random numbers as they are, and Flower's log free of what only the probes do."""
    numbers, more, logger = np.random.get_state(), random.getstate(), logging.getLogger("flwr")  # noqa: NPY002
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        np.random.set_state(numbers)  # noqa: NPY002
        random.setstate(more)
        logger.setLevel(level)
