"""Runs side by side: which settings differ, what each run shows, which differences are more than noise; and a page that
lists all runs of a directory."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from coalmine import __version__
from coalmine.arrays import Floats
from coalmine.config import dotted
from coalmine.errors import InputError, check_kind
from coalmine.files import parse_toml, write_text
from coalmine.results.directory import REPORT, RESULT, RUN, RunDirectory
from coalmine.results.io import SavedRun, read_run_directory
from coalmine.results.result import Result, in_json
from coalmine.results.tables import EVIDENCE, Group, Table, as_frame, evidence_cells, grouped

COLUMNS = ["method", "view", "run", *EVIDENCE, "against the first run"]
DIFFERS, WITHIN = "differs beyond noise (95%)", "within noise"

# What can be compared.
Comparable = SavedRun | Path | str | Result | Sequence[Result]

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
        # Sums of squares without each of the scores in turn, in closed form.
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
        # Student's t by scipy.special: scipy.stats takes a second to import.
        quantile = float(special.stdtrit(min(self.freedom, other.freedom), (1 + _CONFIDENCE) / 2))
        return gap > quantile * math.sqrt(self.variance + other.variance)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One result of one run, and how it differs from the first run that has it."""

    result: Result
    run: str
    difference: str

    def to_dict(self) -> dict[str, Any]:
        """Return the row, ready for JSON."""
        about = {"method": self.result.method, "view": self.result.label, "run": self.run}
        numbers = {name: in_json(value) for name, value in self.result.numbers.items()}
        return {**about, **numbers, "verdict": self.result.verdict.value, "difference": self.difference}


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

    @property
    def tables(self) -> list[Table]:
        """The settings that differ, if any, and the results."""
        tables = []
        if self.settings:
            tables.append(Table("settings that differ", ["setting", *self.runs], self.settings))
        cells = [[r.result.method, r.result.label, r.run, *evidence_cells(r.result), r.difference] for r in self.rows]
        return [*tables, Table(f"compared with {self.runs[0]}", COLUMNS, cells)]

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
        return as_frame([row.to_dict() for row in self.rows])

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison, ready for JSON."""
        settings = [{"setting": name, **dict(zip(self.runs, values, strict=True))} for name, *values in self.settings]
        rows = [row.to_dict() for row in self.rows]
        return {"runs": self.runs, "sentence": self.sentence, "settings": settings, "rows": rows}

    def to_html(self) -> str:
        """Return the tables as a page that opens offline."""
        return _page(f"{len(self.runs)} runs side by side", self.sentence, self.tables, marked=[DIFFERS])

    def __str__(self) -> str:
        """The results as a table, and what they say together."""
        return f"{self.tables[-1].to_text()}\n{self.sentence}"


def compare(runs: Sequence[Comparable] | Mapping[str, Comparable]) -> Comparison:
    """Compare runs with the first of them.

    Args:
        runs: Two runs or more: run directories, results, lists of results, or `SavedRun` objects with scores. A
            mapping names them.

    Raises:
        InputError: If there are fewer than two, or one is given twice.

    Example:
        >>> import numpy as np
        >>> from coalmine import check_mechanism
        >>> def noisy(noise):
        ...     rng = np.random.default_rng(0)
        ...     return check_mechanism(lambda total: total + rng.normal(0, noise, total.shape), dim=500, canaries=100)
        >>> comparison = compare({"σ = 1": noisy(1.0), "σ = 10": noisy(10.0)})
        >>> [row.difference for row in comparison.rows]
        ['', 'differs beyond noise (95%)']
    """
    if len(runs) < 2:
        raise InputError(f"comparing takes two runs or more, got {len(runs)}")
    several = list(runs.values() if isinstance(runs, Mapping) else runs)
    saved = [_saved(run, number) for number, run in enumerate(several, 1)]
    names = list(map(str, runs)) if isinstance(runs, Mapping) else _names(saved)
    # Results are matched by method and label; of several with the same, by their order.
    matched: dict[tuple[str, str, int], list[tuple[str, Result]]] = {}
    for name, run in zip(names, saved, strict=True):
        seen: list[tuple[str, str]] = []
        for result in run.results:
            key = (result.method, result.label)
            matched.setdefault((*key, seen.count(key)), []).append((name, result))
            seen.append(key)
    rows = []
    for same in matched.values():
        first = same[0][1]
        for name, result in same:
            rows.append(Row(result=result, run=name, difference="" if result is first else _difference(first, result)))
    return Comparison(runs=names, settings=_settings(saved), rows=rows)


def write_index(root: Path) -> Path:
    """Write ``index.html`` into a directory of runs: the state, headline and report of each."""
    rows, links = [], {}
    for path in sorted(root.iterdir()):
        if not (path / RUN).is_file() and not (path / RESULT).is_file():
            continue
        title, state, unit, evidence = path.name, "done", "", [""] * len(EVIDENCE)
        try:
            if (path / RESULT).is_file():
                run = read_run_directory(path)
                group = grouped(run.results)[0]
                title, unit = run.title, group.title
                evidence = evidence_cells(group.strongest or group.results[0])
            else:
                state = RunDirectory(path).standing()[0]
        except InputError as error:
            state = str(error)  # one damaged run does not hide the others
        rows.append([path.name, title, state, unit, *evidence])
        if (path / REPORT).is_file():
            links[path.name] = f"{path.name}/{REPORT}"
    table = Table("Runs", ["run", "title", "state", "unit", *EVIDENCE], rows)
    sentence = "Each row shows the strongest result of a run; the name leads to its report."
    return write_text(root / "index.html", _page("Runs", sentence, [table], links=links))


def _page(
    title: str, sentence: str, tables: Sequence[Table], *, marked: Collection[str] = (), links: Mapping[str, str] = {}
) -> str:
    """Return tables as a page; ``marked`` cells are highlighted, and ``links`` has the addresses of others."""
    from jinja2 import Environment  # slow to import

    text = (resources.files("coalmine.runs") / "page.html").read_text(encoding="utf-8")
    template = Environment(autoescape=True, trim_blocks=True).from_string(text)
    return template.render(
        title=title, sentence=sentence, tables=tables, marked=marked, links=links, version=__version__
    )


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


def _names(runs: Sequence[SavedRun]) -> list[str]:
    """Return the directories' names, with as much of each path as makes them unique."""
    paths = [run.path.resolve() for run in runs]
    if len(set(paths)) < len(paths):
        raise InputError(f"{next(str(p) for p in paths if paths.count(p) > 1)} is listed twice")
    # As few directories of each path as tell them apart.
    depth = 1
    while len(names := ["/".join(path.parts[-depth:]) for path in paths]) > len(set(names)):
        depth += 1
    return names


def _difference(first: Result, second: Result) -> str:
    """Say whether two results differ by more than noise."""
    deltas = [None if result.bound is None else result.bound.delta for result in (first, second)]
    if deltas[0] != deltas[1]:
        return "not compared: different δ"
    shifts = []
    for result in (first, second):
        if result.scores is not None and result.scores.nonmembers is not None:
            shifts.append(Shift.of(result.scores.members, result.scores.nonmembers))
    if len(shifts) < 2 or shifts[0] is None or shifts[1] is None:
        return "not compared: no scores, too few, or constant"
    return DIFFERS if shifts[0].differs(shifts[1]) else WITHIN


def _settings(runs: Sequence[SavedRun]) -> list[list[str]]:
    """Return a row for each setting that is not the same in all runs."""
    by_run = [dict(dotted(parse_toml(run.config or "", run.path / "config.toml"))) for run in runs]
    rows = []
    for key in dict.fromkeys(key for settings in by_run for key in settings):
        values = [settings.get(key, "-") for settings in by_run]
        if key != "run.title" and len(set(values)) > 1:
            rows.append([key, *values])
    return rows
