"""What Matsumoto et al. (2022) claim about their figures and Table 3: the text has a few numbers, the figures none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coalmine.arrays import Floats
from coalmine_reproductions.claims import PaperClaim, falls, near, pairs_fall, printed

CRAFTERS = ("benign", "input-perturbation", "parameter-retrogression", "gradient-flip", "collusion", "dummy-gradient")


def number(data: str, crafter: str, epsilon: float, view: str) -> str:
    """Return the name of the number of one adversary in one view."""
    return f"{data} {crafter} {epsilon:g} {view}"


def figure_2(data: str, epsilons: Sequence[float]) -> list[PaperClaim]:
    """Return the claims of Figure 2 (MNIST) and of Figures 5 to 7 (other data), or at ε = 4 of Figures 1(b) and 4."""
    if data not in ("mnist", "fashion-mnist", "cifar10", "svhn"):
        return []

    def numbers(view: str, *crafters: str) -> list[str]:
        return [number(data, crafter, epsilon, view) for epsilon in epsilons for crafter in crafters]

    # A tenth of ε is three standard errors of one measurement of 10,000 trials at ε = 4, where it is least certain.
    reaches = near(*epsilons, within=[0.1 * epsilon for epsilon in epsilons])
    values = ", ".join(f"{epsilon:g}" for epsilon in epsilons)
    claims = [
        PaperClaim(f"{data}: {crafter} reaches ε, white-box", values, numbers("white", crafter), reaches)
        for crafter in ("gradient-flip", "collusion", "dummy-gradient")
    ]
    if data == "mnist":
        # Pairs of examples differ by 0.26: three standard errors of the difference of two means of ten pairs.
        claims += [
            _at_four("benign", 0.94, within=3 * 0.26 * 0.2**0.5),
            _at_four("gradient-flip", 3.99, within=0.3),
            _at_four("collusion", 4.07, within=0.3),
            PaperClaim(
                f"{data}: input perturbation leaks less than benign, white-box",
                "no number",
                numbers("white", "benign", "input-perturbation"),
                pairs_fall,
            ),
        ]
    both = [number(data, c, epsilon, view) for epsilon in epsilons for c in CRAFTERS for view in ("white", "black")]
    untouched = ("benign", "input-perturbation", "parameter-retrogression")
    limits = [epsilon for epsilon in epsilons for _ in untouched]
    claims += [
        PaperClaim(f"{data}: black-box is below white-box for every adversary", "no number", both, pairs_fall, _mostly),
        PaperClaim(
            f"{data}: collusion leaks more than the gradient flip, black-box",
            "no number",
            numbers("black", "collusion", "gradient-flip"),
            pairs_fall,
        ),
        PaperClaim(
            f"{data}: adversaries who do not touch the gradient stay below ε, by the paper's test",
            "no number",
            numbers("white", *untouched),
            lambda means: bool(np.all(means < limits)),
        ),
        PaperClaim(
            f"{data}: adversaries who do not touch the gradient stay below half of ε, whatever the test (lower bounds "
            "by likelihood ratios)",
            "no number",
            numbers("ratio", *untouched),
            lambda means: bool(np.all(means < np.array(limits) / 2)),
        ),
        PaperClaim(
            f"{data}: whoever sees only the updated model stays below half of ε (lower bounds by the change)",
            "no number",
            numbers("change", *untouched),
            lambda means: bool(np.all(means < np.array(limits) / 2)),
        ),
    ]
    return claims


def accuracies(data: str) -> PaperClaim:
    """Return the claim that the black-box view tells the two gradients apart less well, by the share of right guesses.

    ε_empirical takes the worse of two kinds of error and so rewards a test whose errors are unequal. The share of right
    guesses counts both kinds alike.
    """
    names = [number(data, crafter, 4.0, f"{view} accuracy") for crafter in CRAFTERS for view in ("white", "black")]
    text = f"{data}: black-box guesses right less often than white-box, for every adversary"
    return PaperClaim(text, "no number", names, pairs_fall, _mostly)


def section_4_3(data: Sequence[str]) -> list[PaperClaim]:
    """Return the claims about a shuffler who sees the reports of benign clients at ε = 8."""
    return [
        PaperClaim(
            "reports at ε = 8 might leak no more than about 1 to an untrusted shuffler, by the paper's test",
            "like 1",
            [f"white {name}" for name in data],
            lambda means: bool(np.all(np.abs(means - 1) < 0.5)),
        ),
        PaperClaim(
            "reports at ε = 8 leak less than half of ε to an untrusted shuffler, whatever the test (lower bounds by "
            "likelihood ratios)",
            "no number",
            [f"ratio {name}" for name in data],
            lambda means: bool(np.all(means < 4)),
        ),
    ]


def figure_3(norms: Sequence[float], epsilons: Sequence[float]) -> list[PaperClaim]:
    """Return the claims of Figure 3: gradients of norm L = 1 or more reach ε, shorter ones do not."""
    long = [(norm, epsilon) for norm in norms if norm >= 1 for epsilon in epsilons]
    short = [(norm, epsilon) for epsilon in epsilons for norm in norms if norm <= 1]
    count = sum(norm <= 1 for norm in norms)

    def all_rise(means: Floats) -> bool:
        return bool(np.all(np.diff(means.reshape(-1, count), axis=1) > 0))

    expected = [epsilon for _, epsilon in long]
    return [
        PaperClaim(
            "gradients of norm L or more reach ε",
            "ε",
            [f"norm {norm:g}, ε {epsilon:g}" for norm, epsilon in long],
            near(*expected, within=[0.1 * epsilon for epsilon in expected]),
        ),
        PaperClaim(
            "the shorter the gradient, the less it leaks",
            "no number",
            [f"norm {norm:g}, ε {epsilon:g}" for norm, epsilon in short],
            all_rise,
        ),
    ]


TABLE_3 = (
    PaperClaim(
        "black-box leaks 0.12, 0.07, 0.06, 0.06 among 1, 2, 4 and 10 clients",
        "0.12, 0.07, 0.06, 0.06",
        ["1 clients", "2 clients", "4 clients", "10 clients"],
        # Pairs of examples differ by 0.05 to 0.14: three standard errors of the difference of two means of ten pairs.
        near(0.12, 0.07, 0.06, 0.06, within=[3 * spread * 0.2**0.5 for spread in (0.14, 0.054, 0.072, 0.051)]),
        lambda means: bool(np.all(means < 0.5)),
    ),
    PaperClaim("one client among two leaks less than alone", "0.12, 0.07", ["1 clients", "2 clients"], falls),
    PaperClaim(
        "the more clients, the harder the test (here: lower bounds by the change of the parameters)",
        "no number",
        [f"change, {clients} clients" for clients in (1, 2, 4, 10)],
        falls,
    ),
)


def _at_four(crafter: str, value: float, *, within: float) -> PaperClaim:
    """Return the claim of a number that the text prints for MNIST at ε = 4."""
    text = f"mnist: {crafter} at ε = 4, white-box"
    return printed(text, value, number("mnist", crafter, 4.0, "white"), within=within)


def _mostly(means: Floats) -> bool:
    """Return whether the second number is the smaller one in more than half of the pairs."""
    return bool(np.mean(means[1::2] < means[0::2]) > 0.5)
