"""LDP games that are watched while they are played, and may stop at any time (docs/anytime.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from coalmine.arrays import Bools, Floats
from coalmine.methods.ldp.evidence import judged_at_any_time
from coalmine.methods.ldp.trials import Trials, is_memoryless
from coalmine.results.result import Result
from coalmine.simulation.mechanisms.local import LocalMechanism
from coalmine.stats import SequentialBound


class WatchedGame:
    """The trials of one crafter, mechanism and view, and the bound that they show at every moment.

    Args:
        mechanism: The mechanism under audit.
    """

    def __init__(self, mechanism: LocalMechanism) -> None:
        self._in_order = not is_memoryless(mechanism)
        self._blocks: list[Trials] = []
        self._bets: list[tuple[Bools, Floats]] = []
        self.bound = SequentialBound(delta=mechanism.delta, claim=mechanism.epsilon)
        self.measurements: list[Trials] = []

    def add(self, block: Trials, rng: np.random.Generator) -> None:
        """Add trials; ``rng`` decides in which order to bet on independent ones."""
        self._blocks.append(block)
        # Coins of independent trials are drawn all at once and sorted. In random order they are fair coins again.
        order = np.arange(block.scores.size) if self._in_order else rng.permutation(block.scores.size)
        self._bets.append((block.sent_first[order], block.scores[order]))
        self.bound.update(*self._bets[-1])

    def end_measurement(self) -> None:
        """Put the blocks since the last measurement together."""
        if self._blocks:
            scores = np.concatenate([block.scores for block in self._blocks])
            sent_first = np.concatenate([block.sent_first for block in self._blocks])
            self.measurements.append(Trials(scores, sent_first, self._blocks[0].upper, self._blocks[0].lower))
            self._blocks = []

    def judged(self, result: Result, *, confidence: float, joint: float, notes: Sequence[str]) -> Result:
        """Return a result with the bound that allows an early stop first; the others become estimates."""
        coins, scores = (np.concatenate(parts) for parts in zip(*self._bets, strict=True))
        return replace(
            judged_at_any_time(result, self.measurements, self.bound, confidence=confidence, joint=joint),
            arrays={**result.arrays, "bets_sent_first": coins, "bets_scores": scores},
            warnings=list(notes),
            metrics={**result.metrics, "trials": float(self.bound.trials)},
            config={
                **result.config,
                "stop_when_refuted": True,
                "trials": self.measurements[0].scores.size,
                "measurements": len(self.measurements),
            },
        )


def closest_to_claim(games: Iterable[WatchedGame], confidence: float) -> str:
    """Return, for the progress bar, the bound that is the largest share of its claim; all bounds hold jointly."""
    bounds = [(game.bound.lower(confidence), game.bound.claim or 0.0) for game in games]
    lower, claim = max(bounds, key=lambda pair: pair[0] / pair[1] if pair[1] else 0.0)
    return f"ε ≥ {lower:.2f} of {claim:g} claimed" if lower > 0 else ""
