"""``coalmine verify``: are the results of a directory those that its scores give?

The manifest says whether files were changed since they were written. Whoever changes a result can change the manifest
too, so this module computes every estimate, bound, claim test and verdict again from the stored scores, and compares
all digits (docs/integrity.md).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from coalmine.claims import Claim
from coalmine.errors import InputError
from coalmine.methods import registry
from coalmine.parallel import single_thread
from coalmine.results.directory import RunDirectory
from coalmine.results.result import Result
from coalmine.results.saved import SavedRun, read_part, refusing_damage
from coalmine.results.units import EXAMPLE, USER, Unit
from coalmine.runs.settings import RunSettings, run_from_text

_FIELDS = ("unit", "verdict", "summary", "claim", "claim_test", "estimates", "ceiling", "joint_bound", "details")
_ROUNDING = 1e-9  # relative difference that other processors and library versions may make


class Outcome(StrEnum):
    """How recomputed results compare with stored ones."""

    SAME = "same"
    ROUNDED = "same up to rounding"
    DIFFERENT = "different"
    NOT_RECOMPUTED = "not recomputed"


@dataclass(frozen=True, kw_only=True)
class Recomputed:
    """One result, computed again.

    Args:
        result: The stored result.
        outcome: How it compares.
        differences: What differs, one sentence each.
        not_recomputed: What could not be computed from what is stored, and why.
    """

    result: Result
    outcome: Outcome
    differences: Sequence[str] = ()
    not_recomputed: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the result, ready for JSON."""
        return {
            "method": self.result.method,
            "label": self.result.label,
            "outcome": self.outcome.value,
            "differences": list(self.differences),
            "not_recomputed": list(self.not_recomputed),
        }


@dataclass(frozen=True, kw_only=True)
class Verification:
    """All results of a run, computed again.

    Args:
        run: The run.
        recomputed: One entry per result.
        contradictions: What other files of the directory say otherwise, one sentence each.
    """

    run: SavedRun
    recomputed: Sequence[Recomputed]
    contradictions: Sequence[str] = ()

    @property
    def outcome(self) -> Outcome:
        """The worst outcome; one result that is not recomputed does not hide that others are the same."""
        if self.contradictions:
            return Outcome.DIFFERENT
        outcomes = {entry.outcome for entry in self.recomputed}
        order = (Outcome.DIFFERENT, Outcome.ROUNDED, Outcome.SAME)
        return next((outcome for outcome in order if outcome in outcomes), Outcome.NOT_RECOMPUTED)

    @property
    def sentence(self) -> str:
        """What was found, in words."""
        count, total = len(self.recomputed), len(self.recomputed)
        different = sum(entry.outcome is Outcome.DIFFERENT for entry in self.recomputed)
        skipped = sum(entry.outcome is Outcome.NOT_RECOMPUTED for entry in self.recomputed)
        count -= skipped
        kept = f" {skipped} of {total} results could not be recomputed." if skipped else ""
        if self.contradictions and not different:
            return f"The files of this directory contradict each other.{kept}"
        if different:
            return f"{different} of {count} recomputed results differ from what is stored.{kept}"
        if not count:
            return f"None of the {total} results could be recomputed, so nothing is known about them."
        digits = "to the digit" if self.outcome is Outcome.SAME else f"to within {_ROUNDING:g} of their values"
        return (
            f"The {count} recomputed results are the same {digits}. That the scores are those of the training only a "
            f"second run shows.{kept}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome, ready for JSON."""
        return {
            "outcome": self.outcome.value,
            "fingerprint": self.run.fingerprint,
            "sentence": self.sentence,
            "contradictions": list(self.contradictions),
            "results": [entry.to_dict() for entry in self.recomputed],
        }


def recompute(run: SavedRun) -> Verification:
    """Compute all results of a run again.

    Args:
        run: A run that was read with its scores.
    """
    entries = []
    with single_thread():
        for result, stored in zip(run.results, run.content["results"], strict=True):
            siblings = [other for other in run.results if other.method == result.method]
            entries.append(_recomputed(run, result, siblings, stored))
    return Verification(run=run, recomputed=entries, contradictions=list(_contradictions(run)))


def _contradictions(run: SavedRun) -> Iterator[str]:
    """Yield what scores, parts and settings say that ``result.json`` does not: results may have been left out."""
    counts = Counter((result.method, result.label) for result in run.results)
    for (method, label), count in counts.items():
        if count > 1:
            yield f"result.json has {count} results of {method}, {label}"
    stems = {result.file_stem for result in run.results}
    for path in sorted(run.path.glob("scores-*.npz")):
        if path.stem.removeprefix("scores-") not in stems:
            yield f"{path.name} has scores, but result.json has no result of them"
    for method in dict.fromkeys(result.method for result in run.results):
        part = RunDirectory(run.path).part(method)
        stored = [result for result in run.content["results"] if result["method"] == method]
        kept = [_without_timing(result) for result in read_part(part)["results"]] if part.is_file() else stored
        if not all(rounding for _, rounding in _differences(kept, stored)):
            yield f"parts/{part.name} has other results than result.json"
    if run.config is None:
        return
    for result in run.results:
        siblings = [other for other in run.results if other.method == result.method]
        missing = (not result.recipe or result.scores is None) and not _is_composed(result, siblings)
        if missing and registry.is_ours(result.method):
            yield f"{result.method}, {result.label}: its scores or recipe, which coalmine stores with it, are missing"
    settings = run_from_text(run.config, "config.toml")
    for method in settings.methods:
        if RunDirectory(run.path).part(method).is_file() or method in run.methods:
            if method not in run.methods and read_part(RunDirectory(run.path).part(method))["results"]:
                yield f"result.json has no result of {method}, which parts/{method}.json has"
        else:
            yield f"config.toml has [{method}], but there is no result of it"
    for result in run.results:
        yield from _other_settings(settings, result)


def _other_settings(settings: RunSettings, result: Result) -> Iterator[str]:
    """Yield the settings that a result states otherwise than ``config.toml``."""
    if result.method not in settings.methods:
        yield f"result.json has a result of {result.method}, which config.toml does not"
        return
    where = f"{result.method}, {result.label}"
    tables = [settings.trainings[result.training]] if result.training in settings.trainings else []
    stated = {k: v for table in (*tables, settings.methods[result.method]) for k, v in table.to_dict().items()}
    for name, value in stated.items():
        # Of several values, each result has one; the number of workers changes nothing.
        chosen = name in result.config and name != "workers" and not isinstance(value, list | dict)
        if chosen and value is not None and result.config[name] != value:
            yield f"{where}: {name} is {result.config[name]!s:.40} in result.json, {value!s:.40} in config.toml"
    for name in ("delta", "confidence"):
        if name in result.recipe and stated.get(name) is not None and result.recipe[name] != stated[name]:
            yield f"{where}: computed at {name} = {result.recipe[name]!s:.40}, but config.toml has {stated[name]}"


def _without_timing(result: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name != "timing"}


def _recomputed(run: SavedRun, result: Result, siblings: Sequence[Result], stored: Mapping[str, Any]) -> Recomputed:
    """Return one result, computed again and compared with its JSON."""
    left_out, again, outcome = [], result, None
    try:
        if not result.recipe and not _is_composed(result, siblings):
            raise InputError("its method stores no recipe for them")
        if result.recipe and result.scores is None:
            raise InputError("its scores are not stored")
        with refusing_damage(run.path):
            again = registry.find(result.method).recompute(result, siblings)
    except InputError as error:
        left_out.append(f"estimates and claim test: {error}")
        outcome = Outcome.NOT_RECOMPUTED
    again = replace(again, unit=_unit(run, result))
    claim = result.claim
    if claim is not None:
        recomputed = _recomputed_claim(claim)
        if recomputed is None:
            left_out.append(f"claimed ε: taken as stated ({claim.accountant})")
        else:
            # The claim test names the claim that it tested; both are compared with what is stored.
            again = replace(again, claim=recomputed, claim_test=_for_claim(again, recomputed))
    if result.checks:
        checks = "1 check" if len(result.checks) == 1 else f"{len(result.checks)} checks"
        left_out.append(f"findings of {checks}: what they saw of the training is not stored")
    content = json.loads(json.dumps(again.to_dict()))
    differences = list(_differences({name: stored.get(name) for name in _FIELDS}, content))
    if any(not rounding for _, rounding in differences):
        outcome = Outcome.DIFFERENT
    elif outcome is None:
        outcome = Outcome.ROUNDED if differences else Outcome.SAME
    sentences = [sentence for sentence, rounding in differences if not rounding]
    return Recomputed(result=result, outcome=outcome, differences=sentences, not_recomputed=left_out)


def _unit(run: SavedRun, result: Result) -> Unit:
    """Return the unit that a result's method, view and settings decide, or the stored one if they do not."""
    unit = registry.find(result.method).unit_of(result)
    # In a training that was not coalmine's own, canaries of the same method may be examples.
    others = run.config is None and unit == USER and result.unit == EXAMPLE
    return EXAMPLE if others else unit


def _is_composed(result: Result, siblings: Sequence[Result]) -> bool:
    """Whether a result without scores follows from another one of its method."""
    return result.scores is None and any(result.label.startswith(f"{other.label}, ") for other in siblings)


def _for_claim(result: Result, claim: Claim) -> Any:
    """Return the claim test of a result as a test of ``claim``, which differs from its own in ε at most."""
    return None if result.claim_test is None else replace(result.claim_test, claim=claim)


def _recomputed_claim(claim: Claim) -> Claim | None:
    """Return a claim with its ε from the accountant again, or None if somebody else stated it."""
    return None if claim.stated is not None else claim


def _differences(stored: Any, again: Any, place: str = "") -> Iterator[tuple[str, bool]]:
    """Yield sentences on what differs in two JSON values, and whether rounding explains it."""
    if isinstance(stored, dict) and isinstance(again, dict):
        for name in dict.fromkeys([*stored, *again]) if place else stored:
            yield from _differences(stored.get(name), again.get(name), f"{place}.{name}" if place else name)
    elif isinstance(stored, list) and isinstance(again, list) and len(stored) == len(again):
        for i, (one, other) in enumerate(zip(stored, again, strict=True)):
            name = one.get("method", i) if isinstance(one, dict) else i
            yield from _differences(one, other, f"{place}[{name}]")
    elif stored != again:
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (stored, again))
        rounding = numbers and math.isclose(stored, again, rel_tol=_ROUNDING)
        yield f"{place} is stored as {_shown(stored)}, recomputed as {_shown(again)}", rounding


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}…"
