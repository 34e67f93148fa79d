"""Runs side by side: which settings differ, what each shows, and whether a difference is more than noise."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from coalmine.arrays import Floats, finite_list
from coalmine.errors import InputError
from coalmine.results.saved import SavedRun
from coalmine.results.summary import label, line, number, shown

SETTINGS_COLUMNS = ["setting"]
COLUMNS = ["audit", "view", "run", "theory ε", "valid bound", "estimate", "", "beside the first run"]
DIFFERS, WITHIN = "differs beyond noise (95%)", "within noise"

_CONFIDENCE = 0.95
_LARGEST = 1e150  # whose square is a number


@dataclass(frozen=True)
class Shift:
    """How far members' scores are from non-members', in the latter's standard deviations, and its variance.

    It is what ``gaussian-shift`` makes an ε of. The variance is the jackknife's: it needs no normal scores.
    """

    value: float
    variance: float
    freedom: int

    @classmethod
    def of(cls, members: Floats, nonmembers: Floats) -> Shift | None:
        """From the scores of a run; None where there are too few, or they do not vary."""
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
        """Whether the two differ by more than noise: in 5% of cases where they do not.

        By Student's t with the degrees of freedom of the smallest sample. Shifts below 0 all show nothing.
        """
        gap = abs(max(0.0, self.value) - max(0.0, other.value))
        quantile = float(special.stdtrit(min(self.freedom, other.freedom), (1 + _CONFIDENCE) / 2))
        return gap > quantile * math.sqrt(self.variance + other.variance)


def intervals_differ(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two estimates with intervals differ by more than noise.

    0 lies outside the interval of their difference, which is put together from the two (Zou and Donner 2008).
    """
    (e1, l1, u1), (e2, l2, u2) = ([number(e[key]) for key in ("epsilon", "lower", "upper")] for e in (first, second))
    if math.inf in (e1, e2):
        return e1 != e2 and (l1 > u2 or l2 > u1)
    low = e1 - e2 - math.hypot(e1 - l1, u2 - e2)
    high = e1 - e2 + math.hypot(u1 - e1, e2 - l2)
    return not low <= 0 <= high


@dataclass(frozen=True, kw_only=True)
class Row:
    """One result of one run. ``difference`` from the first run that has it, in words."""

    audit: str
    view: str
    run: str
    theory: float | None
    bound: float | None
    estimate: float | None
    method: str
    difference: str

    def cells(self) -> list[str]:
        """As people see it."""
        figures = [shown(self.theory), shown(self.bound), shown(self.estimate)]
        return [self.audit, self.view, self.run, *figures, self.method, self.difference]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Several runs side by side."""

    runs: list[str]
    settings: list[list[str]]
    rows: list[Row]

    @property
    def sentence(self) -> str:
        """What it comes to, in words."""
        judged = [row for row in self.rows if row.difference in (DIFFERS, WITHIN)]
        if not judged:
            return "No result could be compared: the runs share no audit and view whose scores were written."
        different = sum(row.difference == DIFFERS for row in judged)
        return (
            f"{different} of {len(judged)} comparisons with the first run differ beyond noise. Noise is that of the "
            "canaries' scores, not that of training again; each comparison has a false-alarm rate of about 5%, so that "
            f"some {0.05 * len(judged):.2g} of {len(judged)} would differ by chance alone. Estimates are compared, not "
            "bounds."
        )


def compare(runs: Sequence[SavedRun]) -> Comparison:
    """Two runs or more; the first is what the others are compared with."""
    if len(runs) < 2:
        raise InputError(f"there must be two runs or more to compare, got {len(runs)}")
    names = _names(runs)
    found = [_by_view(run) for run in runs]
    rows = []
    for key in dict.fromkeys(key for results in found for key in results):
        base: tuple[SavedRun, Mapping[str, Any]] | None = None
        for run, name, results in zip(runs, names, found, strict=True):
            if key not in results:
                continue
            result = results[key]
            difference = "" if base is None else _difference(base, (run, result))
            base = base or (run, result)
            rows.append(_row(result, name, difference))
    return Comparison(runs=names, settings=_settings(runs), rows=rows)


def _row(result: Mapping[str, Any], name: str, difference: str) -> Row:
    short = line(result)
    return Row(
        audit=short.audit,
        view=short.view,
        run=name,
        theory=short.theory,
        bound=short.bound,
        estimate=short.estimate,
        method=short.estimate_method or "",
        difference=difference,
    )


def _names(runs: Sequence[SavedRun]) -> list[str]:
    """Directories' names, as much of each path as tells them apart."""
    paths = [run.path.resolve() for run in runs]
    if len(set(paths)) < len(paths):
        raise InputError(f"{next(str(p) for p in paths if paths.count(p) > 1)} is given twice")
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def _by_view(run: SavedRun) -> dict[tuple[str, str, int], dict[str, Any]]:
    """Results by audit and view, and a number where there are several of them."""
    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    for result in run.results:
        same = sum(key[:2] == (result["audit"], label(result)) for key in found)
        found[result["audit"], label(result), same] = result
    return found


def _difference(base: tuple[SavedRun, Mapping[str, Any]], other: tuple[SavedRun, Mapping[str, Any]]) -> str:
    if line(base[1]).delta != line(other[1]).delta:
        return "not judged: another δ"
    if base[1]["audit"] == "ldp":
        intervals = [_interval(result) for _, result in (base, other)]
        if intervals[0] is None or intervals[1] is None:
            return "not judged: no interval"
        return DIFFERS if intervals_differ(intervals[0], intervals[1]) else WITHIN
    shifts = [_shift(run, result) for run, result in (base, other)]
    if shifts[0] is None or shifts[1] is None:
        return "not judged: no scores, too few, or all alike"
    return DIFFERS if shifts[0].differs(shifts[1]) else WITHIN


def _interval(result: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The estimate of the LDP audit that has an interval: that of its rates."""
    found = next((e for e in result["estimates"] if e["method"] == "clopper-pearson"), None)
    return found if found and found.get("lower") is not None and found.get("upper") is not None else None


def _shift(run: SavedRun, result: Mapping[str, Any]) -> Shift | None:
    scores = run.scores(result)
    if scores is None or "members" not in scores or "nonmembers" not in scores:
        return None
    where = f"{run.path}, the scores of {result['audit']}, {result['view']}"
    sides = [finite_list(f"{name} in {where}", scores[name]) for name in ("members", "nonmembers")]
    return Shift.of(*sides)


def _settings(runs: Sequence[SavedRun]) -> list[list[str]]:
    """Rows of the settings that are not the same in all runs."""
    found = [_flat(run) for run in runs]
    keys = dict.fromkeys(key for settings in found for key in settings)
    rows = [[key, *(settings.get(key, "-") for settings in found)] for key in keys if key != "run.title"]
    return [row for row in rows if len(set(row[1:])) > 1]


def _flat(run: SavedRun) -> dict[str, str]:
    if run.config is None:
        return {}
    try:
        content = tomllib.loads(run.config)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{run.path / 'config.toml'} is not TOML: {error}") from None
    flat: dict[str, str] = {}

    def add(prefix: str, part: Mapping[str, Any]) -> None:
        for key, value in part.items():
            if isinstance(value, Mapping):
                add(f"{prefix}{key}.", value)
            else:
                flat[f"{prefix}{key}"] = ", ".join(map(str, value)) if isinstance(value, list) else str(value)

    add("", content)
    return flat
