"""The one-shot audit: random updates inserted as extra clients of a single training run (Andrew et al., 2023)."""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Floats, Ints
from coalmine.claims import Claim
from coalmine.claims.sampling import EveryRound, FixedSize, Observed, Poisson, Sampling, parse_sampling
from coalmine.errors import InputError, check_count, check_kind, check_positive
from coalmine.layers import Layers, LayerSpec
from coalmine.methods.estimates import rough_epsilon
from coalmine.methods.one_shot.arguments import canary_norm, check_canaries, parsed_dim
from coalmine.methods.one_shot.canary_claim import sampling_of_known_rounds
from coalmine.methods.one_shot.canary_set import CanarySet
from coalmine.methods.one_shot.costs import warn_if_crowded, warn_if_loud
from coalmine.methods.one_shot.inspection import Inspection
from coalmine.methods.one_shot.planted import PlantedCanaries
from coalmine.methods.one_shot.result import one_shot_result
from coalmine.methods.one_shot.scaled import clip_scale, matched_filter, noise_scale
from coalmine.methods.one_shot.updates import check_room, family_for
from coalmine.methods.one_shot.view_record import ViewRecord
from coalmine.protocol import Audit, Release, View
from coalmine.results.finding import Check, Finding
from coalmine.results.result import Result
from coalmine.stats import Null
from coalmine.stats.rank_tests import Design
from coalmine.vectors import AnyVector, check_flat, flat, to_numpy


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
        score: ``"cosine"``, ``"max"``, ``"sum"`` or ``"likelihood-ratio"``; the view's default if None.
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
        canaries: int = 1000,
        view: str = "final",
        participation: str | Sampling = "epochs:1",
        score: str | None = None,
        design: Design = "coin-flips",
        family: str | None = None,
        initial: AnyVector | None = None,
        norm: float | None = None,
        layers: LayerSpec | None = None,
        noise_per_layer: Mapping[str, float] | None = None,
        seed: int = 0,
    ) -> None:
        self.dim, self._kind, tensors = parsed_dim(model)
        self.rounds = check_count("rounds", rounds)
        self.canaries = check_count("canaries", canaries)
        self.seed = check_count("seed", seed, least=0)
        self.design: Design = design
        self.norm = None if norm is None else check_positive("norm", norm)
        self.participation = parse_sampling(participation) if isinstance(participation, str) else participation
        check_kind("participation", self.participation, Sampling, "a text such as epochs:1 or a Sampling")
        check_canaries(self.canaries, design)
        self._count = 2 * self.canaries
        self.participation.check(self._count, self.rounds)
        self._drawn: dict[int, Ints] = {}  # canaries of each round, where the training draws them itself
        self._largest_draw: FixedSize | None = None
        self.family: str = family or family_for(self.dim, self._count)
        check_room(self.family, self.dim, self._count)
        known_layers = tensors if layers is None else Layers.of(layers).check(self.dim)
        self.noise_per_layer = None if noise_per_layer is None else dict(noise_per_layer)
        self._noise_scale = noise_scale(noise_per_layer, known_layers)
        self._canaries = CanarySet(
            dim=self.dim,
            canaries=self.canaries,
            family=self.family,
            design=design,
            layers=known_layers,
            seed=self.seed,
            scale=self._noise_scale,
        )
        self.members = self._canaries.members
        self._plants = True
        self.plants_as = f"{self.family} canaries of seed {self.seed}"
        self._watch(view, score, initial)

    def _watch(self, view: str, score: str | None, initial: AnyVector | None) -> None:
        """Start with an empty record of what this view shows, and of the training."""
        self._record = ViewRecord(
            view,
            self._canaries,
            self.participation,
            rounds=self.rounds,
            score=score,
            initial=initial,
            drawn=self._drawn,
            weights=matched_filter(self._canaries.scale, self._noise_scale),
        )
        self.view, self.views, self.score = view, (self._record.view,), self._record.score
        if self._plants and self._record.view.kind != "update":
            self.views = (*self.views, View("update"))  # not for the adversary, only for the checks
        self._inspection = Inspection(self.dim, self.rounds, self.seed, self._canaries.layers, self._noise_scale)
        self._seconds, self._finished = 0.0, False
        self._inserted: tuple[int, PlantedCanaries] | None = None  # round and canaries of the last `plant`

    def seen_by(self, view: str, *, score: str | None = None, initial: AnyVector | None = None) -> OneShot:
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
        due = self.canaries * max(self._record.rate(round) for round in range(self.rounds))
        if clients is not None:
            warn_if_crowded(due, clients)
        warn_if_loud(due, dim=self.dim, noise_multiplier=noise_multiplier)

    def describe(
        self,
        *,
        layers: Mapping[str, Sequence[int]] | None = None,
        sampling: Sampling | None = None,
        noise_multiplier: float | None = None,
        stratify: bool = True,
        clip_norms: Mapping[str, float] | None = None,
        even_noise: bool = False,
    ) -> None:
        """Learn about the training, for the checks: names and shapes of its tensors, sampling of clients, noise."""
        if layers is not None and clip_norms is not None:
            self._canaries = replace(self._canaries, scale=clip_scale(clip_norms, Layers.of(layers).check(self.dim)))
            self._watch(self.view, self.score, self._record.initial)
        if layers is not None and self._canaries.layers is None:
            named = Layers.of(layers).check(self.dim)
            if stratify and not self._record.log.planted.any():
                self._canaries = replace(self._canaries, layers=named)
                self._watch(self.view, self.score, self._record.initial)
            self._inspection.layers = named
        self._inspection.even_noise |= even_noise
        self._inspection.sampling = sampling or self._inspection.sampling
        self._inspection.noise_multiplier = noise_multiplier or self._inspection.noise_multiplier

    # During the training

    def plant(self, round: int, *, clip_norm: float, trial: int | None = None) -> PlantedCanaries | None:
        """Return the canaries to add to a round's sum.

        They count as the *expected* number of clients: an average over the actual number would reveal how many canaries
        are inserted.

        Args:
            round: The round, counted from 0.
            clip_norm: Clip norm of the round, infinite if the training does not clip.
            trial: Number of a frozen round, in which this audit takes no part.

        Returns:
            The canaries, or None if another audit inserts them.

        Raises:
            InputError: If plant was already called for the round, if it is not part of the training, or if
                nothing is clipped and the audit has no ``norm``.
        """
        if trial is not None:
            return None
        start = time.perf_counter()
        if self._finished:
            raise InputError(f"round {round} comes after result() was called: create a new audit for more rounds")
        self._record.log.check_plant(round)
        norm = canary_norm(round, clip_norm, self.norm)
        present = self._record.plant(round, norm=norm, clip_norm=clip_norm)
        clients = self._record.rate(round) * self.canaries
        planted = self._canaries.planted(present, norm, clients, self._kind) if self._plants else None
        self._inserted = None if planted is None else (round, planted)
        self._seconds += time.perf_counter() - start
        return planted

    def record(self, release: Release) -> None:
        """Score all canaries, inserted and held out, against a release.

        Args:
            release: What the view shows of a round: its ``kind`` must be the view's. Its vector may be a NumPy array or
                a tensor, or a list or state dict of them; scores are computed on its device.

        Raises:
            InputError: If the view does not see this release, if plant was not called for the round, if it was already
                observed, or if the vector has the wrong shape, is not finite, or did not change.
        """
        if release.trial is not None:
            return
        start = time.perf_counter()
        names = () if self._canaries.layers is None else self._canaries.layers.names
        vector = check_flat(flat(release.vector, names), f"the release of round {release.round}", self.dim)
        if vector is not release.vector:
            release = replace(release, vector=vector)
        inspected = self._plants and release.kind == "update"
        if inspected:
            self._inspect(release)
        if not inspected or self._record.view.kind == "update":
            self._record.record(release)
        self._seconds += time.perf_counter() - start

    def _inspect(self, release: Release) -> None:
        """Record an update for the checks."""
        round, log = release.round, self._record.log
        if 0 <= round < self.rounds and log.planted[round] and not log.aborted[round]:
            planted_in, planted = self._inserted or (round, None)
            self._inserted = None  # frees its memory before the canaries are scored
            # A training may add its noise to the sum in place, and even release the same array.
            inserted = planted.as_planted() if planted is not None and planted_in == round else None
            del planted
            self._inspection.record(release, float(log.clip_norms[round]), inserted)

    def cohort(self, round: int, clients: int | Sequence[int], available: int) -> None:
        """Record who took part in a round, for the check against the claimed sampling.

        Args:
            round: The round, counted from 0.
            clients: Identifiers of the clients that took part, canaries left out, or only their number.
            available: Number of clients that could have taken part.

        Example:
            >>> audit = OneShot(5_000, rounds=5, canaries=100, participation="poisson:0.25")
            >>> audit.cohort(0, clients=[3, 14, 15], available=12)
        """
        if self._plants:
            self._inspection.cohort(clients, available)

    def add_findings(self, check: str, findings: Sequence[Finding]) -> None:
        """Record a check that the training or an integration made by itself, and its findings."""
        self._inspection.looked_at(check)
        self._inspection.facts.extend(findings)

    def discard(self, round: int) -> None:
        """Take back the canaries inserted into a round that failed, so that it can be repeated."""
        self._record.discard(round)

    def skip(self, round: int, trial: int | None = None) -> None:
        """Record an aborted round: it counts as one without canaries."""
        if trial is None:
            self._record.skip(round)
            if isinstance(self.participation, Observed):  # of which the training may never have reported the canaries
                self._drawn.setdefault(round, np.empty(0, dtype=np.int64))

    def seats(self, round: int, trial: int | None = None) -> Sequence[int]:
        """Return the canaries of a round, inserted and held out; all of them if the training draws.

        With a fixed number of inserted canaries, all of which are in every round, the number of nodes is known anyway,
        so held-out ones need none.
        """
        if trial is not None or not self._plants:
            return ()
        if isinstance(self.participation, Observed):
            return range(self._count)
        present = self._record.present(round)
        if self.design == "fixed" and len(present) == self._count:
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
        if trial is None and self._plants and isinstance(self.participation, Observed):
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
        return self._record.scores()

    def null(self) -> Null | None:
        """Return the null distribution of a held-out canary's score, or an upper bound on its tails, or None."""
        return self._record.null()

    def live(self) -> str | None:
        """Return a rough ε of what was seen so far, for the progress bar."""
        return next((f"ε̂ {epsilon:.2f} ({self.view})" for epsilon in self.figures().values()), None)

    def figures(self) -> dict[str, float]:
        """Return a rough ε of what was seen so far, or nothing."""
        epsilon = None if self.is_silent else rough_epsilon(*self.scores())
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
            claim: What the training claims. `tested_claim` says what it promises to these canaries.
            metrics: Numbers to keep with ε, such as the model's accuracy.

        Raises:
            InputError: If plant was not called for a round, a release of the view was not observed, or
                ``delta`` differs from the claim's.
        """
        self._record.log.check_complete(self._record.view, self.view)
        if claim is not None:
            check_kind("claim", claim, Claim, "a Claim")
        tested = None if claim is None else self.tested_claim(claim)
        if claim is not None and tested is not None and not self._is_like_members(claim):
            # How members are drawn is part of their claim. Canaries that take part in another way have a claim of
            # their own, which other draws do not refute.
            self._inspection.sampling = self._inspection.claimed_sampling(claim) or EveryRound()
        result = one_shot_result(self, self._record, self._inspection, delta=delta, confidence=confidence, claim=tested)
        if claim is not None and not self._is_like_members(claim):
            findings = [replace(f, refutes=f.refutes and f.check != Check.PARTICIPATION) for f in result.findings]
            result = replace(result, findings=findings)
        self._finished = True
        return replace(
            result,
            metrics={**result.metrics, **(metrics or {})},
            timing={"audit_s": self._seconds},
            config=self._config() | self._record.log.clipping(),
        )

    # The claim

    @property
    def knows_rounds(self) -> bool:
        """Whether the score uses the rounds in which a canary takes part."""
        return self._record.knows_rounds

    @property
    def shares_rounds(self) -> bool:
        """Whether all canaries take part in the same rounds, known to the adversary."""
        return self._record.evidence.history.shared_rounds

    @property
    def is_noiseless(self) -> bool:
        """Whether a release was nothing but canaries, as far as its precision shows."""
        return self._record.evidence.is_noiseless

    @property
    def is_silent(self) -> bool:
        """Whether the view has shown no round with canaries."""
        return self._record.evidence.is_silent

    @property
    def sampling(self) -> Sampling:
        """Sampling to account for, against an adversary who knows what the score uses."""
        if self.knows_rounds:
            return sampling_of_known_rounds(self._record.present, count=self._count, rounds=self.rounds)
        return self._largest_draw or self.participation.accounted(self._count, self.rounds)

    def _is_like_members(self, claim: Claim) -> bool:
        """Whether canaries take part as those do whom the claim protects."""
        return self.participation == (self.members_participation or claim.sampling)

    def tested_claim(self, claim: Claim) -> Claim:
        """Return what a training's claim promises to these canaries, which is what their scores can test.

        That is the claim itself if they take part like the clients, and if the score does not know rounds that the
        claim assumes to be secret. Otherwise it is the claim for the same noise and the canaries' own rounds. An ε that
        somebody stated without the noise behind it is tested as it is.

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
        unchanged = self._is_like_members(claim) and not (secret and self.knows_rounds)
        if unchanged or (claim.noise_multiplier is None and not claim.noise_schedule):
            return claim
        # The analysis of fixed-size sampling is loose for large shares, where participation in every round, which is
        # never more private, can have the smaller ε.
        sampling = self.sampling
        candidates = [sampling, EveryRound()] if isinstance(sampling, FixedSize) else [sampling]
        return min((claim.replace(sampling=candidate) for candidate in candidates), key=lambda tested: tested.epsilon)

    # Checkpoints

    def state(self) -> Mapping[str, npt.NDArray[Any]]:
        """Return what a checkpoint keeps, as arrays by name."""
        return {**self._record.state(), **self._inspection.state(), "seconds": np.array(self._seconds)}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore a saved state."""
        self._record.restore(state)
        self._inspection.restore(state)
        self._seconds, self._finished = float(state["seconds"]), False

    def __repr__(self) -> str:
        """Return all settings: a checkpoint is resumed only by an audit with the same ones."""
        initial = self._record.initial
        start = "" if initial is None else hashlib.blake2b(to_numpy(initial).tobytes(), digest_size=6).hexdigest()
        return f"OneShot({self._config()}, initial={start})"

    def _config(self) -> dict[str, Any]:
        names = ("dim", "rounds", "canaries", "view", "score", "design", "family", "norm", "seed")
        uneven = {} if self.noise_per_layer is None else {"noise_per_layer": self.noise_per_layer}
        return {name: getattr(self, name) for name in names} | {"participation": str(self.participation)} | uneven
