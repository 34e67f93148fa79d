"""`Result`: what every method returns, and all that a page, gate or table needs to know about it."""

from __future__ import annotations

import math
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Self, cast

import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from coalmine.claims import Claim
from coalmine.errors import InputError, check_kind
from coalmine.results import summary
from coalmine.results.claim_test import ClaimTest, test_by_bound
from coalmine.results.verdict import CHECK_RATE, UNITS, Finding, Unit, Verdict, exceeds, verdict_on
from coalmine.stats import Estimate, Scores

_CHECK_RATE = CHECK_RATE * (1 + 1e-9)  # each of n checks is made at CHECK_RATE / n, which rounds

# Estimates that may stand for a result, the best calibrated first. Bounds that assume a Gaussian mechanism are none.
_BEST_GUESSES = ("gaussian-shift", "gaussian-fit", "best-threshold", "median-exposure", "empirical", "composed")

_NUMBERS = ("claimed_epsilon", "lower_bound", "best_guess", "best_guess_lower", "best_guess_upper")


@cache
def environment() -> Mapping[str, str]:
    """Return the versions of Python and the main packages, and the platform."""
    versions = {name: metadata.version(name) for name in ("numpy", "scipy", "torch", "dp-accounting")}
    return {"python": sys.version.split()[0], "platform": f"{platform.system()}-{platform.machine()}", **versions}


class Showable:
    """One result or several, with the methods that show them.

    Drawing and report are layers above this one and slow to import, so their imports are inside the methods: the only
    ones that point upward, listed in the import contract.
    """

    def _shown(self) -> Sequence[Result]:
        """Return the results to show."""
        return (cast("Result", self),)

    def plot(self, kind: str = "epsilon") -> Any:
        """Return an altair chart, which notebooks draw and ``chart.save("figure.png")`` writes.

        Args:
            kind: ``"epsilon"`` (claim, lower bound, and best guess with its interval), ``"roc"``, ``"scores"``, or
                ``"rounds"`` (along the training, for CANIFE).

        Raises:
            InputError: If there is no such chart, or the results have nothing to draw in it.

        Example:
            >>> from coalmine import check_mechanism
            >>> result = check_mechanism(lambda total: total, dim=500, canaries=20)
            >>> result.plot("roc").to_dict()["height"]
            210
        """
        from coalmine.report.page import plot

        return plot(self._shown(), kind)

    def to_dataframe(self) -> Any:
        """Return a pandas DataFrame with one row per estimate, beside the claim and the verdict.

        Raises:
            InputError: If pandas is not installed.
        """
        from coalmine.results.tables import estimates_frame

        return estimates_frame(self._shown())

    def to_markdown(self) -> str:
        """Return a Markdown table with one row per result, and what was found.

        Example:
            >>> from coalmine import check_mechanism
            >>> print(check_mechanism(lambda total: total, dim=500, canaries=100).to_markdown().splitlines()[0])
            | method | view | unit | claimed ε | lower bound | best guess | by | verdict |
        """
        from coalmine.results.tables import results_markdown

        return results_markdown(self._shown())

    def save(
        self, directory: Path | str, *, facts: Mapping[str, object] | None = None, overwrite: bool = False
    ) -> None:
        """Write the results to a directory, which `coalmine.load` and the command line read.

        Args:
            directory: Where to write; it is created if needed.
            facts: What the report and the model card should say of the training, such as ``{"data": "digits",
                "users": 50}``; `coalmine.results.io.FACTS` has all names.
            overwrite: Whether to replace the results that an earlier `save` wrote there.

        Raises:
            InputError: If the directory holds a run, or results and ``overwrite`` is False, if two results have the
                same method, view and variant, or if a fact is unknown.

        Example:
            >>> import tempfile
            >>> from coalmine import check_mechanism
            >>> with tempfile.TemporaryDirectory() as directory:
            ...     check_mechanism(lambda total: total, dim=500, canaries=20).save(directory)
            ...     sorted(path.name for path in Path(directory).iterdir())
            ['manifest.json', 'provenance.json', 'result.json', 'scores-mechanism-release.npz']
        """
        from coalmine.results.io import write_results

        write_results(self._shown(), Path(directory), facts, overwrite)

    def report(
        self, path: Path | str = "report.html", *, title: str = "", facts: Mapping[str, object] | None = None
    ) -> Path:
        """Write a report: one HTML file that opens offline.

        Args:
            path: The file.
            title: Title of the report; by default the file's name, or the methods' if that is ``report``.
            facts: What it should say of the training, as for `save`.

        Raises:
            InputError: If there are no results.
        """
        from coalmine.files import write_text
        from coalmine.report.page import report
        from coalmine.results.io import unsaved

        path, results = Path(path), self._shown()
        if not results:
            raise InputError("there are no results to report")
        methods = " and ".join(dict.fromkeys(result.method for result in results))
        name = title or (methods if path.stem == "report" else path.stem)
        return write_text(path, report(unsaved(results, name, facts)))

    def _repr_html_(self) -> str:
        """Return what notebooks show."""
        from coalmine.report.page import as_html

        return as_html(self._shown())


@dataclass(frozen=True, kw_only=True, repr=False)
class Result(Showable):
    """Evidence about ε from one method and one adversary, beside the claimed guarantee.

    Args:
        method: Name of the method in the registry, such as ``"one-shot"``.
        view: What the adversary sees, such as ``"updates"``.
        unit: Whose privacy ε is about. Figures for different units are never compared.
        adversary: What the adversary does, continuing "an adversary who ...".
        score_name: Name of the score, such as ``"cosine"``.
        side_names: Names of the two sets of scores, members first.
        odds: What e^ε means for this adversary, a sentence with a place for ``{times}``.
        seed: Seed of the audit's random choices.
        estimates: Bounds and estimates, the recommended one first.
        scores: The scores they were computed from, or None where there are only counts.
        null: Closed form of the held-out scores where it is exact, as ``coalmine estimate --null`` takes it.
        claim: What is claimed, as whoever claims it states it; None if nothing is.
        claim_test: How it was tested. ``claim_test.claim`` is the claim itself, or what the same noise promises to
            canaries that take part otherwise than the clients of the claim. By default the lower bound is compared with
            the claimed ε. With another ``claim`` in `dataclasses.replace`, pass a test of that one, or None for the
            default.
        checks: Names of the checks for bugs that were made beside the test of the claim.
        findings: What they found. They have a false-alarm rate of their own, `coalmine.results.verdict.CHECK_RATE`.
        ceiling: Largest bound that counting this number of scores can show; bounds from an exact null have no ceiling.
        joint_bound: Lower bound that holds together with those of all other results of the method, where a method has
            many: some of many single bounds exceed a claim by chance.
        variant: What distinguishes results of the same method and view, such as the crafter of the LDP audit.
        training: Name of the audited training, where a run has several.
        warnings: Sentences on what to be careful with.
        metrics: Numbers beside ε, such as the model's accuracy.
        config: Settings of the audit.
        details: JSON-ready findings that only the method's own section of the report reads.
        arrays: Further arrays to save beside the scores.
        recipe: JSON-ready terms that, with scores, arrays and claim, give the estimates and the test again
            (`coalmine.methods.method.Method.recompute`). Empty if they cannot be recomputed.
        provenance: Versions of what computed it.

    Attributes:
        label: The view, with the variant where there is one: unique among the results of a method.
        name: The method and the label, unique among the results of a run.
        claimed: The claimed (ε, δ), by which results are compared; None without a claim.
        tested: What the test and the lower bound are compared with: ``claim_test.claim``, or None.
        about_claim: Whether bounds and estimates are about the ε that is claimed, and so may be compared with it and
            with a limit on it. They are not if canaries take part otherwise than the clients of the claim, or if the
            score uses rounds that the claim assumes to be secret.
        participation: How canaries took part where bounds and estimates are about that, and not about the claimed ε,
            such as "in 25 rounds". Empty if ``about_claim``.
        bound: The lower bound of this result by itself: the first valid one, or None if there are only estimates.
        quoted_bound: The lower bound to quote and to compare with the claim: ``bound``, or ``joint_bound`` where the
            method has many results.
        best_guess: The estimate to show beside the bound: the best calibrated one whose assumption was not seen to
            fail. Estimates from few scores, and those below the lower bound, stand for nothing.
        numbers: The claimed ε, the lower bound to quote, and the best guess with its interval, by the names that JSON
            and trackers use; None where there is none.
        bugs: The findings that refute the claim: those whose p-value, all checks taken into account, is small enough.
        verdict: What the result says about the claim.
        refuted: Whether the claim is refuted.

    Raises:
        InputError: If ``claim_test`` is neither a test of ``claim`` nor of its noise.

    Example:
        >>> from coalmine.results.verdict import USER
        >>> from coalmine.stats import Scores, estimate
        >>> inserted, held_out = [3.1, 2.7, 3.5, 2.9, 3.3], [0.1, -0.4, 0.3, 0.0, 0.2]
        >>> result = Result(
        ...     method="my-method", view="final", unit=USER, adversary="sees the final model", score_name="loss",
        ...     seed=0, estimates=estimate(inserted, held_out), scores=Scores(inserted, held_out),
        ... )
        >>> result.verdict.value
        'no claim'
    """

    method: str
    view: str
    unit: Unit
    adversary: str
    score_name: str
    side_names: tuple[str, str] = (summary.INSERTED, "held out")
    odds: str = summary.FLAGGING
    seed: int
    estimates: Sequence[Estimate]
    scores: Scores | None = None
    null: str | None = None
    claim: Claim | None = None
    claim_test: ClaimTest | None = None
    checks: Sequence[str] = ()
    findings: Sequence[Finding] = ()
    ceiling: float | None = None
    joint_bound: float | None = None
    variant: str = ""
    training: str = ""
    warnings: Sequence[str] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=lambda: dict(environment()))

    label: str = field(init=False, compare=False)
    name: str = field(init=False, compare=False)
    claimed: tuple[float, float] | None = field(init=False, compare=False)
    tested: Claim | None = field(init=False, compare=False)
    about_claim: bool = field(init=False, compare=False)
    participation: str = field(init=False, compare=False)
    bound: Estimate | None = field(init=False, compare=False)
    quoted_bound: Estimate | None = field(init=False, compare=False)
    best_guess: Estimate | None = field(init=False, compare=False)
    numbers: Mapping[str, float | None] = field(init=False, compare=False)
    bugs: list[Finding] = field(init=False, compare=False)
    verdict: Verdict = field(init=False, compare=False)
    refuted: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        claim, test = self.claim, self.claim_test
        numbers: dict[str, float | None] = dict.fromkeys(_NUMBERS)
        bound = quoted = next((e for e in self.estimates if e.valid), None)
        least = 0.0
        if bound is not None:
            numbers["lower_bound"] = least = bound.epsilon
            if self.joint_bound is not None and self.joint_bound != least:
                numbers["lower_bound"] = self.joint_bound
                together = f"{bound.assumes}; it then holds together with the bounds of all other results"
                quoted = replace(bound, epsilon=self.joint_bound, lower=self.joint_bound, assumes=together, stricter=())
        reliable = {}
        for e in self.estimates:
            if e.epsilon >= least and not (e.doubtful or e.few_scores or e.lower == math.inf):
                reliable[e.method] = e
        guess = next((reliable[name] for name in _BEST_GUESSES if name in reliable), None)
        if guess is not None:
            numbers |= {"best_guess": guess.epsilon, "best_guess_lower": guess.lower, "best_guess_upper": guess.upper}
        claimed = None
        if claim is not None:
            claimed = (claim.epsilon, claim.delta)
            numbers["claimed_epsilon"] = claim.epsilon
        findings = sorted(self.findings, key=lambda finding: finding.rank)
        bugs = [finding for finding in findings if finding.refutes and finding.p_value <= _CHECK_RATE]
        if test is None and claim is not None:
            test = test_by_bound(claim, quoted, guess)
        verdict, tested, participation = Verdict.NO_CLAIM, None, ""
        if test is not None:
            tested = test.claim or claim
            test = replace(test, claim=tested)
            if tested is None or claim is None or not tested.tests(claim):
                raise InputError(
                    f"claim_test is the test of another claim than {claim}: pass a test of this one, or "
                    "claim_test=None to compare the lower bound with it"
                )
            if (tested.sampling, tested.rounds) != (claim.sampling, claim.rounds):
                participation = summary.participation(tested, self.unit.turn)
            verdict = verdict_on(
                claim,
                rejected=test.refuted,
                exceeded=test.verdict is Verdict.SUSPICIOUS or exceeds(quoted, tested),
                detects_half=test.verdict is Verdict.NOT_REFUTED,
                bugs=bugs,
            )
        label = ", ".join(filter(None, [self.variant, self.view]))
        # Computed once: tables, gates and pages ask for these many times.
        derived = {
            "claim_test": test,
            "findings": findings,
            "label": label,
            "name": f"{self.method}, {label}",
            "claimed": claimed,
            "tested": tested,
            "about_claim": not participation,
            "participation": participation,
            "bound": bound,
            "quoted_bound": quoted,
            "best_guess": guess,
            "numbers": numbers,
            "bugs": bugs,
            "verdict": verdict,
            "refuted": verdict is Verdict.REFUTED,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def __str__(self) -> str:
        """The verdict, the three numbers, and what was found or should be known, on a line each."""
        claim, bound, guess = self.claim, self.quoted_bound, self.best_guess
        claimed, best = "nothing", summary.no_guess(self) if self.estimates else "none"
        about = f", about canaries {self.participation}" * bool(self.participation)
        proven = "nothing: there are only estimates"
        if claim is not None:
            claimed = f"ε ≤ {summary.number(claim.epsilon)} at δ = {claim.delta:g}"
        if bound is not None and bound.confidence is not None:
            proven = f"ε ≥ {summary.number(bound.epsilon)} at δ = {bound.delta:g} "
            proven += f"({100 * bound.confidence:g}%, {bound.method}){about}"
            if self.ceiling is not None and bound.method == "simultaneous":
                proven += f"; more than {self.ceiling:.3g} cannot be shown with this many scores"
        if guess is not None:
            best = f"ε ≈ {summary.guess(guess)} ({guess.method}){about}"
        lines = [f"{self.name}: {self.verdict.value}"]
        lines += [f"claimed     {claimed}", f"proven      {proven}", f"best guess  {best}"]
        lines += map(str, summary.causes(self.findings))
        lines.append(summary.verdict_sentence(self))
        lines += filter(None, [summary.tested_with(self), summary.not_tested([self])])
        return "\n".join([*lines, *(f"Warning: {warning.rstrip('.')}." for warning in self.warnings)])

    def __repr__(self) -> str:
        """The verdict and the numbers in one line."""
        parts = [f"<{type(self).__name__} {self.name}: {self.verdict.value}"]
        if self.claim is not None:
            parts.append(f"claimed ε ≤ {summary.number(self.claim.epsilon)}")
        if self.quoted_bound is not None:
            parts.append(f"ε ≥ {summary.number(self.quoted_bound.epsilon)}")
        if self.best_guess is not None:
            parts.append(f"ε ≈ {summary.guess(self.best_guess)}")
        return ", ".join(parts) + ">"

    @property
    def file_stem(self) -> str:
        """The method and label as part of a file name."""
        readable = f"{self.method}-{self.label}".replace("ε = ", "eps-")
        return re.sub(r"[^A-Za-z0-9.=-]+", "-", readable).strip("-")

    def __getitem__(self, method: str) -> Estimate:
        """Return the estimate of that name, such as ``result["gaussian-shift"]``.

        Raises:
            InputError: If there is none.
        """
        available = {e.method: e for e in self.estimates}
        if method not in available:
            raise InputError(f"unknown estimate {method!r}. Available: {', '.join(available)}.")
        return available[method]

    @property
    def summary(self) -> str:
        """The verdict and the evidence in a few sentences."""
        parts = [*map(str, summary.causes(self.findings)), summary.evidence_sentences(self), summary.not_tested([self])]
        return " ".join(filter(None, parts))

    def to_dict(self) -> dict[str, Any]:
        """Return everything but scores and arrays, ready for JSON."""
        # Subclasses add fields that follow from these, so theirs are not written.
        stored = {f.name: getattr(self, f.name) for f in fields(Result) if f.init}
        del stored["scores"], stored["arrays"]
        stored |= {
            "unit": self.unit.name,
            "side_names": list(self.side_names),
            "verdict": self.verdict.value,
            "summary": self.summary,
            "findings": [finding.to_dict() for finding in self.findings],
            "estimates": [estimate.to_dict() for estimate in self.estimates],
            "ceiling": in_json(self.ceiling),
            "joint_bound": in_json(self.joint_bound),
            "metrics": {name: in_json(value) for name, value in self.metrics.items()},
            "checks": list(self.checks),
            "warnings": list(self.warnings),
        }
        if self.claim is not None:
            stored["claim"] = self.claim.to_dict()
        if self.claim_test is not None:
            stored["claim_test"] = {**vars(self.claim_test), "verdict": self.claim_test.verdict.value}
            stored["claim_test"]["claim"] = self.claim_test.claim and self.claim_test.claim.to_dict()
        return stored

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Return the result that `to_dict` wrote, without the scores and arrays that were saved beside it."""
        values = {f.name: content[f.name] for f in fields(Result) if f.init and f.name in content}
        values["claim_test"] = content["claim_test"] and dict(content["claim_test"])
        for holder in (values, values["claim_test"]):  # what is claimed, and what was tested of it
            if holder is not None and holder.get("claim") is not None:
                holder["claim"] = Claim.from_dict(holder["claim"])
        values |= dict(_Stored(**{name: values[name] for name in _Stored.model_fields}))
        values["unit"] = UNITS.get(content["unit"], Unit(content["unit"]))
        return cls(**values)


class _Stored(BaseModel):
    """The fields of a result that JSON spells otherwise: infinity is a word, and lists stand for tuples and classes."""

    # Unknown fields may change what the others mean. A claim test has a `Claim`, which was read already.
    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    side_names: tuple[str, str]
    estimates: list[Estimate]
    claim_test: ClaimTest | None
    findings: list[Finding]
    ceiling: float | None
    joint_bound: float | None
    metrics: dict[str, float]


class Results(tuple[Result, ...], Showable):
    """Several results. They can be shown like one, and indexed like a tuple.

    Args:
        results: The results.

    Example:
        >>> from coalmine import check_mechanism
        >>> result = check_mechanism(lambda total: total, dim=500, canaries=100)
        >>> results = Results([result, result])
        >>> len(str(results).splitlines())  # a table
        3
    """

    __slots__ = ()

    def _shown(self) -> Sequence[Result]:
        return tuple(self)

    def __str__(self) -> str:
        """The results as a table."""
        from coalmine.results.tables import Table, tested_with

        lines = [Table.of_results(self, "").to_text(), *map(str, summary.causes_of(self)), *tested_with(self)]
        warnings = dict.fromkeys(warning for result in self for warning in result.warnings)
        lines += [summary.not_tested(self), *(f"Warning: {warning.rstrip('.')}." for warning in warnings)]
        return "\n".join(filter(None, lines))

    def __repr__(self) -> str:
        """Each result in one line."""
        return f"Results([{', '.join(map(repr, self))}])"


def from_json(value: Any) -> Any:
    """Return a value of a result file as a Python value; infinity and NaN are written as words."""
    return float(value) if isinstance(value, str) and value in ("inf", "-inf", "nan") else value


def in_json(value: float | None) -> float | str | None:
    """Return a number for a result file, in which infinity is written as a word."""
    return "inf" if value == math.inf else value


@dataclass(frozen=True, kw_only=True)
class MethodResults:
    """All results of one method in one run.

    Args:
        method: Name of the method.
        results: One result for each adversary.
        summary: What the results say together, where that is more than each says by itself.
        extras: JSON-ready documents by name. Each is saved as ``NAME.json`` beside the results.
        failure: Why there are no results, although the training went through.
    """

    method: str
    results: Sequence[Result]
    summary: str | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)
    failure: str = ""


def common_delta(delta: float | None, claim: Claim | None) -> float:
    """Return the δ of a result: as given, else that of the claim, else 1e-5.

    Raises:
        InputError: If both are given and differ.
    """
    if claim is None:
        return 1e-5 if delta is None else delta
    check_kind("claim", claim, Claim, "a coalmine.Claim")
    if delta is not None and delta != claim.delta:
        raise InputError(
            f"delta = {delta:g} differs from the claim's delta = {claim.delta:g}: state both at the same δ"
        )
    return claim.delta
