"""Runs side by side: which settings differ, what each run shows, and which differences are more than noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from coalmine.arrays import Floats
from coalmine.config.toml import flat
from coalmine.errors import InputError, check_kind
from coalmine.reading import parse_toml
from coalmine.results.frames import as_frame
from coalmine.results.groups import Group
from coalmine.results.result import Result
from coalmine.results.saved import SavedRun, read_run_directory
from coalmine.results.tables import EVIDENCE, Table, evidence_cells, evidence_in_json
from coalmine.stats import Estimate

SETTINGS_COLUMNS = ["setting"]
COLUMNS = ["method", "view", "run", *EVIDENCE, "against the first run"]
DIFFERS, WITHIN = "differs beyond noise (95%)", "within noise"

Comparable = SavedRun | Path | str | Result | Sequence[Result]
"""What can be compared."""

_CONFIDENCE = 0.95
_LARGEST = 1e150  # its square is still a float


@dataclass(frozen=True)
class Shift:
    """Distance between the mean scores of members and non-members, in standard deviations of the latter.

    The estimate ``gaussian-shift`` is a function of it. Its variance comes from the jackknife, which does not need
    normal scores.
    """

    value: float
    variance: float
    freedom: int

    @classmethod
    def of(cls, members: Floats, nonmembers: Floats) -> Shift | None:
        """Return the shift of these scores, or None if they are too few or constant."""
        k = nonmembers.size
        if members.size < 3 or k < 4 or max(np.abs(members).max(), np.abs(nonmembers).max()) > _LARGEST:
            return None
        gap = float(members.mean() - nonmembers.mean())
        centered = nonmembers - nonmembers.mean()
        squares = float(np.sum(centered**2))
        without = squares - centered**2 * k / (k - 1)
        if not np.all(without > 1e-12 * squares):
            return None
        std = math.sqrt(squares / (k - 1))
        left_out = (gap + centered / (k - 1)) / np.sqrt(without / (k - 2))
        variance = float(members.var(ddof=1)) / members.size / std**2
        variance += (k - 1) / k * float(np.sum((left_out - left_out.mean()) ** 2))
        return cls(gap / std, variance, min(members.size, k) - 1)

    def differs(self, other: Shift) -> bool:
        """Whether two shifts differ, with a false-alarm rate of about 5%.

        Uses Student's t with the degrees of freedom of the smallest sample. Negative shifts all count as 0.
        """
        gap = abs(max(0.0, self.value) - max(0.0, other.value))
        quantile = float(special.stdtrit(min(self.freedom, other.freedom), (1 + _CONFIDENCE) / 2))
        return gap > quantile * math.sqrt(self.variance + other.variance)


def intervals_differ(first: Estimate, second: Estimate) -> bool:
    """Whether two estimates with intervals differ by more than noise.

    The interval of the difference is composed of the two intervals (Zou and Donner 2008); they differ if it excludes 0.
    """
    (e1, l1, u1), (e2, l2, u2) = ((e.epsilon, e.lower or 0.0, e.upper or 0.0) for e in (first, second))
    if math.inf in (e1, e2):
        return e1 != e2 and (l1 > u2 or l2 > u1)
    low = e1 - e2 - math.hypot(e1 - l1, u2 - e2)
    high = e1 - e2 + math.hypot(u1 - e1, e2 - l2)
    return not low <= 0 <= high


@dataclass(frozen=True, kw_only=True)
class Row:
    """One result of one run, and how it differs from the first run that has it."""

    result: Result
    run: str
    difference: str

    def cells(self) -> list[str]:
        """Return the cells of the table, under `COLUMNS`."""
        result = self.result
        return [result.method, result.label, self.run, *evidence_cells(result), self.difference]

    def to_dict(self) -> dict[str, Any]:
        """Return the row, ready for JSON."""
        result = self.result
        return {
            "method": result.method,
            "view": result.label,
            "run": self.run,
            **evidence_in_json(result),
            "difference": self.difference,
        }


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Several runs side by side. ``print`` shows it as a table.

    Args:
        runs: Names of the runs.
        settings: A row for each setting that differs: its name, and its value in each run.
        rows: A row for each result.
    """

    runs: list[str]
    settings: list[list[str]]
    rows: list[Row]

    @property
    def sentence(self) -> str:
        """How many results differ, and how many would by chance."""
        judged = [row for row in self.rows if row.difference in (DIFFERS, WITHIN)]
        if not judged:
            return "Nothing could be compared: the runs share no method and view with saved scores."
        different = sum(row.difference == DIFFERS for row in judged)
        return (
            f"{different} of {len(judged)} comparisons with the first run differ beyond noise. Each has a "
            f"false-alarm rate of about 5%, so about {0.05 * len(judged):.2g} would differ by chance. Noise means "
            "that of the canaries' scores, not of another training. Estimates are compared, not bounds."
        )

    def plot(self) -> Any:
        """Return an altair chart: claim, lower bound and best guess of every run, grouped by method and view."""
        from coalmine.report import charts

        groups: dict[str, list[Result]] = {}
        for row in self.rows:
            title = f"{row.result.method}, {row.result.label} ({row.result.unit.name})"
            groups.setdefault(title, []).append(replace(row.result, adversary=row.run))
        spec = charts.evidence([Group(title=title, results=results) for title, results in groups.items()])
        return charts.as_altair({"ε of runs, by method and view": spec})

    def to_dataframe(self) -> Any:
        """Return a pandas DataFrame with one row per result of a run.

        Raises:
            InputError: If pandas is not installed.
        """
        return as_frame(self.to_dict()["rows"])

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison, ready for JSON."""
        return {
            "runs": self.runs,
            "sentence": self.sentence,
            "settings": [
                {"setting": name, **dict(zip(self.runs, values, strict=True))} for name, *values in self.settings
            ],
            "rows": [row.to_dict() for row in self.rows],
        }

    def __str__(self) -> str:
        """The results as a table, and what they say together."""
        return f"{Table('', COLUMNS, [row.cells() for row in self.rows]).to_text()}\n{self.sentence}"


def compare(runs: Sequence[Comparable] | Mapping[str, Comparable]) -> Comparison:
    """Compare runs with the first of them.

    Args:
        runs: Two runs or more: run directories, results, lists of results, or `SavedRun` objects with scores. A
            mapping names them.

    Raises:
        InputError: If there are fewer than two, or one is given twice.

    Example:
        >>> import numpy as np
        >>> from coalmine import audit_mechanism
        >>> def noisy(noise):
        ...     rng = np.random.default_rng(0)
        ...     return audit_mechanism(lambda total: total + rng.normal(0, noise, total.shape), dim=500, canaries=100)
        >>> comparison = compare({"σ = 1": noisy(1.0), "σ = 10": noisy(10.0)})
        >>> [row.difference for row in comparison.rows]
        ['', 'differs beyond noise (95%)']
    """
    if len(runs) < 2:
        raise InputError(f"comparing takes two runs or more, got {len(runs)}")
    named = isinstance(runs, Mapping)
    saved = [_saved(run, number) for number, run in enumerate(runs.values() if isinstance(runs, Mapping) else runs, 1)]
    names = list(map(str, runs)) if named else _names(saved)
    return _compared(saved, names)


def _saved(run: Comparable, number: int) -> SavedRun:
    """Return a run to compare; results that were never saved have a number instead of a path."""
    if isinstance(run, SavedRun):
        return run
    if isinstance(run, str | Path):
        return read_run_directory(run, scores=True)
    results = [run] if isinstance(run, Result) else list(run)
    for result in results:
        check_kind("a run", result, Result, "a run directory, a result or a list of results")
    return SavedRun(path=Path(f"run {number}"), content={}, results=results)


def _compared(runs: Sequence[SavedRun], names: list[str]) -> Comparison:
    labeled = [_by_label(run) for run in runs]
    rows = []
    for key in dict.fromkeys(key for results in labeled for key in results):
        first: Result | None = None
        for name, results in zip(names, labeled, strict=True):
            if key not in results:
                continue
            result = results[key]
            rows.append(Row(result=result, run=name, difference="" if first is None else _difference(first, result)))
            first = first or result
    return Comparison(runs=names, settings=_settings(runs), rows=rows)


def _names(runs: Sequence[SavedRun]) -> list[str]:
    """Return the directories' names, with as much of each path as makes them unique."""
    paths = [run.path.resolve() for run in runs]
    if len(set(paths)) < len(paths):
        raise InputError(f"{next(str(p) for p in paths if paths.count(p) > 1)} is listed twice")
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def _by_label(run: SavedRun) -> dict[tuple[str, str, int], Result]:
    """Return the results by method and label, with a number where several have the same."""
    results: dict[tuple[str, str, int], Result] = {}
    for result in run.results:
        same = sum(key[:2] == (result.method, result.label) for key in results)
        results[result.method, result.label, same] = result
    return results


def _difference(first: Result, second: Result) -> str:
    """Say whether two results differ by more than noise."""
    if _delta(first) != _delta(second):
        return "not compared: different δ"
    intervals = _interval(first), _interval(second)
    if intervals[0] is not None and intervals[1] is not None:
        return DIFFERS if intervals_differ(intervals[0], intervals[1]) else WITHIN
    shifts = _shift(first), _shift(second)
    if shifts[0] is None or shifts[1] is None:
        return "not compared: no scores, too few, or constant"
    return DIFFERS if shifts[0].differs(shifts[1]) else WITHIN


def _delta(result: Result) -> float | None:
    return None if result.bound is None else result.bound.delta


def _interval(result: Result) -> Estimate | None:
    """Return the estimate whose interval holds for a threshold fixed in advance, if there is one."""
    intervals = (e for e in result.estimates if e.method == "clopper-pearson" and e.upper is not None)
    return next(intervals, None)


def _shift(result: Result) -> Shift | None:
    scores = result.scores
    return None if scores is None or scores.nonmembers is None else Shift.of(scores.members, scores.nonmembers)


def _settings(runs: Sequence[SavedRun]) -> list[list[str]]:
    """Return a row for each setting that is not the same in all runs."""
    by_run = [dict(flat(_content(run))) for run in runs]
    keys = dict.fromkeys(key for settings in by_run for key in settings)
    rows = [[key, *(settings.get(key, "-") for settings in by_run)] for key in keys if key != "run.title"]
    return [row for row in rows if len(set(row[1:])) > 1]


def _content(run: SavedRun) -> dict[str, Any]:
    return parse_toml(run.config or "", run.path / "config.toml")
