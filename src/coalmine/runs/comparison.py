"""Runs side by side: which settings differ, what each run shows, which differences are more than noise; and a page that
lists all runs of a directory."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from coalmine import __version__
from coalmine.arrays import Floats
from coalmine.config import dotted
from coalmine.errors import InputError, check_kind, did_you_mean
from coalmine.files import parse_toml, write_text
from coalmine.results import summary
from coalmine.results.directory import REPORT, RESULT, RUN, RunDirectory
from coalmine.results.io import SavedRun, read_run_directory
from coalmine.results.result import Result, in_json
from coalmine.results.tables import EVIDENCE, Group, Table, as_frame, evidence_cells, grouped, side_by_side

DIFFERS, WITHIN = "scores differ beyond noise (95%)", "within noise"

# What can be compared.
Comparable = SavedRun | Path | str | Result | Sequence[Result]

_CONFIDENCE = 0.95
_SPREAD = ("claimed_epsilon", "lower_bound", "best_guess")
_SAME = 1e-9
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


@dataclass(frozen=True)
class Difference:
    """How a run differs from the first one, or a group from the first group.

    Args:
        difference: All of it in words, or why it is unknown.
        differs: Whether the scores of two runs differ beyond noise.
        gap: Mean best guess of a group minus that of the first, or mean lower bound where a run has no best guess.
        margin: Half of the gap's 95% confidence interval.
        gap_of: ``"best_guess"`` or ``"lower_bound"``.
    """

    difference: str
    differs: bool | None = None
    gap: float | None = None
    margin: float | None = None
    gap_of: str | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one run, or one group of runs, shows of one method and view.

    Args:
        run: Name of the run or group.
        title: What is compared, such as ``"one-shot, updates"``.
        results: The result of each run.
        against: How it differs from the first run or group.
    """

    run: str
    title: str
    results: Sequence[Result]
    against: Difference = field(default_factory=lambda: Difference(""))

    @property
    def difference(self) -> str:
        """How it differs from the first run or group, in words."""
        return self.against.difference

    @property
    def result(self) -> Result:
        """The result of the first run."""
        return self.results[0]

    @property
    def refuted(self) -> int:
        """In how many runs the claim is refuted."""
        return sum(result.refuted for result in self.results)

    def values(self, number: str) -> Floats:
        """Return a number of each run, such as ``"best_guess"``; infinite and missing ones are left out."""
        values = [result.numbers[number] for result in self.results]
        return np.array([value for value in values if value is not None and math.isfinite(value)])

    @property
    def view(self) -> str:
        """Name of the view, and how canaries took part if that is not what the claim is about."""
        taking_part = self.result.participation
        return self.result.label + f", canaries {taking_part}" * bool(taking_part)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return a row for each run, ready for JSON."""
        rows = []
        for result in self.results:
            numbers = {name: in_json(value) for name, value in result.numbers.items()}
            about = {"method": result.method, "view": result.label, "run": self.run}
            rows.append({**about, **numbers, "verdict": result.verdict.value, **vars(self.against)})
        return rows


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Runs, or groups of runs, side by side. ``print`` shows it as a table.

    Args:
        runs: Names of the runs or groups.
        settings: A row for each setting that differs between runs: its name, and its value in each run.
        rows: A row for each run or group, method and view.
        by: What the names of groups are values of, such as a setting.
    """

    runs: Sequence[str]
    settings: Sequence[Sequence[str]]
    rows: Sequence[Row]
    by: str = ""

    @property
    def _grouped(self) -> bool:
        return any(len(row.results) > 1 for row in self.rows)

    @property
    def sentence(self) -> str:
        """What the differences mean, and how many there would be by chance."""
        if self._grouped:
            return (
                "Means ± standard deviations over the runs of each group. The last column is the difference from the "
                "first group's mean best guess with its 95% confidence interval (Welch's t); where a run has no best "
                "guess, that of the lower bounds, which also depend on how many canaries there were."
            )
        judged = [row.against.differs for row in self.rows if row.against.differs is not None]
        if not judged:
            return "No two results could be compared with each other: the last column says why."
        different = sum(judged)
        return (
            f"{different} of {summary.plural(len(judged), 'comparison')} with the first run "
            f"{'shows' if different == 1 else 'show'} a difference beyond noise; about {0.05 * len(judged):.2g} would "
            "by chance. We compare how far inserted canaries lie above held-out ones, not bounds or verdicts. Noise is "
            "that of these scores; another training with the same settings may differ more."
        )

    @property
    def tables(self) -> list[Table]:
        """The settings that differ, if any, and the results."""
        tables = []
        if self.settings:
            tables.append(Table("Settings that differ", ["setting", *self.runs], self.settings))
        columns = [self.by or "group", "runs", "claimed ε", "lower bound", "best guess", "refuted"]
        columns = columns if self._grouped else ["run", *EVIDENCE]
        rows = []
        for row in self.rows:
            cells = evidence_cells(row.result)
            if self._grouped:
                spreads = [_mean_and_spread(row.values(name), len(row.results)) for name in _SPREAD]
                cells = [str(len(row.results)), *spreads, f"{row.refuted} of {len(row.results)}"]
            rows.append([row.result.method, row.view, row.run, *cells, row.difference])
        columns = ["method", "view", *columns, f"against {self.runs[0]}"]
        return [*tables, Table(f"Compared with {self.runs[0]}", columns, rows)]

    def plot(self) -> Any:
        """Return an altair chart: claim, lower bound and best guess of every run, by method and view.

        Groups are along the horizontal axis, as `coalmine.report.charts.by_setting` draws them.
        """
        from coalmine.report import charts

        panels: dict[str, list[Row]] = {}
        for row in self.rows:
            panels.setdefault(f"{row.title} ({row.result.unit.name})", []).append(row)
        if not self._grouped:
            groups = []
            for title, rows in panels.items():
                groups.append(Group(title=title, results=[replace(row.result, adversary=row.run) for row in rows]))
            return charts.as_altair({"ε of runs, by method and view": charts.evidence(groups)})
        drawn = {}
        for title, rows in panels.items():
            drawn[title] = [(as_number(row.run), "", result) for row in rows for result in row.results]
        return charts.as_altair(charts.by_setting(drawn, x=self.by or "group"))

    def to_dataframe(self) -> Any:
        """Return a pandas DataFrame with one row per result of a run.

        Raises:
            InputError: If pandas is not installed.
        """
        return as_frame(self.to_dict()["rows"])

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison, ready for JSON."""
        settings = [{"setting": name, **dict(zip(self.runs, values, strict=True))} for name, *values in self.settings]
        rows = [entry for row in self.rows for entry in row.to_dicts()]
        return {"runs": list(self.runs), "sentence": self.sentence, "settings": settings, "rows": rows}

    def to_html(self) -> str:
        """Return the tables as a page that opens offline."""
        what = "groups of runs" if self._grouped else "runs"
        return _page(f"{len(self.runs)} {what} side by side", self.sentence, self.tables, marked=[DIFFERS])

    def __str__(self) -> str:
        """The results as a table, and what they say together."""
        return f"{self.tables[-1].to_text()}\n{self.sentence}"


def groups_by_setting(runs: Sequence[Path | str], names: Sequence[str]) -> list[str]:
    """Return the values that each run has for some settings, such as ``training.clip_norm``, to group runs by.

    Raises:
        InputError: If no run has such a setting, or all have the same values.
    """
    by_run = [_settings_of(read_run_directory(run)) for run in runs]
    for name in names:
        known = dict.fromkeys(key for settings in by_run for key in settings)
        if name not in known:
            raise InputError(f"unknown setting {name!r}. {did_you_mean(name, known)}")
    groups = [", ".join(settings.get(name, "-") for name in names) for settings in by_run]
    if len(set(groups)) < 2:
        raise InputError(f"all runs have {' and '.join(names)} = {groups[0]}: there is nothing to compare")
    return groups


def _welch(first: Row, second: Row) -> Difference:
    """Return the difference of two groups' means with its confidence interval, or why there is none."""
    measure, remark = "best_guess", ""
    if any(row.values(measure).size < len(row.results) for row in (first, second)):
        measure, remark = "lower_bound", " (lower bounds)"
    one, other = first.values(measure), second.values(measure)
    if min(len(first.results), len(second.results)) < 2:
        return Difference("not compared: fewer than two runs")
    if min(one.size, other.size) < 2:
        return Difference("not compared: no best guess, no bound")
    terms = np.array([one.var(ddof=1) / one.size, other.var(ddof=1) / other.size])
    half = 0.0
    if terms.any():
        # The degrees of freedom of Welch and Satterthwaite.
        freedom = terms.sum() ** 2 / np.sum(terms**2 / (np.array([one.size, other.size]) - 1))
        half = float(special.stdtrit(freedom, (1 + _CONFIDENCE) / 2)) * math.sqrt(terms.sum())
    gap = float(other.mean() - one.mean())
    return Difference(f"{gap:+.2f} ± {half:.2f}{remark}", gap=gap, margin=half, gap_of=measure)


def _mean_and_spread(values: Floats, runs: int) -> str:
    """Format the mean and the standard deviation of those of some runs that have a value."""
    if not values.size:
        return "-"
    # Equal claims differ by rounding only.
    spread = f" ± {values.std(ddof=1):.2f}" if np.ptp(values) > _SAME * abs(values.mean()) else ""
    counted = "" if values.size == runs else f" ({values.size} of {runs})"
    return f"{values.mean():.2f}{spread}{counted}"


def as_number(text: str) -> int | float | str:
    """Return the number that a value is, or its text."""
    for read in (int, float):
        try:
            number = read(text)
        except ValueError:
            continue
        return number if math.isfinite(number) else text
    return text


def compare(
    runs: Sequence[Comparable] | Mapping[str, Comparable],
    *,
    groups: Sequence[str] | None = None,
    by: str = "",
    only: str = "",
) -> Comparison:
    """Compare runs with the first of them, or groups of runs (the seeds of two mechanisms, say) with the first group.

    Args:
        runs: Two runs or more: run directories, results, lists of results, or `SavedRun` objects with scores. A
            mapping names them.
        groups: The name of each run's group. Groups are compared by their means and spreads.
        by: What the names of groups are values of, for the figure.
        only: Compare results whose method and view, such as ``"one-shot, updates"``, contain this text. Of the
            variants of an attack, such as the crafters of the LDP audit, the strongest stands for all.

    Raises:
        InputError: If there are fewer than two runs or groups, one run is given twice, there are not as many names of
            groups as runs, or nothing is left to compare.

    Example:
        >>> import numpy as np
        >>> from coalmine import check_mechanism
        >>> def noisy(noise, seed=0):
        ...     rng = np.random.default_rng(seed)
        ...     return check_mechanism(lambda total: total + rng.normal(0, noise, total.shape), dim=500, canaries=100)
        >>> comparison = compare({"σ = 1": noisy(1.0), "σ = 10": noisy(10.0)})
        >>> [row.difference for row in comparison.rows]
        ['', 'scores differ beyond noise (95%)']
        >>> runs = [noisy(noise, seed) for noise in (1.0, 10.0) for seed in (0, 1)]
        >>> compared = compare(runs, groups=["σ = 1", "σ = 1", "σ = 10", "σ = 10"])
        >>> [(row.run, len(row.results)) for row in compared.rows]
        [('σ = 1', 2), ('σ = 10', 2)]
    """
    if len(runs) < 2:
        raise InputError(f"comparing takes two runs or more, got {len(runs)}")
    several = list(runs.values() if isinstance(runs, Mapping) else runs)
    saved = [_saved(run, number) for number, run in enumerate(several, 1)]
    names = list(map(str, runs)) if isinstance(runs, Mapping) else _names(saved)
    if groups is not None:
        names = list(groups)
        if len(saved) != len(names) or len(set(names)) < 2:
            raise InputError(f"{len(saved)} runs take as many names of two or more groups, got {names}")
    matched = side_by_side([[result for result in run.results if only in result.name] for run in saved])
    if not matched:
        raise InputError(f"no result has {only!r} in its method and view")
    rows = []
    for title, results in matched:
        by_name: dict[str, list[Result]] = {}
        for name, result in zip(names, results, strict=True):
            if result is not None:
                by_name.setdefault(name, []).append(result)
        first, *others = (Row(run=name, title=title, results=several) for name, several in by_name.items())
        rows += [first, *(replace(other, against=_difference(first, other)) for other in others)]
    settings = _settings(saved) if groups is None else []
    return Comparison(runs=list(dict.fromkeys(names)), settings=settings, rows=rows, by=by)


def write_index(root: Path) -> Path:
    """Write ``index.html`` into a directory of runs: the state, headline and report of each."""
    rows, links = [], {}
    for path in sorted(root.iterdir()):
        if not (path / RUN).is_file() and not (path / RESULT).is_file():
            continue
        title, state, unit, evidence = path.name, "done", "", [""] * len(EVIDENCE)
        try:
            if (path / RESULT).is_file():
                run = read_run_directory(path, as_stored=True)
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


def _difference(first: Row, second: Row) -> Difference:
    """Say whether two runs differ by more than noise, or by how much two groups of runs differ."""
    deltas = {None if result.bound is None else result.bound.delta for row in (first, second) for result in row.results}
    if len(deltas) > 1:
        return Difference("not compared: different δ")
    if len(first.results) > 1 or len(second.results) > 1:
        return _welch(first, second)
    one, other = _shift(first.result), _shift(second.result)
    if one is None or other is None:
        return Difference("not compared: no scores on both sides, too few, or all equal")
    differs = one.differs(other)
    return Difference(DIFFERS if differs else WITHIN, differs=differs)


def _shift(result: Result) -> Shift | None:
    """Return the shift of a result's scores, or None if it has none on both sides, too few, or constant ones."""
    if result.scores is None or result.scores.nonmembers is None:
        return None
    return Shift.of(result.scores.members, result.scores.nonmembers)


def _settings(runs: Sequence[SavedRun]) -> list[list[str]]:
    """Return a row for each setting that is not the same in all runs."""
    by_run = [_settings_of(run) for run in runs]
    rows = []
    for key in dict.fromkeys(key for settings in by_run for key in settings):
        values = [settings.get(key, "-") for settings in by_run]
        if key != "run.title" and len(set(values)) > 1:
            rows.append([key, *values])
    return rows


def _settings_of(run: SavedRun) -> dict[str, str]:
    """Return the settings of a run by name; results that an own loop saved have audits, claims and facts instead."""
    if run.config is not None:
        return dict(dotted(parse_toml(run.config, run.path / "config.toml")))
    settings = {f"{result.method}.{key}": str(value) for result in run.results for key, value in result.config.items()}
    claims = [result.claim.to_dict() for result in run.results if result.claim is not None]
    for key in claims[0] if claims else ():
        settings[f"claim.{key}"] = ", ".join(dict.fromkeys(str(claim[key]) for claim in claims))
    return settings | {f"facts.{key}": value for key, value in run.facts.items()}
