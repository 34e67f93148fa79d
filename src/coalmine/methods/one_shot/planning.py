"""Planning an audit with random updates: how many canaries detect missing noise, and what they cost the training.

The power is that of the test of the claim (docs/claim-test.md) with scores as the strongest attack on a view has them.
docs/one-shot.md explains the numbers.
"""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from typing import Any

from coalmine import claims
from coalmine.claims import Claim, Sampling, parse_sampling
from coalmine.errors import check_count, check_kind, check_positive
from coalmine.methods.one_shot.audit_power import MOST_TRIED, AuditPower, participation_rate
from coalmine.methods.one_shot.costs import extra_noise, step_left
from coalmine.methods.one_shot.views import parse_view

NOISES, POWERS = (0.9, 0.8, 0.5), (0.8, 0.95)
"""Shares of the claimed noise, and powers, that a plan is made for."""

_DRAWN = (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)

# The default number of canaries is a quarter of a round's average: up to a half cost no accuracy where it was measured
# (docs/one-shot.md), and a step three quarters as long is within what learning rates are tuned to.
_AFFORDABLE_SHARE = 0.25
_FEWEST, _MOST = 20, 1000
_NOTICEABLE_SHARE = 0.05


@dataclass(frozen=True, kw_only=True)
class PlannedNumber:
    """How many canaries detect a share of the claimed noise, and what they cost.

    Args:
        noise: The share of the claimed noise that is really there.
        power: Probability to refute the claim then.
        canaries: Inserted canaries that the audit needs, by the test that it uses; None if more than were tried.
        exact_null: Inserted canaries needed if the null distribution of the scores is known.
        counted: Inserted canaries needed if as many held-out canaries are counted instead.
        per_round: Expected number of them in a round.
        share: Their share of a round's average; None if the number of clients is unknown.
        extra_noise: By how much they make the noise larger, as a fraction; None if the dimension is unknown.
    """

    noise: float
    power: float
    canaries: int | None
    exact_null: int | None
    counted: int | None
    per_round: float | None
    share: float | None
    extra_noise: float | None


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
        powers: Triples (share of the noise, canaries, power) with an exact null, for the figure.
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
    powers: tuple[tuple[float, int, float], ...]
    notes: tuple[str, ...]

    @property
    def summary(self) -> str:
        """What is needed to detect half the noise, in a few sentences."""
        row = next(row for row in self.rows if row.noise == min(NOISES) and row.power == min(POWERS))
        claim = f"The claim is ε = {self.claim.epsilon:.3g} at δ = {self.claim.delta:g}."
        if row.canaries is None:
            needed = f"{MOST_TRIED:,} canaries are not known to detect half of its noise with {row.power:.0%} power."
        else:
            needed = f"{row.canaries:,} canaries detect half of its noise with {row.power:.0%} power."
        parts = [claim, needed]
        if row.share is not None:
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
        columns = ["noise", "power", "canaries", "exact null", "counted", "per round", "of the average", "extra noise"]
        return columns, [
            [
                f"{row.noise:g}",
                f"{row.power:.0%}",
                *(_whole(count) for count in (row.canaries, row.exact_null, row.counted)),
                _short(row.per_round),
                "-" if row.share is None else f"{row.share:.0%}",
                "-" if row.extra_noise is None else f"{row.extra_noise:.1%}",
            ]
            for row in self.rows
        ]

    def figure(self) -> Any:
        """Return the power by number of canaries as an altair chart."""
        import altair as alt

        values = [{"noise": f"{noise:g}", "canaries": n, "power": power} for noise, n, power in self.powers]
        x = alt.X(
            "canaries:Q", title="inserted canaries", scale=alt.Scale(type="log", nice=False), axis=alt.Axis(format="~s")
        )
        y = alt.Y("power:Q", title="power", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%"))
        names = [f"{noise:g}" for noise in NOISES]
        color = alt.Color("noise:N", title="share of the noise", scale=alt.Scale(domain=names))
        lines = alt.Chart(alt.InlineData(values=values)).mark_line(point=True).encode(x=x, y=y, color=color)
        wanted = alt.Chart(alt.InlineData(values=[{"power": min(POWERS)}])).mark_rule(color="gray", strokeDash=[4, 3])
        return (lines + wanted.encode(y="power:Q")).properties(width=420, height=220)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan, ready for JSON."""
        fields = {name: getattr(self, name) for name in ("view", "test", "confidence", "clients", "dim", "default")}
        powers = [{"noise": noise, "canaries": n, "exact_null_power": power} for noise, n, power in self.powers]
        return {**fields, "rows": [asdict(row) for row in self.rows], "powers": powers, "notes": list(self.notes)}

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
    differently. Of the test only the half that compares all ranks counts, so for large ε fewer canaries can be enough.

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
        [(0.5, 0.8, 10), (0.5, 0.95, 16)]
    """
    parse_view(view)
    scheme = parse_sampling(sampling) if isinstance(sampling, str) else sampling
    check_kind("sampling", scheme, Sampling, "a text such as poisson:0.01 or a Sampling")
    check_positive("noise_multiplier", noise_multiplier)
    claim = claims.Claim(
        noise_multiplier=noise_multiplier, sampling=scheme, rounds=check_count("rounds", rounds), delta=delta
    )
    clients = None if clients is None else check_positive("clients", clients)
    dim = None if dim is None else check_count("dim", dim, least=2)
    power = AuditPower(claim=claim, view=view, rate=participation_rate(scheme, rounds), confidence=confidence, dim=dim)
    return Plan(
        claim=claim,
        view=view,
        test=power.test,
        confidence=confidence,
        clients=clients,
        dim=dim,
        default=None if clients is None else default_canaries(power, clients=clients, rate=power.due, dim=dim),
        rows=tuple(_row(power, noise, wanted, clients, dim) for noise in NOISES for wanted in POWERS),
        powers=tuple((noise, n, power.exact_null(noise, n)) for noise in NOISES for n in _DRAWN),
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
        of = power.counted if power.test == "counted" else power.exact_null
        needed = power.needed(of, min(NOISES), min(POWERS)) or 0
    if needed * rate > clients:
        needed = 0
    count = int(min(_MOST, max(_FEWEST, affordable, needed)))
    return count if dim is None else max(1, min(count, dim // 4))


def _row(power: AuditPower, noise: float, wanted: float, clients: float | None, dim: int | None) -> PlannedNumber:
    """Return the number of canaries for a share of the noise and a power, and what they cost."""
    exact_null, counted = (power.needed(of, noise, wanted) for of in (power.exact_null, power.counted))
    canaries = counted if power.test == "counted" else exact_null
    per_round = None if canaries is None else canaries * power.due
    noise_multiplier = power.claim.noise_multiplier or 0.0
    return PlannedNumber(
        noise=noise,
        power=wanted,
        canaries=canaries,
        exact_null=exact_null,
        counted=counted,
        per_round=per_round,
        share=None if per_round is None or clients is None else 1 - step_left(per_round, clients),
        extra_noise=None
        if per_round is None or dim is None
        else extra_noise(per_round, dim=dim, noise_multiplier=noise_multiplier),
    )


def _short(number: float | None) -> str:
    """Format a number of canaries that need not be whole."""
    if number is None:
        return "-"
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def _whole(count: int | None) -> str:
    return f">{MOST_TRIED:,}" if count is None else f"{count:,}"
