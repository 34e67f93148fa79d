"""What Maddock et al. (2023) claim about the figures that we reproduce."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coalmine.arrays import Floats
from coalmine_reproductions.claims import PaperClaim, falls, near, pairs_fall, printed, relative_spread, rises

_STABLE = 0.2  # "relatively small standard deviation" over runs, as a share of the mean
_ALIKE = 0.2  # "almost constant"
_NARROW = 0.03  # a deviation that leaves the two histograms far apart, if not as far as in the paper


def _published(text: str, number: str) -> PaperClaim:
    """Return the claim of a deviation of 0.006, judged by the conventions of the published code."""
    return printed(
        f"{text} by the conventions of the published code, too",
        0.006,
        number,
        within=0.003,
        in_shape=lambda means: bool(means[0] < _NARROW),
    )


def figure_3(cohorts: Sequence[int], pools: Sequence[int]) -> list[PaperClaim]:
    """Return the claims of Figure 3, about the paper's canary."""
    return [
        printed("without noise the attack never errs", 1, "accuracy", within=0, spec=".0%"),
        printed("histograms without noise have a deviation of 0.006", 0.006, "std", within=0.003),
        _published("histograms without noise have a deviation of 0.006", f"reference std, {max(pools)}"),
        # The deviation of 50 + 50 scores has a standard error of 0.03: three of the difference of two.
        printed(
            "with σ = 0.423 the deviation is about that of the noise", 0.478, "noisy std", within=3 * 0.03 * 2**0.5
        ),
        PaperClaim(
            "a perfect canary would measure the mechanism: ε̂ᵣ is that of claim (within a fifth)",
            "no number; εᵣ = 12.31",
            ["perfect epsilon"],
            near(12.31, within=_ALIKE * 12.31),
        ),
        *(
            PaperClaim(
                f"more clients per round widen histograms, {pool} mock clients",
                "no number",
                [f"std {cohort}, {pool}" for cohort in cohorts],
                rises,
            )
            for pool in pools
        ),
        *(
            PaperClaim(
                f"larger pools narrow histograms, {cohort} clients per round",
                "no number",
                [f"std {cohort}, {pool}" for pool in pools],
                falls,
            )
            for cohort in cohorts
        ),
        PaperClaim(
            "larger pools narrow histograms by the conventions of the published code, too",
            "no number",
            [f"reference std, {pool}" for pool in pools],
            falls,
        ),
    ]


RESNET = (
    printed("without noise the attack never errs on ResNet18", 1, "accuracy", within=0, spec=".0%"),
    printed("histograms on ResNet18 have a deviation of 0.006", 0.006, "std", within=0.003),
    _published("histograms on ResNet18 have a deviation of 0.006", "reference std"),
)


def figure_4(epsilons: Sequence[float], data: Sequence[str]) -> list[PaperClaim]:
    """Return the claims of Figures 1, 4, 6 and 7, about the paper's canary."""
    largest = f"{max(epsilons):g}"
    composed = [f"composed share {name} {epsilon:g}" for name in data for epsilon in epsilons]
    return [
        printed(
            "test accuracy at ε = 50, Sent140",
            0.639,
            "model sent140",
            within=0.03,
            spec=".1%",
            in_shape=lambda means: bool(means[0] > 0.62),  # the most frequent class has 60%
        ),
        printed(
            "test accuracy at ε = 50, Shakespeare",
            0.448,
            "model shakespeare",
            within=0.03,
            spec=".1%",
            in_shape=lambda means: bool(means[0] > 0.3),  # about twice the share of the most frequent character
        ),
        printed("test accuracy at ε = 50, images (ours: MNIST)", 0.899, "model mnist", within=0.05, spec=".1%"),
        _health("mean health along trainings on Sent140, without the initial model", "health sent140"),
        PaperClaim("ε̂ᵣ on Sent140 is small at first and grows", "no number", ["first sent140", "level sent140"], rises),
        PaperClaim(
            "ε̂ᵣ on Sent140 stays almost constant after its rise (within a fifth)",
            "no number",
            ["middle sent140", "end sent140"],
            lambda means: bool(abs(means[1] / means[0] - 1) < _ALIKE),
        ),
        printed("εᵣ is 4.5 times ε̂ᵣ on Sent140", 4.5, f"gap sent140 {largest}", within=1),
        PaperClaim("εᵣ is 4 to 5 times ε̂ᵣ on Shakespeare", "4 to 5", [f"gap shakespeare {largest}"], _four_to_five),
        PaperClaim("εᵣ is 4 to 5 times ε̂ᵣ on images (ours: MNIST)", "4 to 5", [f"gap mnist {largest}"], _four_to_five),
        PaperClaim(
            "composed, ε̂ is far below ε at every ε (below half)",
            "no number",
            composed,
            lambda shares: bool(np.all(shares < 0.5)),
            lambda shares: bool(np.all(shares < 0.75)),
        ),
        printed(
            "composed, ε̂ is about 6 on images at ε = 50 (ours: MNIST)",
            6,
            f"composed mnist {largest}",
            within=1,
            in_shape=lambda means: bool(means[0] < 25),
        ),
        PaperClaim(
            "composed, ε̂ is lowest on Sent140, with its small sampling rate",
            "no number",
            [f"composed {name} {largest}" for name in ("mnist", "shakespeare", "sent140")],
            lambda means: bool(means.argmin() == 2),
        ),
        PaperClaim(
            "ε̂ is stable over runs (deviation below a fifth of the mean)",
            "no number",
            [f"composed {name} {largest}" for name in data],
            lambda spreads: bool(np.all(spreads < _STABLE)),
            over=relative_spread,
        ),
        PaperClaim(
            "without noise ε̂ᵣ reaches the ceiling of its trials (share of it)",
            "about 1",
            ["share of the ceiling"],
            near(1, within=0.1),
        ),
        PaperClaim(
            "ε̂ᵣ is a function of attack accuracy (rank correlation)",
            "no number",
            ["rank correlation"],
            lambda means: bool(means[0] > 0.8),
        ),
    ]


def _health(text: str, number: str) -> PaperClaim:
    """Return a claim that a mean health is that of the paper's canaries on Sent140."""
    return PaperClaim(text, "0.970 ± 0.098", [number], near(0.97, within=0.098))


def _four_to_five(means: Floats) -> bool:
    """Return whether a gap is between 4 and 5, or as close to that as the other gap of the paper's figures."""
    return bool(3.5 <= means[0] <= 5.5)


TABLE_1 = (
    PaperClaim(
        "designs that start from a training text remove most of the loss",
        "no number",
        ["health of texts"],
        lambda means: bool(means[0] > 0.5),
    ),
)


def figure_5(pools: Sequence[int], iterations: Sequence[int], steps: Sequence[int]) -> list[PaperClaim]:
    """Return the claims of Figure 5, about the paper's canary."""
    starts = [f"{start} {pool}" for pool in pools for start in ("random", "pool")]
    return [
        PaperClaim(
            "random and real starts end with similar deviations (within a fifth)",
            "no number",
            starts,
            lambda means: bool(np.all(np.abs(means[1::2] / means[0::2] - 1) < _ALIKE)),
            lambda means: bool(np.all(np.abs(means[1::2] / means[0::2] - 1) < 0.5)),
        ),
        PaperClaim(
            f"the size of the pool has no significant effect from {pools[1]} mock clients on (within a fifth)",
            "no number",
            [f"random {pool}" for pool in pools[1:]],
            lambda means: bool(np.all(np.abs(means / means[0] - 1) < _ALIKE)),
        ),
        printed(
            "accuracy after 1,000 iterations",
            0.95,
            "1000 iterations",
            within=0.03,
            spec=".0%",
            in_shape=lambda means: bool(means[0] > 0.95),
        ),
        PaperClaim(
            "attack accuracy rises with iterations, up to almost 100%",
            "no number",
            [f"{count} iterations" for count in iterations],
            lambda means: bool(np.all(np.diff(means) >= 0) and means[0] < 0.9 < means[-1]),
        ),
        PaperClaim(
            "attack accuracy rises with the model's (texts)", "no number", [f"{count} steps" for count in steps], rises
        ),
        _health("texts reach a health of 0.97 on the trained model", f"health {steps[-1]} steps"),
    ]


def figure_8(pools: Sequence[int], cohorts: Sequence[int]) -> list[PaperClaim]:
    """Return the claims of Figure 8, about the paper's score."""
    return [
        PaperClaim(
            "Loss 2 beats Loss 1 at every pool",
            "no number",
            [f"{loss} {pool}" for pool in pools for loss in ("Loss 2", "Loss 1")],
            pairs_fall,
        ),
        PaperClaim(
            f"Loss 2 is almost constant from {pools[1]} mock clients on (within five points)",
            "no number",
            [f"Loss 2 {pool}" for pool in pools[1:]],
            lambda means: bool(np.ptp(means) < 0.05),
        ),
        PaperClaim("Loss 1 gains from larger pools", "no number", [f"Loss 1 {pool}" for pool in pools], rises),
        PaperClaim("accuracy falls with clients per round", "no number", [f"accuracy {c}" for c in cohorts], falls),
        PaperClaim("ε̂ rises with clients per round", "no number", [f"composed {c}" for c in cohorts], rises),
    ]


def figure_9(constants: Sequence[float]) -> list[PaperClaim]:
    """Return the claims of Figure 9, about the paper's canary."""
    above = [constant for constant in constants if constant > 50]
    moderate = [constant for constant in constants if constant <= 600]
    return [
        PaperClaim(
            "accuracy drops by ten points or more at norm constants above 50",
            "a large drop",
            ["accuracy 1", *(f"accuracy {constant:g}" for constant in above)],
            lambda means: bool(np.all(means[1:] <= means[0] - 0.1)),
        ),
        PaperClaim(
            "health is about 1 at constants up to 600",
            "about 1",
            [f"health {constant:g}" for constant in moderate],
            lambda means: bool(np.all(means > 0.9)),
        ),
        PaperClaim("health is lower at a constant of 1,000 than at 1", "no number", ["health 1", "health 1000"], falls),
    ]
