"""A section for a model card: the statement of differential privacy, and the audit's evidence.

The fields are those that NIST SP 800-226 asks of a differential privacy guarantee and that the Differential Privacy
Deployments Registry records. What a run does not know is left as "not stated", for its owner to fill in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from coalmine.accounting import Theory
from coalmine.report.facts import adversaries, highlights, not_tested, origin
from coalmine.report.subjects import Subject, subjects
from coalmine.results import words
from coalmine.results.saved import SavedRun
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
    theory = subject.theory if strongest is None or strongest.theory is None else strongest.theory
    claims = theory is not None and not subject.unprotected and math.isfinite(theory.epsilon)
    yield "Definition of privacy", _definition(theory) if claims else "none"
    yield "Unit of privacy", str(strongest.unit) if claims and strongest is not None else ""
    yield "Adjacency", theory.adjacency.replace("-", " ") if theory is not None and claims else ""
    yield "ε", _epsilon(theory, subject) if theory is not None and claims else "none claimed"
    yield "δ", f"{theory.delta:g}" if theory is not None and claims else ""
    yield "Accounting", _accounting(theory) if claims else ""
    yield "Trust model", _trust(subject, theory)


def _epsilon(theory: Theory, subject: Subject) -> str:
    """Return the claimed ε, and the range of the others where several settings were tested."""
    others = subject.lead.claims
    span = f" ({words.number(others[0])} to {words.number(others[-1])} were tested)" if len(others) > 1 else ""
    return f"{words.number(theory.epsilon)}{span}"


def _definition(theory: Theory | None) -> str:
    pure = theory is not None and theory.delta == 0
    return "pure differential privacy (ε)" if pure else "approximate differential privacy (ε, δ)"


def _accounting(theory: Theory | None) -> str:
    if theory is None or theory.accountant == "unknown":
        return ""
    if theory.accountant == "claimed":
        return "ε was stated, not computed"
    return f"{theory.accountant}, composed over {words.plural(theory.rounds, 'round')}"


def _trust(subject: Subject, theory: Theory | None) -> str:
    """Return whom users have to trust, where the mechanism is one of ours and says so."""
    if subject.unprotected:
        return "users trust everybody who sees a release"
    if theory is not None and theory.local_epsilon is not None:
        return "local: users randomize their own reports and trust nobody"
    if subject.training and theory is not None and theory.noise_multiplier is not None:
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
