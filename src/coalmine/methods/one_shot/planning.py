"""Planning an audit with random updates: how many canaries detect missing noise, and what they cost the training.

The power is that of the test of the claim (docs/proofs.md) with scores as the strongest attack on a view has them.
docs/one-shot.md explains the numbers.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np
from scipy import stats

from coalmine.claims import Claim, Poisson, Sampling, parse_sampling
from coalmine.claims.sampling import AtMost, Epochs, FixedSize
from coalmine.errors import check_confidence, check_count, check_kind, check_positive
from coalmine.methods.one_shot.canaries import extra_noise
from coalmine.methods.one_shot.scores import parse_view
from coalmine.methods.one_shot.strata import IN_TENSORS
from coalmine.stats.claim_tests import CountedDetection, Detection, KnownNullDetection
from coalmine.stats.tradeoff import Curve, GaussianDP

NOISES, POWERS = (0.9, 0.8, 0.5), (0.8, 0.95)
"""Shares of the claimed noise, and powers, that a plan is made for."""


# The default number of canaries is a quarter of a round's average: up to a half cost no accuracy where it was measured
# (docs/one-shot.md), and a step three quarters as long is within what learning rates are tuned to.
_AFFORDABLE_SHARE = 0.25
_FEWEST, _MOST = 20, 1000
_NOTICEABLE_SHARE = 0.05

# Numbers of canaries that are tried: a tenth apart, which is about as exact as the simulated power is.
_DIGITS = (10, 11, 12, 13, 15, 16, 18, 20, 22, 24, 27, 30, 33, 36, 39, 43, 47, 51, 56, 62, 68, 75, 82, 91)
_TRIED: tuple[int, ...] = (5, 6, 7, 8, 9, *(digits * 10**decade for decade in range(4) for digits in _DIGITS))
MOST_TRIED = _TRIED[-1]
"""The largest number of canaries that is tried."""

_STEP = 8  # of these numbers
_QUANTILES, _ALWAYS_ENOUGH = 11, 50


@dataclass(frozen=True, kw_only=True)
class PlannedNumber:
    """How many canaries detect a share of the claimed noise, and what they cost.

    Args:
        noise: The share of the claimed noise that is really there.
        power: Probability to refute the claim then.
        canaries: Inserted canaries that the audit needs, by the test that it uses; None if more than were tried.
        per_round: Expected number of them in a round.
        share: Their share of a round's average; None if the number of clients is unknown.
        extra_noise: By how much they make the noise larger, as a fraction; None if the dimension is unknown.
    """

    noise: float
    power: float
    canaries: int | None
    per_round: float | None = None
    share: float | None = None
    extra_noise: float | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What an audit with random updates can detect, and what it costs. `plan` makes it.

    Args:
        claim: The claim.
        view: What the adversary sees.
        test: Whether the audit knows the null distribution of its scores, ``"exact-null"``, or counts, ``"counted"``.
        confidence: One minus the false-alarm rate of the test.
        clients: Expected number of clients in a round, or None.
        dim: Number of parameters, or None.
        default: The number of canaries that `coalmine run` inserts if none is set; None without ``clients``.
        rows: The numbers of canaries, for every share of the noise and every power.
        notes: Sentences on what the numbers do not cover.
    """

    claim: Claim
    view: str
    test: str
    confidence: float
    clients: float | None
    dim: int | None
    default: int | None
    rows: tuple[PlannedNumber, ...]
    notes: tuple[str, ...]

    @property
    def summary(self) -> str:
        """What is needed to detect half the noise, in a few sentences."""
        row = next(row for row in self.rows if row.noise == min(NOISES) and row.power == min(POWERS))
        claim = f"The claim is ε = {self.claim.epsilon:.3g} at δ = {self.claim.delta:g}."
        needed = f"{MOST_TRIED:,} canaries are not known to detect half of its noise with {row.power:.0%} power."
        if row.canaries is not None:
            needed = f"{row.canaries:,} canaries detect half of its noise with {row.power:.0%} power."
        parts = [claim, needed]
        if row.share is not None and row.per_round is not None:
            cost = f"Expect {_short(row.per_round)} of them in a round, {row.share:.0%} of its average"
            if row.share >= _NOTICEABLE_SHARE:
                cost += (
                    f": it moves the model {1 - row.share:.2g} times as far as without them, unless the server's "
                    f"learning rate is multiplied by {1 / (1 - row.share):.2g}"
                )
            parts.append(f"{cost}.")
        if self.default is not None:
            parts.append(f"By default {self.default:,} are inserted.")
        return " ".join([*parts, *self.notes])

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Return the rows as a table of texts: its columns, and its cells."""
        columns = ["noise", "power", "canaries", "per round", "of the average", "extra noise"]
        cells = []
        for row in self.rows:
            canaries, per_round, share, extra = f">{MOST_TRIED:,}", "-", "-", "-"
            if row.canaries is not None and row.per_round is not None:
                canaries, per_round = f"{row.canaries:,}", _short(row.per_round)
            if row.share is not None:
                share = f"{row.share:.0%}"
            if row.extra_noise is not None:
                extra = f"{row.extra_noise:.1%}"
            cells.append([f"{row.noise:g}", f"{row.power:.0%}", canaries, per_round, share, extra])
        return columns, cells

    def to_dict(self) -> dict[str, Any]:
        """Return the plan, ready for JSON."""
        fields = {name: getattr(self, name) for name in ("view", "test", "confidence", "clients", "dim", "default")}
        return {**fields, "rows": [asdict(row) for row in self.rows], "notes": list(self.notes)}

    def __str__(self) -> str:
        columns, rows = self.cells()
        widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
        lines = ["  ".join(map(str.rjust, row, widths)) for row in (columns, *rows)]
        return "\n".join([*lines, textwrap.fill(self.summary, 118, break_on_hyphens=False)])


def plan(
    *,
    noise_multiplier: float,
    sampling: str | Sampling = "every-round",
    rounds: int = 1,
    clients: float | None = None,
    dim: int | None = None,
    view: str = "updates",
    delta: float = 1e-5,
    confidence: float = 0.95,
) -> Plan:
    """Plan an audit with random updates: how many canaries detect missing noise, and what they cost.

    The power is that of the likelihood-ratio score for the view ``updates``, and of the cosine for views of models,
    where a canary stands out of the noise of all rounds by q √rounds / noise, q being its share of the rounds. Both
    leave out that the clients' own updates hide canaries a little, and that a server with momentum weighs rounds
    differently.

    Args:
        noise_multiplier: Claimed noise: standard deviation on a round's sum over the clip norm.
        sampling: How clients and canaries take part, as text such as ``"poisson:0.01"`` or a `Sampling`.
        rounds: Number of rounds.
        clients: Expected number of clients in a round, for what canaries cost.
        dim: Number of parameters, for how canaries disturb each other, and for the noise that they add.
        view: What the adversary sees, as in `OneShot`.
        delta: The δ at which ε is claimed.
        confidence: One minus the false-alarm rate of the test.

    Returns:
        The plan. ``print`` shows it as a table.

    Raises:
        InputError: If an argument is out of range, or nothing is claimed because there is no noise.

    Example:
        >>> planned = plan(noise_multiplier=3.0, sampling="every-round", rounds=10, clients=50)
        >>> [(row.noise, row.power, row.canaries) for row in planned.rows if row.noise == 0.5]
        [(0.5, 0.8, 8), (0.5, 0.95, 13)]
    """
    parse_view(view)
    scheme = parse_sampling(sampling) if isinstance(sampling, str) else sampling
    check_kind("sampling", scheme, Sampling, "a text such as poisson:0.01 or a Sampling")
    check_positive("noise_multiplier", noise_multiplier)
    claim = Claim(noise_multiplier=noise_multiplier, sampling=scheme, rounds=check_count("rounds", rounds), delta=delta)
    clients = None if clients is None else check_positive("clients", clients)
    dim = None if dim is None else check_count("dim", dim, least=2)
    power = AuditPower(claim=claim, view=view, rate=participation_rate(scheme, rounds), confidence=confidence, dim=dim)
    rows = []
    for noise in NOISES:
        for wanted in POWERS:
            canaries, costs = power.needed(noise, wanted), dict[str, float]()
            if canaries is not None:
                costs["per_round"] = per_round = canaries * power.due
                if clients is not None:
                    costs["share"] = 1 - clients / (clients + per_round)
                if dim is not None:
                    costs["extra_noise"] = extra_noise(per_round, dim=dim, noise_multiplier=noise_multiplier)
            rows.append(PlannedNumber(noise=noise, power=wanted, canaries=canaries, **costs))
    return Plan(
        claim=claim,
        view=view,
        test=power.test,
        confidence=confidence,
        clients=clients,
        dim=dim,
        default=None if clients is None else default_canaries(power, clients=clients, rate=power.due, dim=dim),
        rows=tuple(rows),
        notes=power.notes,
    )


def default_canaries(power: AuditPower | None, *, clients: float, rate: float, dim: int | None = None) -> int:
    """Return the number of canaries to insert if none is set.

    As many as are a quarter of a round's average. If more are needed to detect half the claimed noise with 80% power,
    as many as that, unless they outnumber the clients. Between 20 and 1,000 in any case, and at most a quarter of the
    dimensions, beyond which canaries disturb each other.

    Args:
        power: The power of the audit, or None if nothing is claimed.
        clients: Expected number of clients in a round.
        rate: Expected share of the canaries in a round.
        dim: Number of parameters, if known.

    Example:
        >>> default_canaries(None, clients=100, rate=0.1), default_canaries(None, clients=10, rate=1.0)
        (333, 20)
    """
    affordable = clients * _AFFORDABLE_SHARE / (1 - _AFFORDABLE_SHARE) / rate
    needed = 0
    if power is not None and affordable < _MOST:
        needed = power.needed(min(NOISES), min(POWERS)) or 0
    if needed * rate > clients:
        needed = 0
    count = int(min(_MOST, max(_FEWEST, affordable, needed)))
    return count if dim is None else max(1, min(count, dim // 4))


def _short(number: float) -> str:
    """Format a number of canaries that need not be whole."""
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


# Power


def participation_rate(sampling: Sampling, rounds: int) -> float:
    """Return the share of the rounds that a client takes part in.

    Example:
        >>> participation_rate(AtMost(5), rounds=20)
        0.25
    """
    match sampling:
        case Epochs():
            return min(1.0, sampling.epochs / rounds)
        case AtMost():
            return min(1.0, sampling.times / rounds)
        case _:
            return 1.0 if sampling.rate is None else sampling.rate


class AuditPower:
    """The power of an audit's test of a claim, by share of the noise and number of canaries.

    Args:
        claim: The claim, with a noise multiplier.
        view: What the adversary sees.
        rate: Share of the rounds that a canary takes part in.
        confidence: One minus the false-alarm rate of the test.
        dim: Number of parameters, a fifth of the canaries being in single tensors; None if all of them have random
            directions and do not disturb each other.

    Example:
        >>> from coalmine.claims import Claim, EveryRound
        >>> claim = Claim(noise_multiplier=3.0, sampling=EveryRound(), rounds=10, delta=1e-5)
        >>> power = AuditPower(claim=claim, view="updates", rate=1.0)
        >>> power.power(0.5, 50) > 0.95, power.power(1.0, 50) < 0.05
        (True, True)
    """

    def __init__(
        self, *, claim: Claim, view: str, rate: float, confidence: float = 0.95, dim: int | None = None
    ) -> None:
        self.claim, self.view, self.rate, self.dim = claim, view, rate, dim
        self._alpha, sampling = 1 - check_confidence(confidence), claim.sampling
        self._curve, self.power, self._truth = cache(claim.curve), cache(self._power), cache(self.truth)
        self._detection = cache(self._detection_with)
        # Expected share of the canaries in a round that has any: all of them, if they share a few rounds.
        self.due = 1.0 if isinstance(sampling, AtMost) else rate
        # Where canaries have several secret rounds of their own, `OneShot` does not know the null distribution.
        secret = isinstance(sampling, Poisson | FixedSize) or (isinstance(sampling, Epochs) and sampling.epochs > 1)
        self.test = "counted" if view == "updates" and secret else "exact-null"
        # Sentences on what the power does not cover.
        self.notes: tuple[str, ...] = ()
        if view == "updates" and isinstance(sampling, Epochs):
            self.notes = ('This is for an adversary who knows the rounds of each canary: use score "sum".',)
        elif view == "final":
            self.notes = ("The initial weights hide canaries in the final model: final-change needs fewer.",)
        elif view.startswith(("every", "rounds")):
            note = f"The numbers are for final-change; {view} is scored by its largest cosine, and needs more."
            self.notes = (note,)

    def truth(self, noise: float) -> Curve:
        """Return the trade-off curve that the attack reaches if this share of the noise is there."""
        sampling, rounds = self.claim.sampling, self.claim.rounds or 0
        sigma = noise * (self.claim.noise_multiplier or 0.0)
        if self.view == "updates":
            claim = self.claim
            if isinstance(sampling, Poisson | FixedSize):
                claim = claim.replace(sampling=Poisson(self.rate))  # which has a tight accountant, for adding a canary
            # A claim covers adding and removing a client; the attack has only members that were added.
            return claim.curve(noise).directions[0]
        # The model's change holds a canary's updates of K rounds and the noise of all of them: its score is shifted by
        # K / (σ √rounds) standard deviations. With Poisson sampling K varies by rounds · q · (1 − q), which widens the
        # members' scores; √(2 / (2 + variance)) keeps the area under the ROC curve.
        variance = 0.0
        if isinstance(sampling, Poisson):
            variance = self.rate * (1 - self.rate) / sigma**2
        return GaussianDP(self.rate * math.sqrt(rounds) / sigma * math.sqrt(2 / (2 + variance)))

    def needed(self, noise: float, power: float) -> int | None:
        """Return the fewest canaries that detect a share of the noise with a power, or None if more than were tried."""
        # Upwards in steps, since power decreases again where canaries disturb each other, then by bisection.
        steps = [*range(_STEP - 1, len(_TRIED) - 1, _STEP), len(_TRIED) - 1]
        high: int | None = next((step for step in steps if self.power(noise, _TRIED[step]) >= power), None)
        if high is None:
            return None
        low = max(-1, high - _STEP)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.power(noise, _TRIED[middle]) >= power else (middle, high)
        needed: int = _TRIED[high]
        return needed

    def _power(self, noise: float, canaries: int) -> float:
        """Return the power of the audit's test with so many inserted canaries if a share of the noise is there."""
        truth, scored = self._truth(noise), canaries
        if self.dim is not None:
            scored -= canaries // IN_TENSORS  # those in single tensors have a test of their own
            if isinstance(truth, GaussianDP):
                # Nor are they orthogonal to the others: each adds 1/dim of a canary's square to the variance of their
                # scores, in the same direction every round.
                truth = GaussianDP((truth.mu**-2 + canaries / IN_TENSORS / self.dim) ** -0.5)
        # Evenly likely numbers of inserted canaries if a coin decides on each of twice as many.
        inserted = np.array([scored])
        if scored <= _ALWAYS_ENOUGH:
            quantiles = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
            inserted = np.clip(stats.binom.ppf(quantiles, 2 * scored, 0.5), 1, 2 * scored - 1)
        powers = []
        for members in inserted.astype(int).tolist():
            held_out = 2 * scored - members if self.test == "counted" else None
            powers.append(self._detection(members, held_out).power(truth))
        return float(np.mean(powers))

    def _detection_with(self, members: int, nonmembers: int | None) -> Detection:
        """Return simulated audits with so many scores."""
        if nonmembers is None:
            return KnownNullDetection(members, self._curve(1.0), self._alpha, by_signs=True)
        return CountedDetection(members, nonmembers, self._curve(1.0), self._alpha, "coin-flips")
