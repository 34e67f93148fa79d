"""What was audited: each training or mechanism with its data, its privacy mechanism and its verdict.

The first page of the report and the model card say the same about a run, since both read it from here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from coalmine.claims import Claim
from coalmine.drawing import numbers
from coalmine.drawing.html import slug
from coalmine.results.io import SavedRun
from coalmine.results.result import Result
from coalmine.results.summary import plural
from coalmine.results.tables import Group, grouped
from coalmine.results.verdict import WORST_FIRST, Verdict

NO_MECHANISM = "no privacy mechanism"

_WORST_FIRST = (Verdict.REFUTED.value, NO_MECHANISM, *(verdict.value for verdict in WORST_FIRST[1:]))


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One training or mechanism under audit.

    Args:
        name: Name of the training, or of the method where there is none.
        results: What was found about it.
        training: What the run recorded of the training: clients, parameters, rounds, whether it is private.
        facts: What its owner stated, by the names in `coalmine.results.io.FACTS`.
    """

    name: str
    results: Sequence[Result]
    training: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def groups(self) -> list[Group]:
        """Its results by unit, the one that decides first."""
        return grouped(self.results)

    @cached_property
    def lead(self) -> Group:
        """The unit that decides."""
        return self.groups[0] if self.groups else Group(title="No results", results=())

    @property
    def unprotected(self) -> bool:
        """Whether it is known to add no noise, unless that has refuted a claim."""
        no_noise = not self.training.get("private", True) or any(
            claim.epsilon == math.inf and not claim.has_noise for claim in self._claims
        )
        return no_noise and self.lead.verdict is not Verdict.REFUTED

    @property
    def verdict(self) -> str:
        """The verdict on it, or that it has no privacy mechanism."""
        return NO_MECHANISM if self.unprotected else self.lead.verdict.value

    @property
    def color(self) -> str:
        """The class of the verdict in the style sheet."""
        return "refuted" if self.unprotected else slug(self.lead.verdict.value)

    @property
    def config(self) -> Mapping[str, Any]:
        """The settings of the audit, which include those of the training."""
        return self.results[0].config if self.results else {}

    @property
    def claim(self) -> Claim | None:
        """The claim about the most rounds."""
        return max(self._claims, key=lambda claim: claim.rounds or 0, default=None)

    @property
    def _claims(self) -> list[Claim]:
        return [result.claim for result in self.results if result.claim is not None]

    @property
    def data(self) -> str:
        """The data, with its fingerprint where the run recorded one; empty if unknown."""
        fingerprint = self.training.get("data_fingerprint")
        data = self.facts.get("data") or str(self.config.get("data") or "")
        return f"{data} (fingerprint {fingerprint})" if data and fingerprint else data

    @property
    def users(self) -> str:
        """The number of users; empty if unknown."""
        clients = self.training.get("clients")
        stated = self.facts.get("users", "")
        if stated:
            return f"{stated} users" if stated.isdigit() else stated
        return "" if clients is None else plural(int(clients), "user")

    @property
    def model(self) -> str:
        """The model; empty if unknown."""
        parameters = self.training.get("parameters", self.config.get("dim"))
        model = self.facts.get("model") or str(self.config.get("model") or "")
        size = "" if parameters is None else f"{numbers.count(parameters)} parameters"
        return ", ".join(filter(None, [model, size]))

    @property
    def utility(self) -> str:
        """How well the model works; empty if unknown."""
        metrics = self.training.get("metrics") or {}
        measured = [f"{name} {value:.4g}" for name, value in metrics.items() if isinstance(value, int | float)]
        return self.facts.get("utility") or ", ".join(measured)

    @property
    def rounds(self) -> str:
        """The number of rounds; empty if unknown or if nothing is trained."""
        claim = self.claim
        # A claim taken from elsewhere counts as one round, whatever it covers.
        counted = None if claim is None or claim.accountant == "claimed" else claim.rounds
        rounds = self.training.get("rounds") or counted
        local = claim is not None and claim.local_epsilon is not None
        return "" if rounds is None or (local and rounds == 1) else plural(int(rounds), "round")

    @property
    def clipping(self) -> str:
        """The clip norm in words; empty if unknown."""
        norm = self.config.get("clip_norm")
        return "" if norm is None else "no clipping" if norm == "none" else f"clip norm {norm}"

    @property
    def noise(self) -> str:
        """The noise in words; empty if unknown."""
        claim = self.claim
        if self.unprotected:
            return "no noise"
        if claim is None:
            return ""
        if claim.noise_schedule:
            multipliers = [noise for noise, _ in claim.noise_schedule]
            return f"Gaussian noise with noise multipliers {min(multipliers):g} to {max(multipliers):g}"
        if claim.noise_multiplier is not None:
            return f"Gaussian noise with noise multiplier {claim.noise_multiplier:g}"
        local = sorted({t.local_epsilon for t in self._claims if t.local_epsilon is not None})
        if not local:
            return ""
        span = f"{local[0]:g}" if len(local) == 1 else f"{local[0]:g} to {local[-1]:g}"
        return f"every report randomized by its user ({self.config.get('mechanism', 'local mechanism')}, ε = {span})"

    @property
    def sampling(self) -> str:
        """The sampling in words; empty if unknown."""
        claim = self.claim
        if claim is None:
            text = str(self.config.get("cohort") or "")
        else:  # an ε that was stated says nothing about the sampling
            text = "" if claim.rounds is None else str(claim.sampling or "")
        if claim is not None and claim.local_epsilon is not None:
            return ""
        name, _, value = text.partition(":")
        if name == "poisson":
            return f"Poisson sampling with q = {value}"
        if name == "every-round":
            return "every user in every round"
        return "" if text in ("", "as claimed", "unknown") else f"sampling {text}"

    @property
    def bug(self) -> str:
        """The bug that was planted on purpose; empty if there is none."""
        return str(self.config.get("bug") or "")

    @property
    def mechanism(self) -> str:
        """Clipping, noise, sampling and rounds in one line."""
        planted = f"a bug planted on purpose ({self.bug})" if self.bug else ""
        parts = [self.clipping, self.noise, self.sampling, self.rounds, planted]
        return ", ".join(filter(None, parts)) or "not stated"


def subjects(run: SavedRun) -> list[Subject]:
    """Return what a run audited, the worst verdict first.

    Results of a Python session name no training and count as one subject.
    """
    by_name: dict[str, list[Result]] = {name: [] for name in run.trainings}
    for result in run.results:
        by_name.setdefault(result.training or (result.method if run.trainings else ""), []).append(result)
    made = [
        Subject(name=name, results=results, training=run.trainings.get(name, {}), facts=run.facts)
        for name, results in by_name.items()
    ]
    return sorted(made, key=lambda subject: _WORST_FIRST.index(subject.verdict))
