"""The LDP audit: six adversaries against a locally private client (Matsumoto, Liew, Takahashi and Oguchi 2022).

A crafter makes two gradients, a client randomizes one of them, and a distinguisher who sees the report, or the model it
was applied to, guesses which. How often it is right bounds the ε of the client's mechanism from below.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import nn

from coalmine.arrays import Floats
from coalmine.errors import InputError, check_confidence, check_count
from coalmine.methods.ldp.black_box import BlackBox, play_together
from coalmine.methods.ldp.crafters import Benign, Crafter, Pair, craft, gradient_of, name_of, prepared, rule_of
from coalmine.methods.ldp.estimates import blind_epsilon, estimates, shared_bound
from coalmine.methods.ldp.trials import Crafted, Trials, white_box
from coalmine.results.result import AuditResult
from coalmine.simulation.client import loss_of, tensors
from coalmine.simulation.data.federated import Examples, FederatedData
from coalmine.simulation.flat import parameter_vector
from coalmine.simulation.mechanisms.local import LDPSGD, LocalMechanism, Reports, Server
from coalmine.stats import Estimate, Scores

VIEWS = ("white-box", "black-box", "likelihood-ratio", "parameter-change")
"""What a distinguisher looks at: the paper's two tests, then ours on the report and on the parameters."""

WHITE, BLACK = {"white-box", "likelihood-ratio"}, {"black-box", "parameter-change"}

_MOST_TRIALS = 10**9

Key = tuple[int, int, str]
"""Crafter, mechanism (both by their place in the audit) and view."""


@dataclass(frozen=True, kw_only=True)
class LDPResult(AuditResult):
    """One result of several: of many bounds some exceed a promise by chance, so it is judged by ``bound_of_all``."""

    shown = "some of what was seen is {} as likely where g₁ rather than g₂ was sent, or the other way round"

    @property
    def decisive(self) -> Estimate | None:
        """The bound that holds together with those of all other results."""
        own, joint = self.bound, self.metrics["bound_of_all"]
        if own is None or own.epsilon == joint:
            return own
        assumes = f"{own.assumes}; it then holds together with the bounds of all other results"
        return replace(own, epsilon=joint, lower=joint, assumes=assumes)


@dataclass(frozen=True, kw_only=True)
class LDPAudit:
    """``measurements`` times ``trials`` trials of every crafter against every mechanism, in every view.

    Each measurement has a model of its own (``model`` makes one of a seed) and a pair of examples of its own, the same
    for all crafters. Each result's bound has ``confidence`` by itself; ``metrics["bound_of_all"]`` is one that holds
    together with those of all other results. ``clients`` is how many reports the server averages: one comes from the
    crafter, the others are honest. ``server`` says how the model moves.
    """

    data: FederatedData
    model: Callable[[int], nn.Module]
    crafters: Sequence[Crafter] = (Benign(),)
    mechanisms: Sequence[LocalMechanism] = (LDPSGD(epsilon=1.0),)
    views: Sequence[str] = VIEWS
    trials: int = 10_000
    measurements: int = 1
    clients: int = 1
    server: Server = field(default_factory=Server)
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("trials", 2), ("measurements", 1), ("clients", 1), ("seed", 0)):
            check_count(name, getattr(self, name), least=least)
        if self.trials * self.measurements > _MOST_TRIALS:
            raise InputError(
                f"trials times measurements must be at most {_MOST_TRIALS:,} for each adversary, of which each takes "
                f"microseconds, got {self.trials * self.measurements:,}"
            )
        check_confidence(self.confidence)
        for what in ("crafters", "mechanisms", "views"):
            if not len(getattr(self, what)):
                raise InputError(f"the audit needs at least one of its {what}, got none")
        for view in self.views:
            if view not in VIEWS:
                raise InputError(f"there is no view {view!r}; there are {', '.join(VIEWS)}")
        if len(self._examples) < 1 + self.clients:
            raise InputError(f"the audit needs {1 + self.clients} examples, the data has {len(self._examples)}")

    def run(self, track: Callable[[Iterable[Any]], Iterable[Any]] = iter) -> list[AuditResult]:
        """A result for each crafter, mechanism and view, in this order; ``track`` is told of the measurements."""
        began = time.perf_counter()
        found: dict[Key, list[Trials]] = {key: [] for key in self._keys()}
        streams = np.random.SeedSequence(self.seed).spawn(self.measurements)
        steps = ((stream, part) for stream in streams for part in range(1 + len(self.crafters)))
        played: Iterator[Mapping[Key, Trials]] = iter(())
        for stream, part in track(list(steps)):
            if part == 0:
                played = self._measurement(stream)
            for key, trials in next(played).items():
                found[key].append(trials)
        seconds = time.perf_counter() - began
        return [self._result(key, trials, seconds) for key, trials in found.items()]

    def _keys(self) -> list[Key]:
        return [
            (c, m, view)
            for c in range(len(self.crafters))
            for m in range(len(self.mechanisms))
            for view in VIEWS
            if view in self.views
        ]

    @property
    def _alpha_each(self) -> float:
        """The significance of a bound where all bounds of the audit shall hold together."""
        return (1 - self.confidence) / len(self._keys())

    @property
    def _examples(self) -> Examples:
        return self.data.pooled()

    def _measurement(self, stream: np.random.SeedSequence) -> Iterator[Mapping[Key, Trials]]:
        """Trials of one measurement: the white-box ones a crafter at a time, then all black-box ones together."""
        craft_seed, direction_seed, *cell_seeds = stream.spawn(2 + 2 * len(self.crafters) * len(self.mechanisms))
        rng = np.random.default_rng(craft_seed)
        crafted = self._crafted(rng)
        wanted, seeds = set(self.views), iter(cell_seeds)
        games: dict[tuple[int, int], BlackBox] = {}
        for c, one in enumerate(crafted):
            seen: dict[Key, Trials] = {}
            for m, mechanism in enumerate(self.mechanisms):
                white, black = np.random.default_rng(next(seeds)), np.random.default_rng(next(seeds))
                if wanted & WHITE:
                    seen |= {(c, m, v): t for v, t in white_box(one, mechanism, self.trials, white).items()}
                if wanted & BLACK:
                    games[c, m] = BlackBox(one, mechanism, self.server, black, wanted)
            yield {key: trials for key, trials in seen.items() if key[2] in wanted}
        if games:
            words = int(direction_seed.generate_state(1)[0])
            play_together(list(games.values()), self.trials, words)
        yield {
            (c, m, v): trials for (c, m), game in games.items() for v, trials in game.trials().items() if v in wanted
        }

    def _crafted(self, rng: np.random.Generator) -> list[Crafted]:
        examples, task = self._examples, self.data.task
        model = self.model(int(rng.integers(2**31)))
        rows = rng.choice(len(examples), 1 + self.clients, replace=False)
        pair = Pair.of(Examples(examples.inputs[rows[:2]], examples.targets[rows[:2]]), task)
        found = []
        for crafter in self.crafters:
            sent = prepared(crafter, model, examples, pair, rng)
            first, second = craft(crafter, sent, pair)
            others: Reports = np.empty((self.clients - 1, parameter_vector(sent).numel()), dtype=np.float32)
            for i, row in enumerate(rows[2:]):
                own = Examples(examples.inputs[row : row + 1], examples.targets[row : row + 1])
                others[i] = gradient_of(loss_of(sent, task, *tensors(own, task)), sent)
            found.append(Crafted(first, second, sent, pair, rule_of(crafter), others))
        return found

    def _result(self, key: Key, trials: Sequence[Trials], seconds: float) -> AuditResult:
        crafter, mechanism, view = self.crafters[key[0]], self.mechanisms[key[1]], key[2]
        measured = np.array([one.counts.plug_in(mechanism.delta) for one in trials])
        guesses = [one.guesses for one in trials]
        made = sum(g.guesses for g in guesses)
        members = np.concatenate([one.scores[one.members] for one in trials])
        nonmembers = np.concatenate([one.scores[~one.members] for one in trials])
        return LDPResult(
            audit="ldp",
            view=view,
            seed=self.seed,
            theory=mechanism.theory(),
            estimates=estimates(trials, delta=mechanism.delta, confidence=self.confidence),
            scores=Scores(members, nonmembers),
            metrics={
                "bound_of_all": shared_bound(trials, delta=mechanism.delta, confidence=1 - self._alpha_each),
                "empirical": float(measured.mean()),
                "empirical_std": _spread(measured),
                "blind": blind_epsilon(trials, mechanism.delta),
                "guessed": made / sum(g.canaries for g in guesses),
                **({"accuracy": sum(g.correct for g in guesses) / made} if made else {}),
            },
            timing={"sweep_s": seconds},
            config={
                "crafter": name_of(crafter),
                "gradient_norm": getattr(crafter, "norm", None),
                "mechanism": mechanism.name,
                "epsilon": mechanism.epsilon,
                "norm": mechanism.norm,
                "trials": self.trials,
                "measurements": self.measurements,
                "clients": self.clients,
                "learning_rate": self.server.learning_rate,
                "scaling": self.server.scaling,
                "radius": self.server.radius,
            },
        )


def _spread(measured: Floats) -> float:
    """The standard deviation between measurements; infinite where one of them is."""
    if not np.isfinite(measured).all():
        return math.inf
    return float(measured.std(ddof=1)) if len(measured) > 1 else 0.0
