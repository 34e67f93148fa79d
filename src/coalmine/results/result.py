"""What every audit gives in the end."""

from __future__ import annotations

import math
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import metadata
from typing import Any, ClassVar

from coalmine.accounting import Theory
from coalmine.errors import InputError, check_kind
from coalmine.results.words import MEMBERSHIP, meaning
from coalmine.stats import Estimate, Scores

_PACKAGES = ("numpy", "scipy", "torch", "dp-accounting")


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """The ε of one audit, seen by one adversary: estimates and bounds beside what theory promises.

    ``estimates`` begin with the recommended one; ``scores`` are what they were computed from. ``theory`` is the promise
    that fits this adversary, None where none was given. ``warnings`` are sentences on what to be careful with,
    ``metrics`` numbers beside the ε such as the model's accuracy, ``timing`` seconds, ``config`` how it was run.
    """

    shown: ClassVar[str] = MEMBERSHIP

    audit: str
    view: str
    seed: int
    estimates: Sequence[Estimate]
    scores: Scores
    theory: Theory | None = None
    ceiling: float | None = None
    warnings: Sequence[str] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    timing: Mapping[str, float] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bound(self) -> Estimate | None:
        """The first bound that holds: the one to quote."""
        return next((e for e in self.estimates if e.valid), None)

    @property
    def decisive(self) -> Estimate | None:
        """The bound that sentences and promises go by."""
        return self.bound

    def __getitem__(self, method: str) -> Estimate:
        """The figure of a method by its name, such as ``result["gaussian-shift"]``."""
        found = next((e for e in self.estimates if e.method == method), None)
        if found is None:
            raise InputError(f"there is no figure {method!r}; there are {', '.join(e.method for e in self.estimates)}")
        return found

    @property
    def refuted(self) -> bool:
        """Whether that bound exceeds what theory promises."""
        return self.decisive is not None and self.theory is not None and self.decisive.epsilon > self.theory.epsilon

    @property
    def meaning(self) -> str:
        """What it says, in words."""
        quoted = [self.decisive if e is self.bound and self.decisive else e for e in self.estimates]
        text = meaning(quoted, self.ceiling, self.shown)
        if self.theory is None or self.bound is None:
            return text
        if self.refuted:
            return f"{text} The promise of ε = {self.theory.epsilon:.4g} is refuted: the mechanism has a bug."
        return f"{text} That does not contradict the promise of ε = {self.theory.epsilon:.4g}."

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, without the scores."""
        return {
            "audit": self.audit,
            "view": self.view,
            "seed": self.seed,
            "theory": None if self.theory is None else self.theory.to_dict(),
            "estimates": [estimate.to_dict() for estimate in self.estimates],
            "ceiling": self.ceiling,
            "refuted": self.refuted,
            "meaning": self.meaning,
            "warnings": list(self.warnings),
            "metrics": {name: "inf" if value == math.inf else value for name, value in self.metrics.items()},
            "timing": dict(self.timing),
            "config": dict(self.config),
            "environment": environment(),
        }


def common_delta(delta: float | None, theory: Theory | None) -> float:
    """The δ of a result: as given, else that of ``theory``, else 1e-5; two that differ are refused."""
    if theory is None:
        return 1e-5 if delta is None else delta
    check_kind("theory", theory, Theory, "a Theory, as audit.theory(...) or coalmine.theory(...) give")
    if delta is not None and delta != theory.delta:
        raise InputError(f"the result is asked for at delta = {delta:g}, but the theory is for {theory.delta:g}")
    return theory.delta


def file_name(view: str) -> str:
    """A view's name as part of a file's."""
    return view.replace(":", "-").replace(", ", "-").replace(" ", "-")


@lru_cache(maxsize=1)
def environment() -> dict[str, str]:
    """What it ran on."""
    versions = {name: metadata.version(name) for name in _PACKAGES}
    return {"python": sys.version.split()[0], "platform": f"{platform.system()}-{platform.machine()}", **versions}
