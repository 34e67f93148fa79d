"""The result of a one-shot audit: from the scores that a view has shown to evidence about ε."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coalmine.claims import Claim
from coalmine.methods.estimates import canary_evidence, normality
from coalmine.methods.one_shot.cautions import cautions
from coalmine.methods.one_shot.inspection import Inspection
from coalmine.methods.one_shot.view_record import ViewRecord
from coalmine.methods.one_shot.views import adversary
from coalmine.results.result import Result, common_delta
from coalmine.results.verdict import USER
from coalmine.stats import CosineNull

if TYPE_CHECKING:
    from coalmine.methods.one_shot.audit import OneShot


def one_shot_result(
    audit: OneShot,
    record: ViewRecord,
    inspection: Inspection,
    *,
    delta: float | None,
    confidence: float,
    claim: Claim | None,
) -> Result:
    """Return what an audit has found, without its settings and times.

    Args:
        audit: The audit.
        record: What its view has shown.
        inspection: What its checks have recorded.
        delta: The δ at which ε is stated: that of ``claim`` by default, else 1e-5.
        confidence: Confidence of bounds and intervals.
        claim: The claimed guarantee.
    """
    inserted, held_out = record.scores()
    null = record.null()
    evidence = canary_evidence(
        inserted,
        held_out,
        null=null,
        signs=audit.family == "hadamard",
        design=audit.design,
        delta=common_delta(delta, claim),
        confidence=confidence,
        claim=claim,
        expected=record.evidence.expected_separation(),
    )
    test, warnings = normality(inserted, "inserted")
    checks, findings = inspection.findings(claim, record.in_tensors, audit.members)
    return Result(
        method="one-shot",
        view=audit.view,
        unit=USER,
        adversary=adversary(audit.view),
        score_name=audit.score,
        seed=audit.seed,
        estimates=evidence.estimates,
        scores=evidence.scores,
        null=f"cosine:{null.dim}" if isinstance(null, CosineNull) else None,
        claim=claim,
        claim_test=evidence.claim_test,
        recipe=evidence.recipe,
        checks=checks,
        findings=findings,
        ceiling=evidence.ceiling,
        warnings=[*warnings, *cautions(audit, claim), *audit.notes],
        metrics={"inserted": float(len(inserted)), "held_out": float(len(held_out)), **test},
        arrays=record.canaries_by_score(),
    )
