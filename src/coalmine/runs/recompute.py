"""What the gate judges: the results of a directory, computed again from the stored scores and the settings.

``coalmine check`` never reads a stored bound, p-value or verdict. Each method computes its own results again from their
scores, arrays and terms (`coalmine.methods.method.Method.recompute`), with δ and confidence from ``config.toml``.
Findings of checks follow again from what these counted and measured. What cannot be recomputed is guarded by the
manifest. Stored numbers, verdicts, claims and findings that differ from the recomputed ones, and results that the
settings ask for but that are missing, are differences: the gate fails on them. Sentences are not compared.
"""

from __future__ import annotations

import fnmatch
import html
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from coalmine.claims import Claim
from coalmine.errors import InputError
from coalmine.files import read_text
from coalmine.methods import registry
from coalmine.parallel import single_thread
from coalmine.results import summary
from coalmine.results.directory import REPORT
from coalmine.results.gate import NO_MECHANISM, Objection
from coalmine.results.io import SavedRun, refusing_damage
from coalmine.results.result import MethodResults, Result
from coalmine.results.tables import grouped
from coalmine.results.verdict import ROUND, USER
from coalmine.runs.settings import RunSettings, run_from_text

_COMPARED = (
    "unit", "verdict", "claim", "claim_test", "checks", "findings", "estimates", "ceiling", "joint_bound", "details",
)  # fmt: skip
STATED = (
    "data", "clients and parameters", "accuracy and history", "extracted phrases", "metrics",
    "participation of canaries", "words about adversaries and scores", "warnings", "summaries", "facts", "date",
    "versions",
)  # fmt: skip
"""What cannot be computed again from scores and settings: whoever ran the audit states it."""
_SENTENCES = ("assumes", "sentence", "example", "note")  # a run stays valid if later versions word these otherwise
_ROUNDING = 1e-9  # relative difference that other processors and library versions may make
_PAGE_ROUNDING = 0.01  # pages show three digits
_TERMS = ("delta", "confidence", "design")  # of the estimates; settings decide them where they have them


@dataclass(frozen=True, kw_only=True)
class Recomputed:
    """The results of a directory, computed again.

    Args:
        results: One for each stored result.
        differences: What ``result.json`` states otherwise, or leaves out; one sentence each.
        not_recomputed: The results that are judged as they were stored, and why.
        objections: What stops the gate whatever ε is, the differences among them.
    """

    results: Sequence[Result]
    differences: Sequence[str]
    not_recomputed: Sequence[str]
    objections: Sequence[Objection]

    @property
    def sentence(self) -> str:
        """What the comparison with the stored numbers showed."""
        if self.differences:
            count = len(self.differences)
            return f"{count} stored {'value differs' if count == 1 else 'values differ'} from what the scores give."
        text = "The recomputed numbers match the stored ones. Only a second run can show that the scores are real."
        if self.not_recomputed:
            stored = f"{len(self.not_recomputed)} of {summary.plural(len(self.results), 'result')}"
            text = f"Judged as stored, since they could not be recomputed: {stored}, such as {self.not_recomputed[0]}."
        return f"{text} Taken as stated: {', '.join(STATED)}."

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the results, ready for JSON."""
        lists = {"differences": list(self.differences), "not_recomputed": list(self.not_recomputed)}
        return {"sentence": self.sentence, **lists, "stated": list(STATED)}


def objections(methods: Sequence[MethodResults]) -> list[Objection]:
    """Return what stops the gate whatever ε is: no mechanism, and what methods object to, such as extracted phrases."""
    stopping = []
    subjects: dict[str, list[Result]] = {}
    for found in methods:
        for name, sentence in registry.find(found.method).objections(found).items():
            stopping.append(Objection(name, sentence, [found.method]))
        for result in found.results:
            subjects.setdefault(result.training or result.method, []).append(result)
    for name, results in subjects.items():
        if not any(result.claim is not None and result.claim.epsilon < math.inf for result in results):
            sentence = f"no privacy mechanism or finite ε is claimed for {name}"
            stopping.insert(0, Objection(NO_MECHANISM, sentence, [result.method for result in results]))
    return stopping


def recompute(run: SavedRun) -> Recomputed:
    """Compute all results of a run again.

    Args:
        run: A run that was read with its scores.

    Raises:
        InputError: If the settings or scores cannot be read.
    """
    differences, settings = [*_missing(run)], None
    # Settings of a method that is not installed cannot be read; its results are judged as they were stored.
    if run.config is not None and all(map(registry.is_installed, run.methods)):
        settings = run_from_text(run.config, f"{run.path / 'config.toml'}")
        differences += _unlike_settings(run, settings)
    results, not_recomputed = [], []
    with single_thread(), refusing_damage(run.path):
        for result, stored in zip(run.results, run.content["results"], strict=True):
            name = result.name
            try:
                again = _recomputed(run, result, settings)
            except InputError as error:
                again = result
                if settings is not None and registry.is_ours(result.method):
                    differences.append(f"{name}: {error}")  # our methods store all that it takes
                else:
                    not_recomputed.append(f"{name}: {error}")
            content = json.loads(json.dumps(again.to_dict()))
            for key in _COMPARED:
                differences += [f"{name}: {text}" for text in _unlike(stored.get(key), content[key], key)]
            results.append(again)
        differences += _unlike_page(run, results)
    with refusing_damage(run.path):
        stopping = objections([run.of(name, registry.find(name).extras) for name in run.methods])
    stopping += [Objection("stored results", difference) for difference in differences]
    return Recomputed(results=results, differences=differences, not_recomputed=not_recomputed, objections=stopping)


def _recomputed(run: SavedRun, result: Result, settings: RunSettings | None) -> Result:
    """Return one result, computed again by its method."""
    method = registry.find(result.method)
    siblings = [other for other in run.results if other.method == result.method]
    # Without scores of its own, a result may follow from another one of its method, as composed rounds do.
    follows = any(result.label.startswith(f"{other.label}, ") for other in siblings)
    if result.scores is None and not follows:
        raise InputError("its scores are not stored")
    if not result.recipe and not follows:
        raise InputError("its method stores no terms to compute it from")
    if settings is None:
        return method.recompute(result, siblings)
    table = settings.methods.get(result.method)
    terms = dict(result.recipe)
    for term in _TERMS:
        setting = getattr(table, term, None)
        if term in terms and setting is not None:
            terms[term] = setting
    again = method.recompute(replace(result, recipe=terms, unit=method.unit_of(result)), siblings)
    return replace(again, recipe=result.recipe)


def _missing(run: SavedRun) -> Iterator[str]:
    """Yield what ``result.json`` leaves out or has twice."""
    counts = Counter((result.method, result.label) for result in run.results)
    # A repeated result would get two shares of the false-alarm rate, and make the others' bounds weaker.
    for (method, label), count in counts.items():
        if count > 1:
            yield f"result.json has {count} results of {method}, {label}"
    expected = {run.path / f"scores-{result.file_stem}.npz" for result in run.results}
    for path in sorted(set(run.path.glob("scores-*.npz")) - expected):
        yield f"{path.name} has scores, but result.json has no result of them"


def _unlike_settings(run: SavedRun, settings: RunSettings) -> Iterator[str]:
    """Yield the configured methods and views without a result, and terms that results state otherwise."""
    for name, table in settings.methods.items():
        method = registry.get(name)
        labels = [result.label for result in run.results if result.method == name]
        for label in method.labels(table) or ["*"] * (not method.extras):  # phrases that were all inserted give no ε
            if not fnmatch.filter(labels, label):
                yield f"config.toml has [{name}], but there is no result of it: {label}"
        for document in method.extras:
            if not (run.path / f"{document}.json").is_file():
                yield f"config.toml has [{name}], but there is no {document}.json"
    options, tables = settings.run, {**settings.trainings, **settings.methods}
    yield from _unlike(run.content.get("title"), options.title, "title")
    yield from _unlike(run.content.get("auditor"), options.auditor or None, "auditor")
    if run.provenance.get("seeds") != {name: table.seed for name, table in tables.items() if hasattr(table, "seed")}:
        yield "provenance.json has other seeds than config.toml"
    for name, training in settings.trainings.items():
        facts = {"rounds": training.rounds, "private": training.mechanism().private}
        stored = run.training_runs.get(name, {})
        yield from _unlike({key: stored.get(key) for key in facts}, facts, f"training_runs.{name}")
    for result in run.results:
        if result.method not in settings.methods:
            yield f"{result.name}: config.toml has no table [{result.method}]"
        elif registry.is_ours(result.method):
            for difference in _unlike_table(run, settings, result):
                yield f"{result.name}: {difference}"


def _unlike_table(run: SavedRun, settings: RunSettings, result: Result) -> Iterator[str]:
    """Yield the claim and the settings of the training that a result states otherwise."""
    table, claim = settings.methods[result.method], result.claim
    training = settings.trainings.get(result.training)
    for name, setting in table.model_dump(mode="json").items():
        # What is not set depends on the data or the view, and of several values each has its own results.
        stored = result.config.get(name)
        if setting is not None and not (isinstance(setting, list) and stored in setting):
            yield from _unlike(stored, setting, f"config.{name}")
    seed = getattr(table, "seed", None if training is None else training.seed)
    yield from () if seed is None else _unlike(result.seed, seed, "seed")
    # A local mechanism's claim is in the label, which the settings ask for.
    if "ε = " in result.label and (claim is None or f"ε = {claim.epsilon:g}," not in result.label):
        yield "its label is about another claim"
    if registry.get(result.method).training_type is None:
        for setting, term in (("noise_multiplier", "noise_multiplier"), ("claim", "epsilon")):
            wanted = getattr(table, setting, None)
            if wanted and (setting == "claim" or not getattr(table, "claim", None)):
                yield from _unlike(getattr(claim, term, None), wanted, f"claim.{term}")
        return
    if training is not None:
        # A run may go on with other workers and on another device.
        terms = training.model_dump(mode="json", exclude={"workers", "device"})
        yield from _unlike({key: result.config.get(key, terms[key]) for key in terms}, terms, "config")
        if result.training != settings.table_of(registry.get(result.method)):
            yield f"it is not about [{result.training}]"
    expected = None
    if result.unit in (USER, ROUND) and training is not None and training.mechanism().private:
        # Methods without a training of their own claim nothing. Only the number of clients is not in the settings.
        clients = run.training_runs.get(result.training, {}).get("clients", 1)
        expected = training.claim(clients, table.delta)  # type: ignore[attr-defined]
        if result.unit is ROUND:
            expected = Claim(noise_multiplier=training.noise_multiplier, rounds=1, delta=expected.delta)
    stated, claimed = (None if claim is None else claim.to_dict() for claim in (claim, expected))
    yield from _unlike(stated, claimed, "claim")


def _unlike_page(run: SavedRun, results: Sequence[Result]) -> Iterator[str]:
    """Yield the numbers and verdicts that ``report.html`` shows otherwise: numbers, not HTML, which versions change."""
    page = run.path / REPORT
    if not page.is_file():
        return
    expected: dict[str, Any] = {}
    for result in [result for group in grouped(results) for result in group.results]:
        names = ("claimed_epsilon", "lower_bound", "best_guess")
        expected |= {f"{result.name}: {name}": result.numbers[name] for name in names}
        p_value = None if result.claim_test is None else result.claim_test.p_value
        expected |= {f"{result.name}: p_value": p_value, f"{result.name}: verdict": result.verdict.value}
    shown = set()
    for place, text in re.findall(r'data-number="([^"]*)"[^>]*>([^<]*)<', read_text(page)):
        name, value = html.unescape(place), text.lstrip("ε≤≥≈ ").replace("∞", "inf")
        shown.add(name)
        number = expected.get(name)
        same = value == "–" if number is None else value.lower().startswith(str(number))  # a headline goes on
        if isinstance(number, float):
            with suppress(ValueError):
                same = math.isclose(float(value), number, rel_tol=_PAGE_ROUNDING)
        if not same:
            yield f"report.html shows {value:.20} as {name}, recomputed as {number}: draw it again"
    for name in sorted(expected.keys() - shown):
        yield f"report.html does not show {name}: draw it again"


def _unlike(stored: Any, again: Any, place: str) -> Iterator[str]:
    """Yield sentences on what differs in two JSON values by more than rounding."""
    kinds = {type(stored), type(again)}
    if kinds == {dict}:
        for name in sorted({*stored, *again} - {*_SENTENCES}):
            yield from _unlike(stored.get(name), again.get(name), f"{place}.{name}")
    elif kinds == {list} and len(stored) == len(again):
        for i, (one, other) in enumerate(zip(stored, again, strict=True)):
            name = one.get("method", i) if isinstance(one, dict) else i
            yield from _unlike(one, other, f"{place}[{name}]")
    elif kinds <= {int, float} and math.isclose(stored, again, rel_tol=_ROUNDING):
        return
    elif stored != again:
        was, now = (json.dumps(value, ensure_ascii=False)[:60] for value in (stored, again))
        yield f"{place} is stored as {was}, recomputed as {now}"
