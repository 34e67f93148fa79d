"""The LDP audit: six adversaries against a locally private client (Matsumoto, Liew, Takahashi and Oguchi 2022).

A crafter makes two gradients, a client randomizes one of them, and a distinguisher who sees the report, or the model it
was applied to, guesses which one. How often it is right bounds the ε of the client's mechanism from below.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import nn

from coalmine.errors import InputError, check_confidence, check_count, did_you_mean
from coalmine.methods.ldp.black_box import BlackBox, play
from coalmine.methods.ldp.claim import LocalClaimTest
from coalmine.methods.ldp.crafters import Benign, Crafter
from coalmine.methods.ldp.crafting import craft, name_of, prepare_model, rule_of
from coalmine.methods.ldp.estimates import (
    blind_epsilon,
    empirical_epsilons,
    estimates,
    split_scores,
    spread,
)
from coalmine.methods.ldp.evidence import joint_evidence, stored_arrays, stored_terms
from coalmine.methods.ldp.pair import Pair, gradient_of
from coalmine.methods.ldp.trials import Crafted, Trials, white_box
from coalmine.methods.ldp.until_refuted import WatchedGame, closest_to_claim
from coalmine.methods.ldp.views import ADVERSARIES, BLACK_BOX, VIEWS, WHITE_BOX, score_name
from coalmine.progress import reporting, shown_if_slow, track
from coalmine.results.result import Result, Results
from coalmine.results.verdict import REPORT, Verdict
from coalmine.simulation.client import loss_of, tensors
from coalmine.simulation.data.federated import Examples, FederatedData
from coalmine.simulation.flat import parameter_vector
from coalmine.simulation.mechanisms.local import LDPSGD, LDPServer, LocalMechanism, Reports

_MOST_TRIALS = 10**9
_BLOCK = 250  # trials between two looks at the bounds

Key = tuple[int, int, str]
"""Crafter and mechanism, by their index in the audit, and view."""


_ODDS = "some report is {times} likelier when g₁ was sent than when g₂ was, or the other way round"


@dataclass(frozen=True, kw_only=True)
class Ldp:
    """Audits local randomizers with pairs of crafted gradients (Matsumoto et al. 2022).

    Plays ``trials`` trials of every crafter against every mechanism, in every view. In each trial a fair coin picks one
    of the crafter's two gradients, the mechanism randomizes it, and a distinguisher guesses which one it was.

    The lower bounds hold for any mechanism that draws fresh randomness for each report: the audit itself tosses the
    coins, and guessing thresholds are fixed before the first trial. Each bound has ``confidence`` by itself; the
    bounds ``result.joint_bound`` and the tests of the claims hold jointly with the same confidence.

    Args:
        data: Where the two examples, and those of further clients, are drawn from.
        model: Makes a model from a seed; each measurement has its own.
        crafters: What a malicious client sends: the classes of `coalmine.methods.ldp.crafters`, or functions
            ``(model, pair) -> (g1, g2)``.
        mechanisms: The mechanisms under audit, each with the ε it claims for one report.
        views: What distinguishers see: ``"white-box"``, ``"black-box"``, ``"likelihood-ratio"``,
            ``"parameter-change"``.
        trials: Trials per measurement.
        measurements: How often to repeat everything with a new model and a new pair of examples.
        clients: Reports that the server averages. One is the crafter's, the others are honest.
        server: How the server updates the model.
        confidence: Confidence of the lower bounds.
        seed: Seed for all random choices.
        stop_when_refuted: Whether to stop as soon as one of the claims is refuted, at whatever moment
            (docs/anytime.md). Bounds that need a fixed number of trials then become estimates.

    Raises:
        InputError: If a view is unknown, a number is out of range, or the data has too few examples.

    Example:
        >>> from coalmine.methods.ldp.crafters import DummyGradient
        >>> from coalmine.simulation import models
        >>> from coalmine.simulation.data import load
        >>> digits = load("digits").train
        >>> audit = Ldp(
        ...     data=digits,
        ...     model=lambda seed: models.build("logistic", digits.task, seed=seed),
        ...     crafters=[DummyGradient()],
        ...     mechanisms=[LDPSGD(epsilon=2.0)],
        ...     views=["white-box"],
        ...     trials=2000,
        ... )
        >>> (result,) = audit.run()
        >>> result.label, result.verdict.value, 1.5 < result.bound.lower <= 2
        ('dummy-gradient, ε = 2, white-box', 'not refuted', True)
    """

    data: FederatedData
    model: Callable[[int], nn.Module]
    crafters: Sequence[Crafter] = (Benign(),)
    mechanisms: Sequence[LocalMechanism] = (LDPSGD(epsilon=1.0),)
    views: Sequence[str] = VIEWS
    trials: int = 10_000
    measurements: int = 1
    clients: int = 1
    server: LDPServer = field(default_factory=LDPServer)
    confidence: float = 0.95
    seed: int = 0
    stop_when_refuted: bool = False

    def __post_init__(self) -> None:
        for name, least in (("trials", 2), ("measurements", 1), ("clients", 1), ("seed", 0)):
            check_count(name, getattr(self, name), least=least)
        if self.trials * self.measurements > _MOST_TRIALS:
            raise InputError(
                f"trials × measurements must be at most {_MOST_TRIALS:,}, got {self.trials * self.measurements:,}: use "
                "fewer trials or measurements"
            )
        check_confidence(self.confidence)
        for name in ("crafters", "mechanisms", "views"):
            if not len(getattr(self, name)):
                raise InputError(f"{name} must not be empty")
        for view in self.views:
            if view not in VIEWS:
                raise InputError(f'unknown view "{view}". {did_you_mean(view, VIEWS)}')
        if len(self._examples) < 1 + self.clients:
            raise InputError(
                f"{self.clients} clients need data with at least {1 + self.clients} examples, got {len(self._examples)}"
            )

    @shown_if_slow()
    def run(self) -> Results:
        """Play all trials.

        Returns:
            One result per crafter, mechanism and view, in this order.

        Raises:
            InputError: If a crafter or mechanism of the user's fails or returns something unusable.
        """
        if self.stop_when_refuted:
            return self._run_until_refuted()
        began = time.perf_counter()
        trials: dict[Key, list[Trials]] = {key: [] for key in self._keys()}
        streams = np.random.SeedSequence(self.seed).spawn(self.measurements)
        steps = ((stream, part) for stream in streams for part in range(1 + len(self.crafters)))
        measurement: Iterator[Mapping[Key, Trials]] = iter(())
        for stream, part in track(list(steps), "LDP trials"):
            if part == 0:
                measurement = self._measurement(stream)
            for key, played in next(measurement).items():
                trials[key].append(played)
        seconds = time.perf_counter() - began
        variants = self._variants()
        return Results(self._result(key, variants[key[:2]], played, seconds) for key, played in trials.items())

    def _run_until_refuted(self) -> Results:
        """Play all games in blocks of trials until a bound exceeds its claim, jointly with all others."""
        began, joint = time.perf_counter(), self._joint_confidence
        games = {key: WatchedGame(self.mechanisms[key[1]]) for key in self._keys()}
        blocks = -(-self.trials // _BLOCK)
        planned, stopped = blocks * self.measurements, False
        done = 0
        with reporting("LDP trials", planned) as advance:
            for stream in np.random.SeedSequence(self.seed).spawn(self.measurements):
                shuffle_seed, block_seed = stream.spawn(2)
                rng = np.random.default_rng(shuffle_seed)
                for played in self._blocks(block_seed, blocks):
                    for key, trials in played.items():
                        games[key].add(trials, rng)
                    done += 1
                    advance(done, closest_to_claim(games.values(), joint))
                    stopped = any(game.bound.refuted(joint) for game in games.values())
                    if stopped:
                        break
                for game in games.values():
                    game.end_measurement()
                if stopped:
                    break
        seconds, variants = time.perf_counter() - began, self._variants()
        note = f"the audit stopped after {done:,} of {planned:,} blocks of trials, since they refute a claim"
        return Results(
            game.judged(
                self._result(key, variants[key[:2]], game.measurements, seconds),
                confidence=self.confidence,
                joint=joint,
                notes=[note] * stopped,
            )
            for key, game in games.items()
        )

    def _blocks(self, stream: np.random.SeedSequence, blocks: int) -> Iterator[Mapping[Key, Trials]]:
        """Yield the trials of one measurement in blocks of about equal size, all games together."""
        craft_seed, *seeds = stream.spawn(1 + blocks)
        crafted = self._crafted(np.random.default_rng(craft_seed))
        sizes = [len(part) for part in np.array_split(np.arange(self.trials), blocks)]
        for size, seed in zip(sizes, seeds, strict=True):
            played: dict[Key, Trials] = {}
            for part in self._played(crafted, size, *seed.spawn(1 + 2 * len(self.crafters) * len(self.mechanisms))):
                played |= part
            yield played

    def _keys(self) -> list[Key]:
        return [
            (c, m, view)
            for c in range(len(self.crafters))
            for m in range(len(self.mechanisms))
            for view in VIEWS
            if view in self.views
        ]

    def _variants(self) -> dict[tuple[int, int], str]:
        """Return a unique name for each pair of crafter and mechanism, such as "dummy-gradient, ε = 4"."""
        several = len({mechanism.name for mechanism in self.mechanisms}) > 1
        names: dict[tuple[int, int], str] = {}
        uses: Counter[str] = Counter()
        for c, crafter in enumerate(self.crafters):
            for m, mechanism in enumerate(self.mechanisms):
                name, norm = name_of(crafter), getattr(crafter, "norm", None)
                if norm not in (None, mechanism.norm):
                    name += f" of norm {norm:g}"
                if several:
                    name += f", {mechanism.name}"
                claim = f"ε = {mechanism.epsilon:g}"
                uses[f"{name}, {claim}"] += 1
                count = uses[f"{name}, {claim}"]
                names[c, m] = f"{name}{f' #{count}' if count > 1 else ''}, {claim}"
        return names

    @property
    def _joint_confidence(self) -> float:
        """The confidence of a single bound such that all bounds of the audit hold together (a union bound)."""
        return 1 - (1 - self.confidence) / len(self._keys())

    @property
    def _examples(self) -> Examples:
        return self.data.pooled()

    def _measurement(self, stream: np.random.SeedSequence) -> Iterator[Mapping[Key, Trials]]:
        """Yield the trials of one measurement: white-box ones by crafter, then all black-box ones together."""
        craft_seed, *seeds = stream.spawn(2 + 2 * len(self.crafters) * len(self.mechanisms))
        return self._played(self._crafted(np.random.default_rng(craft_seed)), self.trials, *seeds)

    def _played(
        self,
        crafted: Sequence[Crafted],
        trials: int,
        direction_seed: np.random.SeedSequence,
        *cell_seeds: np.random.SeedSequence,
    ) -> Iterator[Mapping[Key, Trials]]:
        """Yield trials with these gradients: white-box ones by crafter, then all black-box ones together."""
        views, seeds = set(self.views), iter(cell_seeds)
        games: dict[tuple[int, int], BlackBox] = {}
        for c, gradients in enumerate(crafted):
            white: dict[Key, Trials] = {}
            for m, mechanism in enumerate(self.mechanisms):
                white_rng, black_rng = np.random.default_rng(next(seeds)), np.random.default_rng(next(seeds))
                if views & WHITE_BOX:
                    played = white_box(gradients, mechanism, trials, white_rng)
                    white |= {(c, m, view): scored for view, scored in played.items() if view in views}
                if views & BLACK_BOX:
                    games[c, m] = BlackBox(gradients, mechanism, self.server, black_rng, views)
            yield white
        if games:
            play(list(games.values()), trials, int(direction_seed.generate_state(1)[0]))
        yield {(c, m, view): scored for (c, m), game in games.items() for view, scored in game.trials().items()}

    def _crafted(self, rng: np.random.Generator) -> list[Crafted]:
        """Return what each crafter makes of one model and one pair of examples."""
        examples, task = self._examples, self.data.task
        model = self.model(int(rng.integers(2**31)))
        rows = rng.choice(len(examples), 1 + self.clients, replace=False)
        pair = Pair.of(examples[rows[:2]], task)
        crafted = []
        for crafter in self.crafters:
            sent = prepare_model(crafter, model, examples, pair, rng)
            first, second = craft(crafter, sent, pair)
            others: Reports = np.empty((self.clients - 1, parameter_vector(sent).numel()), dtype=np.float32)
            for i, row in enumerate(rows[2:]):
                others[i] = gradient_of(loss_of(sent, task, *tensors(examples[row : row + 1], task)), sent)
            crafted.append(Crafted(first, second, sent, pair, rule_of(crafter), others))
        return crafted

    def _result(self, key: Key, variant: str, trials: Sequence[Trials], seconds: float) -> Result:
        """Return the result of one crafter, mechanism and view."""
        crafter, mechanism, view = self.crafters[key[0]], self.mechanisms[key[1]], key[2]
        empirical = empirical_epsilons(trials, mechanism.delta)
        guesses = [measurement.guesses for measurement in trials]
        guessed = sum(g.guesses for g in guesses)
        claim, joint = mechanism.claim(), self._joint_confidence
        joint_bound, test = joint_evidence(trials, claim, delta=mechanism.delta, confidence=joint)
        too_weak = test.verdict is Verdict.TOO_WEAK
        needed = LocalClaimTest(trials, claim).trials_needed(joint) if too_weak else None
        return Result(
            odds=_ODDS,
            method="ldp",
            view=view,
            variant=variant,
            unit=REPORT,
            adversary=ADVERSARIES[view],
            score_name=score_name(view, rule_of(crafter)),
            side_names=("g₁ sent", "g₂ sent"),
            seed=self.seed,
            claim=claim,
            claim_test=test,
            warnings=[] if needed is None else [f"about {needed:,} trials would detect half of the claimed noise"],
            estimates=estimates(trials, delta=mechanism.delta, confidence=self.confidence),
            joint_bound=joint_bound,
            scores=split_scores(trials),
            recipe={"delta": mechanism.delta, "confidence": self.confidence, "joint": joint, **stored_terms(trials)},
            arrays=stored_arrays(trials),
            metrics={
                "empirical": float(empirical.mean()),
                "empirical_std": spread(empirical),
                "blind": blind_epsilon(trials, mechanism.delta),
                "guessed": guessed / sum(g.canaries for g in guesses),
                **({"accuracy": sum(g.correct for g in guesses) / guessed} if guessed else {}),
            },
            timing={"sweep_s": seconds},
            config={
                "crafter": name_of(crafter),
                "gradient_norm": getattr(crafter, "norm", None),
                "mechanism": mechanism.name,
                "epsilon": mechanism.epsilon,
                "clip_norm": mechanism.norm,
                "trials": self.trials,
                "measurements": self.measurements,
                "clients": self.clients,
                "learning_rate": self.server.learning_rate,
                "scaling": self.server.scaling,
                "radius": self.server.radius,
            },
        )
