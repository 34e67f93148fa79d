"""One file a method: plant → observe → score → estimate."""

from coalmine.audits.canife import Canife
from coalmine.audits.canife_result import CanifeResult
from coalmine.audits.one_shot import OneShot
from coalmine.audits.participation import (
    EpochParticipation,
    FixedShareParticipation,
    LastRoundsParticipation,
    Participation,
    PoissonParticipation,
    ScheduledParticipation,
)
from coalmine.audits.result import AuditResult

__all__ = [
    "AuditResult",
    "Canife",
    "CanifeResult",
    "EpochParticipation",
    "FixedShareParticipation",
    "LastRoundsParticipation",
    "OneShot",
    "Participation",
    "PoissonParticipation",
    "ScheduledParticipation",
]
