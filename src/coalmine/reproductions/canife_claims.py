"""What Maddock et al. (2023) claim about the figures that we reproduce."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coalmine.reproductions.claims import PaperClaim, falls, near, pairs_fall, rises


def figure_3(cohorts: Sequence[int], pools: Sequence[int]) -> list[PaperClaim]:
    """Return the claims of Figure 3, about the paper's canary."""
    return [
        PaperClaim("without noise the attack never errs", "100%", ["accuracy"], near(1, within=0)),
        PaperClaim("histograms without noise have a deviation of 0.006", "0.006", ["std"], near(0.006, within=0.003)),
        PaperClaim(
            "the same by the convention of the published code", "0.006", ["reference std"], near(0.006, within=0.003)
        ),
        # The deviation of 50 + 50 scores has a standard error of 0.03: three of the difference of two.
        PaperClaim(
            "with σ = 0.423 the deviation is about that of the noise",
            "0.478",
            ["noisy std"],
            near(0.478, within=3 * 0.03 * 2**0.5),
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
    ]


FIGURE_4 = (
    PaperClaim("εᵣ is 4.5 times ε̂ᵣ on Sent140 at ε = 50", "4.5", ["gap sent140 50"], near(4.5, within=1)),
    PaperClaim("εᵣ is 4 to 5 times ε̂ᵣ on Shakespeare", "4 to 5", ["gap shakespeare 50"], near(4.5, within=1)),
    PaperClaim("εᵣ is 4 to 5 times ε̂ᵣ on images (ours: MNIST)", "4 to 5", ["gap mnist 50"], near(4.5, within=1)),
    PaperClaim(
        "composed, ε̂ is about 6 on images at ε = 50 (ours: MNIST)",
        "6",
        ["composed mnist 50"],
        near(6, within=1),
        lambda means: bool(means[0] < 25),
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
            lambda means: bool(np.all(np.abs(means[1::2] / means[0::2] - 1) < 0.2)),
        ),
        PaperClaim("accuracy after 1,000 iterations", "95%", ["1000 iterations"], near(0.95, within=0.05)),
        PaperClaim(
            "attack accuracy rises with iterations", "no number", [f"{count} iterations" for count in iterations], rises
        ),
        PaperClaim(
            "attack accuracy rises with the model's (texts)", "no number", [f"{count} steps" for count in steps], rises
        ),
        PaperClaim(
            "texts reach a health of 0.97",
            "0.970 ± 0.098",
            [f"health {count} steps" for count in steps],
            lambda means: bool(np.all(np.abs(means - 0.97) <= 0.098)),
        ),
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
        PaperClaim("Loss 1 gains from larger pools", "no number", [f"Loss 1 {pool}" for pool in pools], rises),
        PaperClaim("accuracy falls with clients per round", "no number", [f"accuracy {c}" for c in cohorts], falls),
        PaperClaim("ε̂ rises with clients per round", "no number", [f"composed {c}" for c in cohorts], rises),
    ]


FIGURE_9 = (
    PaperClaim("accuracy is lower at a norm constant of 1,000 than at 1", "no number", ["accuracy 1", "accuracy 1000"],
               falls),
    PaperClaim("so is health", "no number", ["health 1", "health 1000"], falls),
    PaperClaim("health is about 1 at constants up to 50", "about 1", ["health 1", "health 50"],
               near(1, 1, within=0.1)),
)  # fmt: skip
