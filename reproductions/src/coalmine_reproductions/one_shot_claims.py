"""What Andrew et al. (2023) claim about Tables 2 to 4 and Figures 1 and 2."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coalmine.arrays import Floats
from coalmine_reproductions.claims import PaperClaim, falls, near, pairs_fall, rises


def table_2(noises: Sequence[float]) -> list[PaperClaim]:
    """Return the claim that canaries do not change the accuracy."""
    names = [f"noise {noise:g}, times {times}" for noise in noises for times in (0, 1)]
    # The paper's largest difference is 0.1 points; ours has the noise of a test set of 2,000 messages, about 0.5.
    return [
        PaperClaim(
            "canaries change accuracy by at most 0.1 points; by at most 0.5 on our test set",
            "0 to 0.1",
            names,
            lambda means: bool(np.all(np.abs(means[1::2] - means[0::2]) <= 0.5)),
        )
    ]


def table_3(noises: Sequence[float], paper: Sequence[Sequence[str]]) -> list[PaperClaim]:
    """Return the claims about four columns, and that the final model shows far less than all updates.

    Args:
        noises: Noise multipliers, rising.
        paper: For each, the paper's ε_lo-all, ε_est-all, ε_lo-final and ε_est-final.
    """
    columns = {
        "ε_lo-all": "published updates",
        "ε_est-all": "estimate updates",
        "ε_lo-final": "published final",
        "ε_est-final": "estimate final",
    }
    claims = []
    for column, (label, key) in enumerate(columns.items()):
        values = [float(row[column]) for row in paper]
        within = [0.2 * value for value in values]
        names = [f"{key} {noise:g}" for noise in noises]
        text = f"{label} falls with noise, to within a fifth of the paper's numbers"
        claims.append(
            PaperClaim(text, ", ".join(row[column] for row in paper), names, near(*values, within=within), _no_rise)
        )
    names = [f"estimate {view} {noise:g}" for noise in noises for view in ("updates", "final")]
    final = [f"estimate final {noise:g}" for noise in noises]
    return [
        PaperClaim(
            "the analytical ε (RDP) are 100k, 1,000, 100 and 50, to within 1%",
            "100k, 1000, 100, 50",
            [f"analytical {noise:g}" for noise in noises if noise],
            near(1e5, 1e3, 100, 50, within=[1e3, 10, 1, 0.5]),
        ),
        *claims,
        PaperClaim("ε_est-final is below ε_est-all", "0.675 to 5.49", names, pairs_fall),
        PaperClaim(
            "even a small amount of noise (0.0644) brings ε_est-final down to less than half of that without noise",
            "5.49, 1.74",
            final[:2],
            lambda means: bool(means[1] < means[0] / 2),
            falls,
        ),
    ]


def separation(noises: Sequence[float], repetitions: Sequence[int], *, what: str) -> list[PaperClaim]:
    """Return the claims that repetitions raise, and noise lowers, what the final model or its change shows."""
    claims = [
        PaperClaim(
            f"{what} rises with repetitions, noise {noise:g}, {view}",
            "no number",
            [f"{view} {noise:g} {times}" for times in repetitions],
            rises,
        )
        for view in ("final", "final-change")
        for noise in noises
    ]
    return claims + [
        PaperClaim(
            f"{what} falls with noise, {times} times, {view}",
            "no number",
            [f"{view} {noise:g} {times}" for noise in noises],
            falls,
        )
        for view in ("final", "final-change")
        for times in repetitions
    ]


LOWER_BOUND_ABOVE = PaperClaim(
    "ε_lo exceeds ε_est in one of 15 cases",
    "1",
    ["ε_lo above ε_est"],
    # A count with a mean of 1 exceeds 3 with a probability of 2%.
    lambda means: bool(means[0] <= 3),
    lambda means: bool(means[0] < 7.5),
)

TABLE_4 = (
    PaperClaim(
        "few of 15 Anderson–Darling statistics exceed the 15% level",
        "3",
        ["above the 15% level"],
        # Of 15 independent tests at 15%, 6 or more reject with a probability of 2% if all are normal.
        lambda means: bool(means[0] <= 5),
    ),
    PaperClaim(
        "no Anderson–Darling statistic exceeds the 1% level (here: at most one of 15 per seed)",
        "0",
        ["above the 1% level"],
        # Of 15 independent tests at 1%, one rejects with a probability of 13% if all are normal, and two with 1%.
        lambda means: bool(means[0] <= 1),
    ),
)


def _no_rise(means: Floats) -> bool:
    """Return whether no number is larger than the one before."""
    return bool(np.all(np.diff(means) <= 0))
