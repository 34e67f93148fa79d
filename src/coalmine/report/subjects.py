"""What was audited: each training or mechanism with its data, its privacy mechanism and its verdict.

The first page of the report and the model card say the same about a run, since both read it from here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coalmine.claims import Claim
from coalmine.methods import registry
from coalmine.results import summary as words
from coalmine.results.io import SavedRun
from coalmine.results.result import Result
from coalmine.results.tables import Group, grouped
from coalmine.results.verdict import WORST_FIRST, Check, Verdict

NO_MECHANISM = "no privacy mechanism"
FEW = 3
"""Adversaries, bugs and warnings that fit on the first page; the sections below have all of them."""

_WORST_FIRST = (Verdict.REFUTED.value, NO_MECHANISM, *(verdict.value for verdict in WORST_FIRST[1:]))


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One training or mechanism under audit. Texts are a few words each, and empty if nothing is known.

    Attributes:
        name: Name of the training, or of the method where there is none.
        results: What was found about it.
        training: What the run recorded of the training: clients, parameters, rounds, whether it is private.
        facts: What its owner stated, by the names in `coalmine.results.io.FACTS`.
        config: The settings of the audit, which include those of the training.
        groups: Its results by unit, the one that decides first.
        claim: The claim about the most rounds.
        unprotected: Whether it is known to add no noise, unless that has refuted a claim.
        verdict: The verdict on it, or that it has no privacy mechanism.
        data: The data, with its fingerprint where the run recorded one.
        users: The number of users.
        model: The model, and its number of parameters.
        utility: How well the model works.
        mechanism: Its ``clipping``, ``noise``, ``sampling`` and ``rounds``, and the bug ``planted`` on purpose.
    """

    name: str
    results: Sequence[Result]
    training: Mapping[str, Any]
    facts: Mapping[str, str]
    config: Mapping[str, Any]
    groups: Sequence[Group]
    claim: Claim | None
    unprotected: bool
    verdict: str
    data: str
    users: str
    model: str
    utility: str
    mechanism: Mapping[str, str]


def subjects(run: SavedRun) -> list[Subject]:
    """Return what a run audited, the worst verdict first.

    Results of a Python session name no training and count as one subject.
    """
    by_name: dict[str, list[Result]] = {name: [] for name in run.trainings}
    for result in run.results:
        by_name.setdefault(result.training or (result.method if run.trainings else ""), []).append(result)
    audited = []
    for name, results in by_name.items():
        audited.append(subject_of(name, results, run.trainings.get(name, {}), run.facts))
    return sorted(audited, key=lambda subject: _WORST_FIRST.index(subject.verdict))


def subject_of(name: str, results: Sequence[Result], training: Mapping[str, Any], facts: Mapping[str, str]) -> Subject:
    """Return what is known of one training or mechanism; the arguments are explained at `Subject`."""
    groups = grouped(results) or [Group(title="No results", results=())]
    claims = [result.claim for result in results if result.claim is not None]
    claim = max(claims, key=lambda claim: claim.rounds or 0, default=None)
    no_noise = any(claim.epsilon == math.inf and not claim.has_noise for claim in claims)
    # A refuted claim says more: there, noise was promised.
    refuted = groups[0].verdict is Verdict.REFUTED
    unprotected = (no_noise or not training.get("private", True)) and not refuted

    config: Mapping[str, Any] = results[0].config if results else {}
    data = facts.get("data") or str(config.get("data") or "")
    if data and training.get("data_fingerprint"):
        data += f" (fingerprint {training['data_fingerprint']})"
    users = facts.get("users") or str(training.get("clients", ""))
    if users.isdigit():
        users = words.plural(int(users), "user")
    model = facts.get("model") or str(config.get("model") or "")
    parameters = training.get("parameters", config.get("dim"))
    if parameters is not None:
        model = f"{model}, {round(parameters):,} parameters".removeprefix(", ")
    metrics = training.get("metrics") or {}
    measured = [f"{name} {value:.4g}" for name, value in metrics.items() if isinstance(value, int | float)]
    return Subject(
        name=name,
        results=results,
        training=training,
        facts=facts,
        config=config,
        groups=groups,
        claim=claim,
        unprotected=unprotected,
        verdict=NO_MECHANISM if unprotected else groups[0].verdict.value,
        data=data,
        users=users,
        model=model,
        utility=facts.get("utility") or ", ".join(measured),
        mechanism=_mechanism(claim, claims, config, training.get("rounds"), unprotected),
    )


def _mechanism(
    claim: Claim | None, claims: Sequence[Claim], config: Mapping[str, Any], rounds: int | None, unprotected: bool
) -> dict[str, str]:
    """Return what is stated about the privacy mechanism, by the names in `Subject`."""
    clipping = ""
    if config.get("clip_norm") is not None:
        clipping = "no clipping" if config["clip_norm"] == "none" else f"clip norm {config['clip_norm']}"

    noise = ""
    if unprotected:
        noise = "no noise"
    elif claim is not None and claim.noise_schedule:
        multipliers = [multiplier for multiplier, _ in claim.noise_schedule]
        noise = f"Gaussian noise with noise multipliers {min(multipliers):g} to {max(multipliers):g}"
    elif claim is not None and claim.noise_multiplier is not None:
        noise = f"Gaussian noise with noise multiplier {claim.noise_multiplier:g}"
    elif local := sorted({claim.local_epsilon for claim in claims if claim.local_epsilon is not None}):
        span = " to ".join(f"{epsilon:g}" for epsilon in dict.fromkeys((local[0], local[-1])))
        noise = f"every report randomized by its user ({config.get('mechanism', 'local mechanism')}, ε = {span})"

    sampling = str(config.get("cohort") or "")
    if claim is not None:
        # A local report is not sampled, and belongs to no round.
        covered = None if claim.local_epsilon is not None else claim.rounds
        # An ε that was stated says nothing about sampling, and counts as one round whatever it covers.
        sampling = "" if covered is None else str(claim.sampling or "")
        if rounds is None and claim.accountant != "claimed":
            rounds = covered
    scheme, _, value = sampling.partition(":")
    known = {"poisson": f"Poisson sampling with q = {value}", "every-round": "every user in every round"}
    if sampling:
        sampling = "" if sampling in ("as claimed", "unknown") else known.get(scheme, f"sampling {sampling}")
    return {
        "clipping": clipping,
        "noise": noise,
        "sampling": sampling,
        "rounds": "" if rounds is None else words.plural(int(rounds), "round"),
        "planted": f"a bug planted on purpose ({config['bug']})" if config.get("bug") else "",
    }


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
    parts = [date, version]
    seeds = recorded.get("seeds")
    if isinstance(seeds, dict) and seeds:
        parts.append(f"seed {', '.join(dict.fromkeys(map(str, seeds.values())))}")
    if run.fingerprint:
        parts.append(f"fingerprint of the results {run.fingerprint}")
    return ", ".join(parts)
