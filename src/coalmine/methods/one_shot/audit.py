"""The one-shot audit: random updates inserted as extra clients of a single training run (Andrew et al., 2023)."""

from __future__ import annotations

import copy
import hashlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Floats, Ints
from coalmine.checks.findings import Replay
from coalmine.checks.training import TrainingChecks
from coalmine.claims import Claim
from coalmine.claims.sampling import (
    AtMost,
    Epochs,
    EveryRound,
    FixedSize,
    Observed,
    Poisson,
    Sampling,
    parse_sampling,
)
from coalmine.errors import CanaryWarning, InputError, check_count, check_kind, check_number, check_positive
from coalmine.layers import Layers, LayerSpec, read_model
from coalmine.methods.estimates import canary_evidence, normality, rough_epsilon
from coalmine.methods.one_shot.canaries import (
    FAMILIES,
    CanarySet,
    PlantedCanaries,
    choose_family,
    clip_scale,
    extra_noise,
    largest_clip_norm,
    noise_scale,
    warn_if_crowded,
)
from coalmine.methods.one_shot.scores import ADVERSARIES, SMALLEST_REMAINDER, Function, find_score, parse_view
from coalmine.protocol import Audit, Release, Vector, View
from coalmine.results.result import Result, common_delta
from coalmine.results.summary import list_rounds
from coalmine.results.verdict import USER, Verdict
from coalmine.stats import CosineNull, Null
from coalmine.stats.gaussian import epsilon_gdp
from coalmine.stats.rank_tests import Design
from coalmine.vectors import CPU, AnyVector, VectorKind, check_flat, dot, flat, on

_LOGGED = ("planted", "observed", "aborted", "norms", "clip_norms")  # one entry per round each


class OneShot(Audit):
    """Audits a training in a single run with random canary updates (Andrew et al., 2023).

    Draws ``2 * canaries`` random unit vectors and inserts each with probability one half as an extra client whose
    update has the clip norm. The score of a canary says how much of it the releases contain: for a single release its
    cosine. Held-out canaries follow a known null distribution, which is what makes the lower bound valid without
    retraining. It assumes that the training treats canaries like clients.

    Beside the scores, the audit checks what it sees of the training: that noise is on every tensor and fresh in every
    round, and who took part (docs/checks.md). The ``findings`` of the result name what is wrong.

    Args:
        model: The module, its state dict or a list of its parameters; or the number of trainable parameters. With
            tensors, canaries have their device and float type, and ``layers`` are theirs. With a number, they
            are NumPy arrays, which add to tensors too.
        rounds: Number of training rounds.
        canaries: Expected number of inserted canaries. The same number is held out. `coalmine.plan` shows how
            many detect missing noise, and what they cost.
        view: What the adversary sees: ``"final"``, ``"final-change"``, ``"updates"``, ``"every:N"`` or
            ``"rounds:A,B"`` (see `parse_view`).
        participation: When canaries take part: ``"every-round"``, ``"poisson:Q"``, ``"epochs:N"``, ``"last:N"``,
            ``"fixed:SIZE/POPULATION"``, or a `Sampling`.
        score: ``"cosine"``, ``"max"``, ``"sum"`` or ``"likelihood-ratio"``; the view's default if None. Or a function
            of a release and a canary, both (dim,), whose sum over all releases is the score.
        design: ``"coin-flips"`` inserts each canary with probability one half, as the one-run bound needs;
            ``"fixed"`` inserts exactly ``canaries`` of them, as the paper does.
        family: ``"hadamard"`` (orthogonal, fast), ``"orthogonal"`` (for small models) or ``"gaussian"`` (independent,
            the paper's); chosen by the dimension if None.
        initial: The model before the first round, (dim,), for views that compare models.
        norm: Norm of the canaries where the training does not clip; an upper limit where it does.
        layers: Sizes or shapes of the model's tensors by name, in the order of the vector; a list of sizes; the module;
            or its state dict. A fifth of the canaries then point into single tensors, and checks name tensors. The
            simulator and the integrations fill it in.
        noise_per_layer: Only where tensors have different noise, each with a clip norm of its own: the noise's standard
            deviation on each tensor of ``layers``, divided by noise multiplier × ``clip_norm``, where ``clip_norm`` is
            the norm of all clip norms together. Canaries and releases are rescaled so that it is the same for all
            (docs/checks.md).
        seed: Seed for the canaries and for which of them are inserted.

    Raises:
        InputError: If the view needs an initial model and none is given, if the score does not support the view, or if
            the canaries do not fit the dimension.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> audit = OneShot(5_000, rounds=5, canaries=100, view="updates", participation="every-round")
        >>> for t in range(5):
        ...     planted = audit.plant(t, clip_norm=1.0)
        ...     total = planted.total + rng.normal(0, 2.0, 5_000)  # plus your clients' clipped updates
        ...     update = (total / planted.clients).astype(np.float32)
        ...     audit.observe(t, update=update, divisor=planted.clients)
        >>> result = audit.result(claim=Claim(noise_multiplier=2.0, delta=1e-5))
        >>> result.verdict.value
        'not refuted'
    """

    def __init__(
        self,
        model: int | LayerSpec,
        *,
        rounds: int,
        canaries: int = 100,
        view: str = "final",
        participation: str | Sampling = "epochs:1",
        score: str | Function | None = None,
        design: Design = "coin-flips",
        family: str | None = None,
        initial: AnyVector | None = None,
        norm: float | None = None,
        layers: LayerSpec | None = None,
        noise_per_layer: Mapping[str, float] | None = None,
        seed: int = 0,
    ) -> None:
        model = list(model) if isinstance(model, Iterator) else model  # module.parameters() can be read only once
        self.dim, tensors = read_model(model)
        self._kind = VectorKind.of(model)
        self.rounds = check_count("rounds", rounds)
        self.canaries = check_count("canaries", canaries)
        self.seed = check_count("seed", seed, least=0)
        self.norm = None if norm is None else check_positive("norm", norm)
        if design not in get_args(Design):
            raise InputError(f"design must be coin-flips or fixed, got {design!r}")
        self.design: Design = design
        self.participation = parse_sampling(participation) if isinstance(participation, str) else participation
        check_kind("participation", self.participation, Sampling, "a text such as epochs:1 or a Sampling")
        count = 2 * self.canaries
        self.participation.check(count, self.rounds)
        # Expected share of the canaries that take part in each round.
        self._rates = [self.participation.expected(count, self.rounds, t) / count for t in range(self.rounds)]
        self._drawn: dict[int, Ints] = {}  # canaries of each round, where the training draws them itself
        self._largest_draw: FixedSize | None = None
        self.family: str = choose_family(family, self.dim, count)
        known_layers = tensors if layers is None else Layers.of(layers).check(self.dim)
        self.noise_per_layer = None if noise_per_layer is None else dict(noise_per_layer)
        self._noise_scale: Vector | None = None
        if noise_per_layer is not None:
            self._noise_scale = noise_scale(noise_per_layer, known_layers)
        self._drawn_as: Any = {"dim": self.dim, "canaries": self.canaries, "design": design, "seed": self.seed}
        self._canaries = CanarySet(family=self.family, layers=known_layers, scale=self._noise_scale, **self._drawn_as)
        self.members = self._canaries.members
        self._plants = True
        self.plants_as = f"{self.family} canaries of seed {self.seed}"
        self._watch(view, score, initial)

    def _watch(self, view: str, score: str | Function | None, initial: AnyVector | None) -> None:
        """Start with an empty record of what this view shows, and of the training."""
        self.view, self._view = view, parse_view(view)
        every, late = self._view.every or 1, [round for round in self._view.at if round >= self.rounds]
        if every > self.rounds:
            raise InputError(f"the view {view} skips all {self.rounds} rounds: use final, or a smaller N")
        if late:
            raise InputError(f"the view {view} includes round {late[0]}, but rounds run from 0 to {self.rounds - 1}")
        self._asked, kind = score, find_score(score, self._view, view)
        self.score = kind.name
        self.views = (self._view,)
        if self._plants and self._view.kind != "update":
            self.views = (*self.views, View("update"))  # not for the adversary, only for the checks
        layers, scale, noise = self._canaries.layers, self._canaries.scale, self._noise_scale
        self._names = () if layers is None else tuple(layers.names)
        compares = view not in ("final", "updates")
        if compares and initial is None:
            raise InputError(f"the view {view} compares models: pass initial=, the model before the first round")
        if initial is not None and not compares:
            raise InputError(f"the view {view} does not compare models: leave out initial=")
        self._initial: Vector | None = None
        if initial is not None:
            start = check_flat(flat(initial, self._names), "the initial model", self.dim)
            self._initial = copy.deepcopy(start)
        self._previous = self._initial  # the model that the next release is compared with
        # In which rounds plant and observe were called, and the norm of the canaries in each.
        self._planted, self._observed, self._aborted = np.zeros((3, self.rounds), dtype=bool)
        self._norms, self._clip_norms = np.full((2, self.rounds), np.nan)
        count = self._canaries.count
        self._due = np.zeros(count, dtype=np.int64)  # how often each canary was due since the last release
        # Where all canaries take part in the same rounds, known to the adversary, their scores are one dot product.
        self._shares_rounds = self.participation.knowledge == "rounds" and all(
            len(self._present(t)) in (0, count) for t in range(self.rounds)
        )
        self._knows_rounds = self.participation.knowledge == "rounds" or kind.knows_rounds
        self._evidence = kind(self._canaries.dense, participation=self.participation, shared_rounds=self._shares_rounds)
        # The matched filter a/r² of the canaries' factors a and the noise r: what releases are multiplied by.
        self._weights = scale
        if noise is not None:
            self._weights = noise**-2 if scale is None else scale / noise**2
        self._checks = TrainingChecks(self.dim, self.rounds, self.seed, layers, noise)
        names = ("dim", "rounds", "canaries", "view", "score", "design", "family", "norm", "seed")
        self._config = {name: getattr(self, name) for name in names} | {"participation": str(self.participation)}
        if self.noise_per_layer is not None:
            self._config["noise_per_layer"] = self.noise_per_layer
        self._finished = False
        self._inserted: tuple[int, PlantedCanaries] | None = None  # round and canaries of the last `plant`

    def seen_by(self, view: str, *, score: str | Function | None = None, initial: AnyVector | None = None) -> OneShot:
        """Return an audit of the same canaries by another adversary, which inserts nothing itself.

        Give both to the training, or call ``plant`` and ``observe`` of both in your own loop.

        Args:
            view: What the other adversary sees.
            score: Its score; the view's default if None.
            initial: The model before the first round, for views that compare models.

        Example:
            >>> audit = OneShot(5_000, rounds=5, canaries=100, view="updates")
            >>> audit.seen_by("final").plant(0, clip_norm=1.0) is None
            True
        """
        other = copy.copy(self)
        other._plants, other.plants_as = False, None
        other._watch(view, score, initial)
        return other

    # Before the training

    def joins(self, *, clients: float | None, noise_multiplier: float = 0.0) -> None:
        """Warn if the canaries outnumber the clients of a round, or add more noise than the mechanism does.

        The simulator and the integrations call it. In your own loop, call it before the first round.

        Args:
            clients: Expected number of clients in a round, or None if canaries do not count in the divisor.
            noise_multiplier: Noise standard deviation on the sum over the clip norm, if known.

        Example:
            >>> import warnings
            >>> audit = OneShot(5_000, rounds=5, canaries=100, participation="every-round")
            >>> with warnings.catch_warnings(record=True) as caught:
            ...     audit.joins(clients=50)
            >>> str(caught[0].message)[:59]
            '100 canaries beside 50 clients in a round: it moves the mod'
        """
        if not self._plants:
            return
        due = self.canaries * max(self._rates)
        if clients is not None:
            warn_if_crowded(due, clients)
        if noise_multiplier > 0 and due > self.dim * noise_multiplier**2:
            factor = 1 + extra_noise(due, dim=self.dim, noise_multiplier=noise_multiplier)
            warnings.warn(
                f"{due:,.4g} canaries in {self.dim:,} dimensions make the noise of a round {factor:.2g} times as "
                "large, which costs accuracy: use fewer canaries. `coalmine plan` shows how many you need",
                CanaryWarning,
                stacklevel=2,
            )

    def describe(
        self,
        *,
        layers: Mapping[str, Sequence[int]] | None = None,
        noise_multiplier: float | None = None,
        stratify: bool = True,
        clip_norms: Mapping[str, float] | None = None,
        even_noise: bool = False,
    ) -> None:
        """Learn about the training, for the checks: names and shapes of its tensors, noise."""
        if layers is not None:
            named = Layers.of(layers).check(self.dim)
            scale, known = self._canaries.scale, self._canaries.layers
            if clip_norms is not None:
                scale = clip_scale(clip_norms, named)
            stratified = named if known is None and stratify and not self._planted.any() else known
            if clip_norms is not None or stratified is not known:
                self._canaries = CanarySet(family=self.family, layers=stratified, scale=scale, **self._drawn_as)
                self._watch(self.view, self._asked, self._initial)
            if known is None:
                self._checks.layers = named
        self._checks.even_noise |= even_noise
        self._checks.noise_multiplier = noise_multiplier or self._checks.noise_multiplier

    # During the training

    def _present(self, round: int) -> Ints:
        """Return the canaries due in a round, inserted and held out."""
        if round in self._drawn:
            return self._drawn[round]
        return self.participation.draw(
            self._canaries.count, self.rounds, seed=self.seed, round=round, purpose="participation"
        )

    def plant(self, round: int, *, clip_norm: float, trial: int | None = None) -> PlantedCanaries | None:
        """Return the canaries to add to a round's sum.

        They count as the *expected* number of clients: an average over the actual number would reveal how many canaries
        are inserted.

        Args:
            round: The round, counted from 0.
            clip_norm: Clip norm of the round, infinite if the training does not clip.
            trial: None, since this audit asks for no frozen rounds.

        Returns:
            The canaries, or None if another audit inserts them.

        Raises:
            InputError: If plant was already called for the round, if it is not part of the training, or if
                nothing is clipped and the audit has no ``norm``.
        """
        if self._finished:
            raise InputError(f"round {round} comes after result() was called: create a new audit for more rounds")
        if check_count("round", round, least=0) >= self.rounds:
            raise InputError(f"round {round} is not one of the audit's {self.rounds} rounds, counted from 0")
        if self._planted[round]:
            raise InputError(f"plant was already called for round {round}: call it once per round")
        missing = np.flatnonzero(~self._planted[:round])
        if len(missing):
            raise InputError(
                f"plant was called for round {round} before {list_rounds(missing)}: call it in the order of rounds, "
                "and skip for rounds that were aborted"
            )
        if not check_number("clip_norm", clip_norm) > 0:
            raise InputError(f"clip_norm must be positive, got {clip_norm} in round {round}")
        length = min(clip_norm, math.inf if self.norm is None else self.norm)
        if math.isinf(length):
            raise InputError(f"round {round} clips nothing, so the canaries have no norm: pass norm= to the audit")
        present = self._present(round)
        self._planted[round], self._norms[round], self._clip_norms[round] = True, length, clip_norm
        self._due[present] += 1
        planted = None
        if self._plants:
            # They count as the expected number of clients: the actual one would reveal how many are inserted.
            planted = self._canaries.planted(present, length, self._rates[round] * self.canaries, self._kind)
            self._inserted = (round, planted)
        return planted

    def record(self, release: Release) -> None:
        """Score all canaries, inserted and held out, against a release, and note it for the checks.

        Raises:
            InputError: If the view does not see this release, if plant was not called for the round, if it was already
                observed, or if the vector has the wrong shape, is not finite, or did not change.
        """
        round = release.round
        vector = check_flat(flat(release.vector, self._names), f"the release of round {round}", self.dim)
        release = replace(release, vector=vector)
        for_checks = self._plants and release.kind == "update"
        if for_checks and round < self.rounds and self._planted[round] and not self._aborted[round]:
            inserted = None
            if self._inserted is not None and self._inserted[0] == round:
                # A training may add its noise to the sum in place, and even release the same array.
                inserted = self._inserted[1].as_planted()
            self._inserted = None  # frees its memory before the canaries are scored
            self._checks.record(release, float(self._clip_norms[round]), inserted)
            del inserted
        if for_checks and self._view.kind != "update":
            return  # what the view does not show has no score
        if release.kind != self._view.kind:
            raise InputError(f'the view {self.view} takes releases of kind "{self._view.kind}", got "{release.kind}"')
        if round >= self.rounds:
            raise InputError(f"round {round} is not one of the audit's {self.rounds} rounds, counted from 0")
        if not self._view.shows(round, self.rounds):
            raise InputError(f"the view {self.view} does not see round {round}")
        if self._observed[round]:
            raise InputError(f"round {round} was already observed: call observe once per release")
        if not self._planted[round]:
            raise InputError(f"plant was not called for round {round}: call it before observe")
        change = vector if self._previous is None else vector - on(vector.device, self._previous)
        if self._weights is not None:
            change = change * on(change.device, self._weights)
        length = math.sqrt(dot(change, change))
        ends_epoch = self._ends_epoch(round)
        if length == 0 and self._due.any():
            raise InputError(
                f"round {round} released a zero update although canaries took part: call skip if it was aborted"
            )
        if length > 0:
            # What an inserted canary adds to its dot product with the release, if that is known.
            shift = None
            if release.kind == "update" and release.divisor is not None:
                shift = float(self._norms[round]) / release.divisor
            terms: Any = {"shift": shift, "rate": self._rates[round], "ends_epoch": ends_epoch}
            self._evidence.add(change, length, due=self._due[: self._canaries.dense.count], **terms)
        elif ends_epoch:
            self._evidence.end_epoch()
        self._observed[round] = True
        self._due = np.zeros_like(self._due)
        if self._previous is not None and (self._view.every is not None or self._view.at):
            self._previous = copy.deepcopy(vector)

    def _ends_epoch(self, round: int) -> bool:
        """Whether an epoch of the participation ends with a round."""
        epochs = self.participation
        return isinstance(epochs, Epochs) and round + 1 == epochs.epoch(self.rounds, round)[2]

    def cohort(self, round: int, clients: int | Sequence[int], available: int) -> None:
        """Record who took part in a round, for the check against the claimed sampling.

        Args:
            round: The round, counted from 0.
            clients: A whole number for each client that took part, canaries left out, or only how many did.
            available: Number of clients that could have taken part.

        Example:
            >>> audit = OneShot(5_000, rounds=5, canaries=100, participation="poisson:0.25")
            >>> audit.cohort(0, clients=[3, 14, 15], available=12)
        """
        if self._plants:
            self._checks.cohort(round, clients, available)

    def add_replay(self, check: str, replay: Replay) -> None:
        """Record a replay that the training or an integration made by itself as a check of this name."""
        self._checks.replays[str(check)] = replay

    def discard(self, round: int) -> None:
        """Take back the canaries inserted into a round that failed, so that it can be repeated."""
        if round < self.rounds and self._planted[round] and not self._observed[round]:
            self._planted[round] = False
            self._due[self._present(round)] -= 1

    def skip(self, round: int, trial: int | None = None) -> None:
        """Record an aborted round: it counts as one without canaries. Views of updates need not observe it.

        Views of models do, since the model of before stays, which has the canaries of earlier rounds.
        """
        self.discard(round)
        if self._view.kind == "update" and self._ends_epoch(round):
            self._evidence.end_epoch()
        self._planted[round] = self._aborted[round] = True
        self._checks.skip(round)
        if isinstance(self.participation, Observed):  # of which the training may never have reported the canaries
            self._drawn.setdefault(round, np.empty(0, dtype=np.int64))

    def seats(self, round: int, trial: int | None = None) -> Sequence[int]:
        """Return the canaries of a round, inserted and held out; all of them if the training draws.

        With a fixed number of inserted canaries, all of which are in every round, the number of nodes is known anyway,
        so held-out ones need none.
        """
        if not self._plants:
            return ()
        if isinstance(self.participation, Observed):
            return range(self._canaries.count)
        present = self._present(round)
        if self.design == "fixed" and len(present) == self._canaries.count:
            present = present[self.members[present]]
        return tuple(present.tolist())

    def sampled(self, round: int, nodes: int, available: int) -> None:
        """Record how many nodes the training drew, and warn if that is a larger share than declared."""
        declared = self._largest_draw or self.participation
        if isinstance(declared, FixedSize) and nodes > (declared.rate or 1.0) * available:
            self._largest_draw = FixedSize(nodes, available)
            self.note(
                f"round {round}: {nodes} of {available} nodes were sampled, a larger share than the declared "
                f"{declared.size} of {declared.population}; the claim accounts for it"
            )

    def took_part(self, round: int, seats: Sequence[int], trial: int | None = None) -> None:
        """Record the canaries that the training drew, or check that it drew all that are due."""
        if self._plants and isinstance(self.participation, Observed):
            self._drawn[round] = np.sort(np.asarray(seats, dtype=np.int64))
        else:
            super().took_part(round, seats, trial)

    # After the training

    def scores(self) -> tuple[Floats, Floats]:
        """Return the scores so far.

        Returns:
            Scores of the inserted and of the held-out canaries, without canaries that took part in no visible release.

        Raises:
            InputError: If nothing was observed yet.
        """
        if not self._observed.any():
            raise InputError(f"the view {self.view} has not observed any release yet: call observe after each round")
        values = self._evidence.evidence()[0]
        scored, members = ~np.isnan(values), self.members[: len(values)]
        return values[scored & members], values[scored & ~members]

    def null(self) -> Null | None:
        """Return the null distribution of a held-out canary's score, or an upper bound on its tails, or None."""
        return self._evidence.evidence()[1]

    def figures(self) -> dict[str, float]:
        """Return a rough ε of what was seen so far, or nothing."""
        epsilon = rough_epsilon(*self.scores()) if self._evidence.times.any() else None
        return {} if epsilon is None else {f"one-shot/{self.view}/epsilon_estimate": epsilon}

    def result(
        self,
        *,
        delta: float | None = None,
        confidence: float = 0.95,
        claim: Claim | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> Result:
        """Return the evidence about ε after the training.

        Args:
            delta: The δ at which ε is stated: that of ``claim`` by default, else 1e-5.
            confidence: Confidence of bounds and intervals.
            claim: What the training claims. It is tested by what it promises to these canaries (`tested_claim`).
            metrics: Numbers to keep with ε, such as the model's accuracy.

        Raises:
            InputError: If plant was not called for a round, a release of the view was not observed, or
                ``delta`` differs from the claim's.
        """
        known = self._observed | (self._aborted & (self._view.kind == "update"))
        missing = [t for t in range(self.rounds) if self._view.shows(t, self.rounds) and not known[t]]
        if missing:
            update = self._view.kind == "update"
            what = "update=, or skip if it was aborted" if update else "model=, the model after it, aborted or not"
            raise InputError(
                f"the view {self.view} has not observed {list_rounds(missing)} of {self.rounds}: call observe with "
                f"{what}"
            )
        tested = None
        if claim is not None:
            check_kind("claim", claim, Claim, "a coalmine.Claim")
            if claim.rounds is None:
                claim = claim.replace(rounds=self.rounds)
            tested = self.tested_claim(claim)
            if self.members_participation is not None:
                # The training says itself that its clients take part otherwise than the claim assumes.
                self._checks.participation_refutes = self.participation == self.members_participation
        values, null, separation = self._evidence.evidence()
        scored, members = ~np.isnan(values), self.members[: len(values)]
        inserted, held_out = values[scored & members], values[scored & ~members]
        terms: dict[str, Any] = {"null": null, "signs": self.family == "hadamard", "design": self.design}
        terms |= {"delta": common_delta(delta, tested), "confidence": confidence, "claim": tested}
        evidence = canary_evidence(inserted, held_out, **terms, expected=separation)
        test = evidence.claim_test
        if test is not None and test.verdict is Verdict.TOO_WEAK and tested and tested.noise_multiplier:
            by_design = test.canaries_needed if separation is not None else None
            needed = self._needed(tested, (by_design or 0) * self.canaries / max(1, len(inserted)))
            evidence = canary_evidence(inserted, held_out, **terms, expected=separation, needed=needed)
        normal, cautions = normality(inserted, "inserted")
        self._checks.clips_canaries = self._canaries.overlong
        self._checks.aborted = int(self._aborted.sum())
        checks, findings = self._checks.findings(tested, claim)
        # With these the gate finds the same again (`OneShotMethod.recompute`).
        check_terms, check_arrays = self._checks.stored()
        config = dict(self._config)
        # The clip norm that `plant` was told: one number, the range of several, or none.
        clips = self._clip_norms[~np.isnan(self._clip_norms)]
        if clips.size:
            low, high = float(clips.min()), float(clips.max())
            config["clip_norm"] = f"{low:g}" if low == high else f"{low:g} to {high:g}"
            if math.isinf(high):
                config["clip_norm"] = "none"
        self._finished = True
        kind, _, rounds = self.view.partition(":")
        return Result(
            method="one-shot",
            view=self.view,
            unit=USER,
            adversary=ADVERSARIES[kind].format(rounds),
            score_name=self.score,
            seed=self.seed,
            estimates=evidence.estimates,
            scores=evidence.scores,
            null=f"cosine:{null.dim}" if isinstance(null, CosineNull) else None,
            claim=claim,
            claim_test=evidence.claim_test,
            arrays=check_arrays,
            recipe={**evidence.recipe, "checks": check_terms},
            checks=checks,
            findings=findings,
            ceiling=evidence.ceiling,
            warnings=[*cautions, *self._warnings(tested), *self.notes],
            metrics={"inserted": float(len(inserted)), "held_out": float(len(held_out)), **normal, **(metrics or {})},
            config=config,
        )

    def _needed(self, claim: Claim, by_design: float) -> int:
        """Return how many canaries detect half the noise by the plan and by the releases; 0 if these are enough."""
        from coalmine.methods.one_shot.planning import NOISES, POWERS, AuditPower, participation_rate

        rate = participation_rate(claim.sampling or EveryRound(), self.rounds)
        # With a margin for coins that insert fewer: who inserts as many as are advised must not be advised again.
        planned = AuditPower(claim=claim, view=self.view, rate=rate, dim=self.dim).needed(min(NOISES), max(POWERS))
        needed = max(planned or 0, math.ceil(by_design))
        return needed if needed > self.canaries else 0

    def _warnings(self, claim: Claim | None) -> Iterator[str]:
        """Yield what to be careful with in the result."""
        if not self._evidence.times.any():
            yield "no canary took part in a round that the view shows, so there is no evidence"
        if self._evidence.least_noise < SMALLEST_REMAINDER:
            yield (
                "no noise detected: beside canaries, a release contains only rounding errors, and the lower bound is "
                "the largest that scores of this precision can show"
            )
        crowd = f"{self.canaries:,} canaries in {self.dim:,} dimensions disturb each other"
        crowded = 4 * self.canaries > self.dim
        if crowded:
            yield f"{crowd}: fewer would show more"
        if claim is None:
            return
        if self._shares_rounds and not crowded and not FAMILIES[self.family].orthonormal:
            # Cosines of Gaussian canaries that share a round are not independent: each is noise to the others, of
            # variance k/d. Even without any other noise they look like a Gaussian mechanism with μ = √(d/k).
            limit = float(epsilon_gdp(math.sqrt(self.dim / self.canaries), claim.delta))
            if limit <= 2 * claim.epsilon:
                yield f"{crowd}: even without noise they would show only about ε = {limit:.3g}; fewer would show more"
        limited = None if self.noise_per_layer is None else largest_clip_norm(self.noise_per_layer)
        if limited is not None:
            yield (
                "the noise of each tensor was stated (noise_per_layer), and the claim covers it only if clip norms "
                f"are as small: that of {limited[0]} at most {limited[1]:.2g} of all of them together"
            )

    # The claim

    @property
    def sampling(self) -> Sampling:
        """Sampling to account for, against an adversary who knows what the score uses."""
        if not self._knows_rounds:
            return self._largest_draw or self.participation.accounted(self._canaries.count, self.rounds)
        # Secret sampling does not protect from an adversary who knows the rounds: only their number counts.
        times = np.zeros(self._canaries.count, dtype=np.int64)
        for round in range(self.rounds):
            times[self._present(round)] += 1
        most = max(1, int(times.max()))
        return EveryRound() if most == self.rounds else AtMost(most)

    def tested_claim(self, claim: Claim) -> Claim:
        """Return what a training's claim promises to these canaries, which is what their scores can test.

        That is the claim itself if they take part like the clients, and if the score does not know rounds that the
        claim assumes to be secret. Otherwise it is the claim for the same noise and the canaries' own rounds: bounds
        are then about these and not about the claimed ε, as ``participation`` of the result says. An ε that somebody
        stated without the noise behind it promises nothing to canaries that take part otherwise.

        The noise is compared with one canary, which moves a round's sum by one clip norm. A claim for replacing a
        client counts its noise per two, so it is tested as if it promised half the noise, and never accused too early.

        Args:
            claim: The training's claim. Its rounds are the audit's unless it states others.

        Example:
            >>> audit = OneShot(5_000, rounds=10, canaries=100, view="updates", participation="last:2")
            >>> round(audit.tested_claim(Claim(noise_multiplier=4.0, delta=1e-5)).epsilon, 2)
            1.36
        """
        if claim.rounds is None:
            claim = claim.replace(rounds=self.rounds)
        secret = isinstance(claim.sampling, Poisson | FixedSize)
        like_members = self.participation == (self.members_participation or claim.sampling)
        like_members &= not (secret and self._knows_rounds)
        if claim.least_noise is None:
            if like_members or claim.sampling in (None, EveryRound()):
                return claim
            # An ε for clients who take part otherwise, without the noise behind it, promises these canaries nothing.
            return Claim(epsilon=math.inf, delta=claim.delta, sampling=self.sampling, rounds=self.rounds)
        if claim.rounds not in range(self.rounds - int(self._aborted.sum()), self.rounds + 1):
            # What canaries can test, if not what is claimed: an ε of other rounds says nothing about these.
            claim = claim.replace(rounds=self.rounds, sampling=claim.sampling)
        if like_members:
            return claim
        tested = claim.replace(sampling=self.sampling, adjacency="add-or-remove-one")  # which canaries are
        if isinstance(tested.sampling, FixedSize):
            # The analysis of fixed-size sampling is loose for large shares, where participation in every round, which
            # is never more private, can have the smaller ε.
            always = claim.replace(sampling=EveryRound())
            if always.epsilon < tested.epsilon:
                return always
        return tested

    # Checkpoints

    def state(self) -> Mapping[str, npt.NDArray[Any]]:
        """Return what a checkpoint keeps, as arrays by name."""
        previous = np.zeros(0, dtype=np.float32) if self._previous is None else on(CPU, self._previous)
        state: dict[str, npt.NDArray[Any]] = {name: np.array(getattr(self, f"_{name}")) for name in _LOGGED}
        state |= {"due": np.array(self._due), "before": np.array(previous)}
        return state | self._evidence.state() | self._checks.state()

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore a saved state."""
        for name in _LOGGED:
            setattr(self, f"_{name}", np.array(state[name]))
        self._due = np.array(state["due"])
        self._previous = np.array(state["before"]) if len(state["before"]) else None
        self._evidence.restore(state)
        self._checks.restore(state)
        self._finished = False

    def __repr__(self) -> str:
        """Return all settings: a checkpoint is resumed only by an audit with the same ones."""
        start = ""
        if self._initial is not None:
            start = hashlib.blake2b(on(CPU, self._initial).tobytes(), digest_size=6).hexdigest()
        return f"OneShot({self._config}, initial={start})"
