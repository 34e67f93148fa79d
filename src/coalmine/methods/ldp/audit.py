"""The LDP audit: six adversaries against a locally private client (Matsumoto, Liew, Takahashi and Oguchi 2022).

A crafter makes two gradients, a client randomizes one of them, and a distinguisher who sees the report, or the model it
was applied to, guesses which one. How often it is right bounds the ε of the client's mechanism from below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import nn

from coalmine.errors import InputError, check_confidence, check_count, did_you_mean
from coalmine.methods.ldp.crafters import Benign, Crafter, Pair, craft, gradient_of, name_of, rule_of
from coalmine.methods.ldp.distinguishers import BlackBox, Crafted, Trials, play, white_box
from coalmine.methods.ldp.games import likely_fault
from coalmine.methods.ldp.lower_bounds import (
    empirical_epsilons,
    evidence,
    split_scores,
    spread,
    total_guesses,
    trials_needed,
)
from coalmine.methods.ldp.settings import ADVERSARIES, SCORES, VIEWS
from coalmine.progress import shown_if_slow, track
from coalmine.results.result import Result, Results
from coalmine.results.verdict import REPORT, Verdict
from coalmine.seeds import default_rng
from coalmine.simulation.client import loss_of, tensors
from coalmine.simulation.data.federated import FederatedData
from coalmine.simulation.flat import parameter_vector
from coalmine.simulation.mechanisms.local import LDPSGD, LDPServer, LocalMechanism, Reports

# Crafter and mechanism, by their index in the audit, and view.
Key = tuple[int, int, str]

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

    def __post_init__(self) -> None:
        for name, least in (("trials", 2), ("measurements", 1), ("clients", 1), ("seed", 0)):
            check_count(name, getattr(self, name), least=least)
        check_confidence(self.confidence)
        for name in ("crafters", "mechanisms", "views"):
            if not len(getattr(self, name)):
                raise InputError(f"{name} must not be empty")
        for view in self.views:
            if view not in VIEWS:
                raise InputError(f'unknown view "{view}". {did_you_mean(view, VIEWS)}')
        examples = len(self.data.pooled())
        if examples < 1 + self.clients:
            raise InputError(
                f"{self.clients} clients need data with at least {1 + self.clients} examples, got {examples}"
            )

    @shown_if_slow()
    def run(self) -> Results:
        """Play all trials.

        Returns:
            One result per crafter, mechanism and view, in this order.

        Raises:
            InputError: If a crafter or mechanism of the user's fails or returns something unusable.
        """
        views = sorted(set(self.views), key=VIEWS.index)
        trials: dict[Key, list[Trials]] = {}
        # Measurements have streams of their own: the first of many is the same as the only one.
        streams = np.random.SeedSequence(self.seed).spawn(self.measurements)
        for stream in track(streams, "LDP measurements"):
            for cell, played in self._measurement(stream).items():
                # Keys in this order are the order of the results.
                for view in views:
                    trials.setdefault((*cell, view), []).append(played[view])
        # All bounds of the audit hold together at this confidence of each (a union bound).
        joint = 1 - (1 - self.confidence) / len(trials)
        return Results(self._result(key, played, joint) for key, played in trials.items())

    def _measurement(self, stream: np.random.SeedSequence) -> dict[tuple[int, int], dict[str, Trials]]:
        """Return the trials of one measurement, with its own model and examples, by crafter and mechanism, and view."""
        craft_seed, direction_seed, *seeds = stream.spawn(2 + 2 * len(self.crafters) * len(self.mechanisms))
        trials: dict[tuple[int, int], dict[str, Trials]] = {}
        games: dict[tuple[int, int], BlackBox] = {}
        for c, crafted in enumerate(self._crafted(default_rng(craft_seed))):
            for m, mechanism in enumerate(self.mechanisms):
                # Every cell has seeds of its own, so leaving out a view changes no other.
                white_seed, black_seed, *seeds = seeds
                trials[c, m] = {}
                if {"white-box", "likelihood-ratio"} & set(self.views):
                    trials[c, m] = white_box(crafted, mechanism, self.trials, default_rng(white_seed))
                black_rng = default_rng(black_seed)
                games[c, m] = BlackBox(crafted, mechanism, self.server, black_rng, self.views)
        if {"black-box", "parameter-change"} & set(self.views):
            # All games together, since they share the random directions, which cost most.
            play(list(games.values()), self.trials, int(direction_seed.generate_state(1)[0]))
            for cell, game in games.items():
                trials[cell] |= game.trials()
        return trials

    def _crafted(self, rng: np.random.Generator) -> list[Crafted]:
        """Return what each crafter makes of one model and one pair of examples."""
        examples, task = self.data.pooled(), self.data.task
        model = self.model(int(rng.integers(2**31)))
        # x₁ and x₂, then one example for each further client.
        rows = rng.choice(len(examples), 1 + self.clients, replace=False)
        pair = Pair(*tensors(examples[rows[:2]], task), task)
        crafted = []
        for crafter in self.crafters:
            # A colluding server sends a model of its own, at which all clients then compute their gradients.
            sent, first, second = craft(crafter, model, examples, pair, rng)
            others: Reports = np.empty((self.clients - 1, first.size), dtype=np.float32)
            for i, row in enumerate(rows[2:]):
                others[i] = gradient_of(loss_of(sent, task, *tensors(examples[row : row + 1], task)), sent)
            crafted.append(Crafted(first, second, sent, pair, rule_of(crafter), others))
        return crafted

    def _result(self, key: Key, trials: Sequence[Trials], joint: float) -> Result:
        """Return the result of one crafter, mechanism and view."""
        crafter, mechanism, view = self.crafters[key[0]], self.mechanisms[key[1]], key[2]
        delta, claim = mechanism.delta, mechanism.claim()
        found = evidence(trials, claim, delta=delta, confidence=self.confidence, joint=joint)
        warnings = []
        if found["claim_test"].verdict is Verdict.TOO_WEAK:
            needed = trials_needed(trials, claim, joint)
            if needed is not None:
                half = "half the noise" if claim.least_noise is not None else "twice this ε"
                warnings.append(f"{self._variant(key)}, {view}: about {needed:,} trials would detect {half}")
        findings = []
        if found["claim_test"].refuted:
            rng = default_rng(self.seed)
            direction = rng.standard_normal(parameter_vector(self.model(0)).numel())
            gradient = (mechanism.norm / np.linalg.norm(direction) * direction).astype(np.float32)
            pair = gradient, -gradient
            findings.append(likely_fault(lambda g: mechanism.randomize(g, rng)[0], pair, claim.curve()))
        empirical, guesses = empirical_epsilons(trials, delta), total_guesses(trials)
        metrics = {
            "empirical": float(empirical.mean()),
            "empirical_std": spread(empirical),
            "guessed": guesses.guesses / guesses.canaries,
        }
        if guesses.guesses:
            metrics["accuracy"] = guesses.correct / guesses.guesses
        # What scores alone do not tell of trials: sizes and guessing thresholds of the measurements, and their order.
        sizes = [
            [measurement.scores.size, float(measurement.upper), float(measurement.lower)] for measurement in trials
        ]
        arrays = {}
        if len(trials) > 1:
            arrays["scores"] = np.concatenate([played.scores for played in trials])
            arrays["sent_first"] = np.concatenate([played.sent_first for played in trials])
        return Result(
            odds=_ODDS,
            method="ldp",
            view=view,
            variant=self._variant(key),
            unit=REPORT,
            adversary=ADVERSARIES[view],
            score_name=SCORES[rule_of(crafter) if view == "black-box" else view],
            side_names=("g₁ sent", "g₂ sent"),
            seed=self.seed,
            claim=claim,
            warnings=warnings,
            findings=findings,
            scores=split_scores(trials),
            recipe={"delta": delta, "confidence": self.confidence, "joint": joint, "measurements": sizes},
            arrays=arrays,
            metrics=metrics,
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
            },
            **found,
        )

    def _variant(self, key: Key) -> str:
        """Return a unique name for a pair of crafter and mechanism, such as "dummy-gradient, ε = 4"."""
        names = []
        for crafter in self.crafters:
            for mechanism in self.mechanisms:
                # A name says only what sets a pair apart from the others.
                name, norm = name_of(crafter), getattr(crafter, "norm", None)
                if norm not in (None, mechanism.norm):
                    name += f" of norm {norm:g}"
                if len({mechanism.name for mechanism in self.mechanisms}) > 1:
                    name += f", {mechanism.name}"
                names.append((name, f"ε = {mechanism.epsilon:g}"))
        index = key[0] * len(self.mechanisms) + key[1]
        name, claim = names[index]
        earlier = names[:index].count((name, claim))
        return f"{name} #{earlier + 1}, {claim}" if earlier else f"{name}, {claim}"
