"""What was audited: each training or mechanism with its data, its privacy mechanism and its verdict.

The first page of the report and the model card say the same about a run, since both read it from here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from coalmine.claims import Claim
from coalmine.methods import registry
from coalmine.results import summary as words
from coalmine.results.finding import Check
from coalmine.results.io import SavedRun
from coalmine.results.result import Result
from coalmine.results.tables import Group, grouped
from coalmine.results.verdict import WORST_FIRST, Verdict

NO_MECHANISM = "no privacy mechanism"
FEW = 3
"""Adversaries, bugs and warnings that fit on the first page; the sections below have all of them."""

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
        return grouped(self.results) or [Group(title="No results", results=())]

    @property
    def lead(self) -> Group:
        """The unit that decides."""
        return self.groups[0]

    @cached_property
    def claims(self) -> list[Claim]:
        """All claims about it."""
        return [result.claim for result in self.results if result.claim is not None]

    @cached_property
    def claim(self) -> Claim | None:
        """The claim about the most rounds."""
        return max(self.claims, key=lambda claim: claim.rounds or 0, default=None)

    @cached_property
    def unprotected(self) -> bool:
        """Whether it is known to add no noise, unless that has refuted a claim."""
        no_noise = any(claim.epsilon == math.inf and not claim.has_noise for claim in self.claims)
        known = no_noise or not self.training.get("private", True)
        return known and self.lead.verdict is not Verdict.REFUTED

    @property
    def verdict(self) -> str:
        """The verdict on it, or that it has no privacy mechanism."""
        return NO_MECHANISM if self.unprotected else self.lead.verdict.value

    @property
    def config(self) -> Mapping[str, Any]:
        """The settings of the audit, which include those of the training."""
        return self.results[0].config if self.results else {}

    # What is known of it, in a few words each; empty if unknown.

    @property
    def data(self) -> str:
        """The data, with its fingerprint where the run recorded one."""
        fingerprint = self.training.get("data_fingerprint")
        data = self.facts.get("data") or str(self.config.get("data") or "")
        return f"{data} (fingerprint {fingerprint})" if data and fingerprint else data

    @property
    def users(self) -> str:
        """The number of users."""
        stated = self.facts.get("users") or str(self.training.get("clients", ""))
        return words.plural(int(stated), "user") if stated.isdigit() else stated

    @property
    def model(self) -> str:
        """The model, and its number of parameters."""
        parameters = self.training.get("parameters", self.config.get("dim"))
        model = self.facts.get("model") or str(self.config.get("model") or "")
        size = "" if parameters is None else f"{round(parameters):,} parameters"
        return ", ".join(filter(None, [model, size]))

    @property
    def utility(self) -> str:
        """How well the model works."""
        metrics = self.training.get("metrics") or {}
        measured = [f"{name} {value:.4g}" for name, value in metrics.items() if isinstance(value, int | float)]
        return self.facts.get("utility") or ", ".join(measured)

    @property
    def rounds(self) -> str:
        """The number of rounds, unless nothing is trained."""
        rounds = self.training.get("rounds")
        # A claim taken from elsewhere counts as one round, whatever it covers; a local report is no round.
        if rounds is None and self.claim is not None and self.claim.accountant != "claimed":
            rounds = None if self.claim.local_epsilon is not None else self.claim.rounds
        return "" if rounds is None else words.plural(int(rounds), "round")

    @property
    def clipping(self) -> str:
        """The clip norm."""
        norm = self.config.get("clip_norm")
        return "" if norm is None else "no clipping" if norm == "none" else f"clip norm {norm}"

    @property
    def noise(self) -> str:
        """The noise."""
        claim = self.claim
        if self.unprotected:
            return "no noise"
        if claim is not None and claim.noise_schedule:
            multipliers = [noise for noise, _ in claim.noise_schedule]
            return f"Gaussian noise with noise multipliers {min(multipliers):g} to {max(multipliers):g}"
        if claim is not None and claim.noise_multiplier is not None:
            return f"Gaussian noise with noise multiplier {claim.noise_multiplier:g}"
        local = sorted({claim.local_epsilon for claim in self.claims if claim.local_epsilon is not None})
        if not local:
            return ""
        span = " to ".join(f"{epsilon:g}" for epsilon in dict.fromkeys((local[0], local[-1])))
        return f"every report randomized by its user ({self.config.get('mechanism', 'local mechanism')}, ε = {span})"

    @property
    def sampling(self) -> str:
        """The sampling."""
        claim = self.claim
        if claim is None:
            text = str(self.config.get("cohort") or "")
        else:  # an ε that was stated says nothing about the sampling, and a local report is not sampled
            text = "" if claim.rounds is None or claim.local_epsilon is not None else str(claim.sampling or "")
        name, _, value = text.partition(":")
        known = {"poisson": f"Poisson sampling with q = {value}", "every-round": "every user in every round"}
        return "" if text in ("", "as claimed", "unknown") else known.get(name, f"sampling {text}")

    @property
    def mechanism(self) -> str:
        """Clipping, noise, sampling and rounds in one line."""
        bug = self.config.get("bug")
        planted = f"a bug planted on purpose ({bug})" if bug else ""
        parts = [self.clipping, self.noise, self.sampling, self.rounds, planted]
        return ", ".join(filter(None, parts)) or "not stated"


def subjects(run: SavedRun) -> list[Subject]:
    """Return what a run audited, the worst verdict first.

    Results of a Python session name no training and count as one subject.
    """
    by_name: dict[str, list[Result]] = {name: [] for name in run.trainings}
    for result in run.results:
        by_name.setdefault(result.training or (result.method if run.trainings else ""), []).append(result)
    audited = [
        Subject(name=name, results=results, training=run.trainings.get(name, {}), facts=run.facts)
        for name, results in by_name.items()
    ]
    return sorted(audited, key=lambda subject: _WORST_FIRST.index(subject.verdict))


def highlights(run: SavedRun, subject: Subject) -> list[str]:
    """Return what the methods of a subject want to have read beside ε, such as extracted phrases."""
    sentences: list[str] = []
    for name in dict.fromkeys(result.method for result in subject.results):
        method = registry.find(name)
        sentences += method.highlights(run.of(name, method.extras))
    return sentences


def adversaries(results: Sequence[Result]) -> list[str]:
    """Return who attacked, each with the methods."""
    methods: dict[str, list[str]] = {}
    for result in results:
        names = methods.setdefault(result.adversary, [])
        if result.method not in names:
            names.append(result.method)
    return [f"one who {adversary} ({words.listed(names)})" for adversary, names in methods.items()]


def warnings(results: Sequence[Result]) -> list[tuple[str, str]]:
    """Return each warning with its method; those that differ only in their numbers, in parentheses, once."""
    alike: dict[str, tuple[str, str]] = {}
    for result in results:
        for warning in map(str, result.warnings):
            alike.setdefault(re.sub(r" \([^)]*\)", "", warning), (warning, result.method))
    return list(alike.values())


def not_tested(run: SavedRun, audited: Sequence[Subject]) -> list[str]:
    """Return what this audit says nothing about, a sentence each."""
    units = list(dict.fromkeys(result.unit.name for result in run.results))
    sentences = [f"Only {'this unit was' if len(units) == 1 else 'these units were'} tested: {'; '.join(units)}."]
    others = [group for subject in audited for group in subject.groups[1:]]
    weak = [result for group in others for result in group.results if result.verdict is Verdict.TOO_WEAK]
    if weak:
        names = "; ".join(f"{result.method}, {result.label}" for result in weak[:FEW])
        sentences.append(f"Tested, but too weakly to count: {names}.")
    checks = {check for result in run.results for check in result.checks}
    missing = [str(check) for check in (Check.CLIPPING, Check.SENSITIVITY) if check not in checks]
    if not checks and not all(subject.unprotected for subject in audited):
        sentences.append("No check looked for bugs of the noise, the clipping or the participation.")
    elif checks and missing:
        where = f"Not checked: {words.listed(missing)} of the real clients' updates"
        sentences.append(f"{where} (coalmine.replay checks them).")
    return [*sentences, "Stronger adversaries may exist; servers, networks and logs were not looked at."]


def origin(run: SavedRun) -> str:
    """Return when and with what the results were computed, and the fingerprint of the directory."""
    recorded = run.provenance
    date = str(recorded.get("date", "date not recorded")).replace("T", " ").replace("+00:00", " UTC")
    version = f"coalmine {run.content.get('coalmine', 'unknown')}"
    if "commit" in recorded:
        digits, dirty, _ = str(recorded["commit"]).partition("-dirty")
        version += f" (commit {digits[:12]}{dirty})"
    parts = [date, version]
    seeds = recorded.get("seeds")
    if isinstance(seeds, dict) and seeds:
        parts.append(f"seed {', '.join(dict.fromkeys(map(str, seeds.values())))}")
    if run.fingerprint:
        parts.append(f"fingerprint of the results {run.fingerprint}")
    return ", ".join(parts)
