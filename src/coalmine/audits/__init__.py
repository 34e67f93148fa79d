"""One file a method: plant → observe → score → estimate.

Audits that call models need torch; it is imported when one of them is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from coalmine.audits.canife import Canife
from coalmine.audits.canife_result import CanifeResult
from coalmine.audits.one_shot import OneShot
from coalmine.audits.participation import (
    EpochParticipation,
    FixedShareParticipation,
    LastRoundsParticipation,
    ObservedParticipation,
    Participation,
    PoissonParticipation,
    ScheduledParticipation,
)
from coalmine.audits.result import AuditResult

if TYPE_CHECKING:
    from coalmine.audits.memorisation import Asking as Asking
    from coalmine.audits.memorisation import Memorisation as Memorisation
    from coalmine.audits.memorisation import ask as ask
    from coalmine.audits.samples import Samples as Samples
    from coalmine.audits.secret_sharer import SecretSharer as SecretSharer

_LATER = {
    "memorisation": ("Asking", "Memorisation", "ask"),
    "samples": ("Samples",),
    "secret_sharer": ("SecretSharer",),
}

__all__ = [
    "Asking",
    "AuditResult",
    "Canife",
    "CanifeResult",
    "EpochParticipation",
    "FixedShareParticipation",
    "LastRoundsParticipation",
    "Memorisation",
    "ObservedParticipation",
    "OneShot",
    "Participation",
    "PoissonParticipation",
    "Samples",
    "ScheduledParticipation",
    "SecretSharer",
    "ask",
]


def __getattr__(name: str) -> Any:
    """Import a name that needs torch when it is first asked for."""
    for module, names in _LATER.items():
        if name in names:
            return getattr(importlib.import_module(f"coalmine.audits.{module}"), name)
    raise AttributeError(f"module 'coalmine.audits' has no attribute {name!r}")
