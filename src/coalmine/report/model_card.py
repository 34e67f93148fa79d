"""A section for a model card: the statement of differential privacy, and the audit's evidence.

The fields are those that NIST SP 800-226 asks of a differential privacy guarantee and that the Differential Privacy
Deployments Registry records. What a run does not know is left as "not stated", for its owner to fill in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from coalmine.claims import Claim
from coalmine.report.facts import adversaries, highlights, not_tested, origin
from coalmine.report.subjects import Subject, subjects
from coalmine.results import summary as words
from coalmine.results.io import SavedRun
from coalmine.results.tables import Table, inline_markdown, results_markdown

UNKNOWN = "not stated"

Row = tuple[str, str]
"""A field and its value, which may be empty."""


def model_card(run: SavedRun, *, auditor: str = "") -> str:
    """Return the section in Markdown: for each training what is claimed and by what means, then the evidence.

    Args:
        run: The run.
        auditor: Who made the audit, if not as the run's settings say.
    """
    audited = subjects(run)
    parts = ["## Differential privacy", f"**Audit.** {inline_markdown(_meaning(audited[0]))}"]
    for subject in audited:
        if len(audited) > 1:
            parts.append(f"### {inline_markdown(subject.name)}: {subject.verdict}")
        parts.append(_table([*_release(run, subject), *_guarantee(subject), *_mechanism(subject)]))
    by = auditor or str(run.content.get("auditor") or "") or UNKNOWN
    parts += [
        "### Evidence",
        results_markdown(run.results),
        *(inline_markdown(text) for subject in audited for text in highlights(run, subject)),
        _table([("Adversaries", adversaries(run.results, most=None)), ("Audited by", by), ("Recorded", origin(run))]),
        "### Limits",
        "\n".join(f"- {inline_markdown(text)}." for text in not_tested(run, audited)),
        "A lower bound is what was shown, not the most there is. An audit that does not refute a claim is not a proof "
        "of privacy.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _meaning(subject: Subject) -> str:
    """Return what the verdict says of the claim."""
    if subject.unprotected:
        return "No privacy mechanism: the training adds no noise, so no differential privacy holds."
    strongest = subject.lead.strongest
    return "Not tested: there are only estimates." if strongest is None else words.verdict_sentence(strongest)


def _release(run: SavedRun, subject: Subject) -> Iterator[Row]:
    yield "Deployment", run.title
    yield "Intended use", subject.facts.get("use", "")
    yield "Data curator", subject.facts.get("curator", "")
    yield "Data", subject.data
    yield "People in the data", subject.users
    yield "Model", subject.model
    yield "What is released", subject.facts.get("released", "")
    yield "Utility", subject.utility


def _guarantee(subject: Subject) -> Iterator[Row]:
    """Yield the claim that the deciding result was compared with."""
    strongest = subject.lead.strongest
    claim = subject.claim if strongest is None or strongest.claim is None else strongest.claim
    claims = claim is not None and not subject.unprotected and math.isfinite(claim.epsilon)
    yield "Definition of privacy", _definition(claim) if claims else "none"
    yield "Unit of privacy", str(strongest.unit) if claims and strongest is not None else ""
    yield "Adjacency", claim.adjacency.replace("-", " ") if claim is not None and claims else ""
    yield "ε", _epsilon(claim, subject) if claim is not None and claims else "none claimed"
    yield "δ", f"{claim.delta:g}" if claim is not None and claims else ""
    yield "Accounting", _accounting(claim) if claims else ""
    yield "Trust model", _trust(subject, claim)


def _epsilon(claim: Claim, subject: Subject) -> str:
    """Return the claimed ε, and the range of the others where several settings were tested."""
    others = subject.lead.claims
    span = f" ({words.number(others[0])} to {words.number(others[-1])} were tested)" if len(others) > 1 else ""
    return f"{words.number(claim.epsilon)}{span}"


def _definition(claim: Claim | None) -> str:
    pure = claim is not None and claim.delta == 0
    return "pure differential privacy (ε)" if pure else "approximate differential privacy (ε, δ)"


def _accounting(claim: Claim | None) -> str:
    if claim is None or claim.accountant == "unknown":
        return ""
    if claim.accountant == "claimed":
        return "ε was stated, not computed"
    return f"{claim.accountant}, composed over {words.plural(claim.rounds or 0, 'round')}"


def _trust(subject: Subject, claim: Claim | None) -> str:
    """Return whom users have to trust, where the mechanism is one of ours and says so."""
    if subject.unprotected:
        return "users trust everybody who sees a release"
    if claim is not None and claim.local_epsilon is not None:
        return "local: users randomize their own reports and trust nobody"
    if subject.training and claim is not None and claim.noise_multiplier is not None:
        return "central: users trust the server that clips, sums and adds noise"
    return ""


def _mechanism(subject: Subject) -> Iterator[Row]:
    yield "Clipping", subject.clipping
    yield "Noise", subject.noise
    yield "Sampling", subject.sampling
    yield "Rounds", subject.rounds
    yield "Implementation", str(subject.config.get("engine") or "")
    if subject.bug:
        yield "Bug planted on purpose", subject.bug
    yield "Tuning of hyperparameters, other releases from the same data", ""
    yield "Post-processing", ""


def _table(rows: Sequence[Row]) -> str:
    cells = [[name, inline_markdown(value) or UNKNOWN] for name, value in rows]
    return Table("", ["field", "value"], cells).to_markdown()
