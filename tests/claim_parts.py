"""The parts of a claim test, for tests that stand in for `ClaimTests`."""

from dataclasses import dataclass
from typing import Any

from coalmine.results.claim_test import (
    RATIO,
    _canaries_needed,
    _curve,
    _noise_in_effect,
    _strengths,
    _truth,
    detectable_share,
)


@dataclass
class Evidence:
    """What `check_claim` makes of tests at a significance of 5%, one figure at a time."""

    tests: Any
    claim: Any
    expected: Any = None

    @property
    def noise_at_most(self):
        return _noise_in_effect(self.tests, self.claim, 1, 0.05)[0]

    @property
    def noise_estimate(self):
        return _noise_in_effect(self.tests, self.claim, 1, 0.05)[1]

    @property
    def detectable(self):
        """Detectable noise for the weakest, the likeliest and the strongest attack that is possible."""
        power = self.tests.powers(_curve(self.claim, 1.0, 1), 0.05)
        return [
            detectable_share(lambda i, s=strength: power(_truth(self.tests, self.claim, 1, RATIO**i, s)))
            for strength in _strengths(self.tests, self.claim, 1, self.expected)
        ]

    @property
    def canaries_needed(self):
        *_, strongest = _strengths(self.tests, self.claim, 1, self.expected)
        return _canaries_needed(self.tests, self.claim, 1, 0.05, strongest)
