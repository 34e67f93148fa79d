"""Sweeps: the runs of a settings file with other values of some settings, each with several seeds.

Each run has its own directory in the directory of the sweep, named by its values. A sweep that was stopped continues,
and one with more values or seeds reuses the runs that are there.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coalmine.errors import InputError, check_count, naming
from coalmine.files import read_text, write_json
from coalmine.parallel import finished
from coalmine.progress import shown_if_slow, track
from coalmine.results import summary
from coalmine.results.directory import REPORT
from coalmine.results.gate import Gate, judge
from coalmine.results.io import read_run_directory, results_to_dict
from coalmine.results.result import Result, in_json
from coalmine.results.tables import EVIDENCE, Table, evidence_cells, side_by_side
from coalmine.results.verdict import CHECK_RATE, Verdict
from coalmine.runs.comparison import as_number, write_index
from coalmine.runs.running import RUNS, check, run
from coalmine.runs.settings import RunSettings, run_from_text

SUMMARY = "sweep.json"
_LONGEST_NAME = 120
_SEED = "seed"


@dataclass(frozen=True, kw_only=True)
class SweptResult:
    """One result of one run of a sweep.

    Args:
        point: The values of the swept settings by name, as texts; with several seeds also ``"seed"``.
        title: What is compared, such as ``"one-shot, updates"``.
        result: The result.
        directory: The run directory.
    """

    point: Mapping[str, str]
    title: str
    result: Result
    directory: Path

    def to_dict(self) -> dict[str, Any]:
        """Return the row, ready for JSON."""
        result = self.result
        return {
            **{name: as_number(value) for name, value in self.point.items()},
            "method": result.method,
            "view": result.label,
            "unit": result.unit.name,
            "delta": None if result.bound is None else result.bound.delta,
            **{name: in_json(value) for name, value in result.numbers.items()},
            "verdict": result.verdict.value,
            "directory": str(self.directory),
        }


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A finished sweep. ``print`` shows it as a table.

    Args:
        axes: The values of each swept setting, the first of which is the x-axis of the figure.
        rows: The results that can be compared, those of all runs beside one another: of the variants of an attack, such
            as the crafters of the LDP audit, the one that shows most against each claim.
        gates: What `coalmine.results.gate.judge` says of all results of each run, by the run's name.
        directory: The directory that holds the runs.
        failures: Which methods have no result, and why.
    """

    axes: Mapping[str, Sequence[str]]
    rows: Sequence[SweptResult]
    gates: Mapping[str, Gate]
    directory: Path
    failures: Sequence[str] = ()

    @property
    def table(self) -> Table:
        """All results, under the values of their settings."""
        rows = [[*r.point.values(), r.result.method, r.result.label, *evidence_cells(r.result)] for r in self.rows]
        return Table(str(self.directory), [*self.axes, "method", "view", *EVIDENCE], rows)

    @property
    def sentence(self) -> str:
        """How many runs refute a claim, and how many would by chance."""
        runs = summary.plural(len(self.gates), "run")
        judgments = [judgment for gate in self.gates.values() for judgment in gate.judgments]
        if not any(judgment.result.claim_test for judgment in judgments):
            return f"{runs} without a claim to test."
        by_chance = sum(gate.false_alarm_rate for gate in self.gates.values())
        by_chance += CHECK_RATE * sum(bool(judgment.result.checks) for judgment in judgments)
        alone = sum(judgment.result.refuted for judgment in judgments if judgment.verdict is not Verdict.REFUTED)
        refuted = len(self.refuted)
        return (
            f"{runs}, of which {refuted} {'has' if refuted == 1 else 'have'} a refuted claim. If all claims were "
            f"true, up to {by_chance:.2g} would have one by chance, on average."
            + f" Without the others of its run, {summary.plural(alone, 'more result')} would be refuted."
            * bool(alone)
        )

    @property
    def refuted(self) -> list[str]:
        """Names of the runs with a refuted claim."""
        return [name for name, gate in self.gates.items() if gate.failed]

    def plot(self) -> Any:
        """Return an altair chart: ε against the first swept setting, with the claim's curve.

        What is compared has a panel, and so have values of further settings (`coalmine.report.charts.by_setting`).
        """
        from coalmine.report import charts

        first = next(iter(self.axes))
        name = first.rpartition(".")[2].replace("_", " ")
        panels: dict[str, list[tuple[Any, str, Result]]] = {}
        for row in self.rows:
            others = [f"{key} = {value}" for key, value in row.point.items() if key not in (first, _SEED)]
            title = ", ".join([row.title, *others])
            panels.setdefault(title, []).append((as_number(row.point[first]), row.directory.name, row.result))
        return charts.as_altair(charts.by_setting(panels, x=name))

    def to_dict(self) -> dict[str, Any]:
        """Return the sweep, ready for JSON."""
        settings = {name: [as_number(value) for value in values] for name, values in self.axes.items()}
        rows = [row.to_dict() for row in self.rows]
        return {"sentence": self.sentence, "settings": settings, "refuted": self.refuted, "rows": rows}

    def __str__(self) -> str:
        """The table, and what it says."""
        return f"{self.table.to_text()}\n{self.sentence}"


@shown_if_slow()
def sweep(
    file: Path | str,
    settings: Mapping[str, Sequence[Any]] | None = None,
    *,
    seeds: int = 1,
    workers: int = 1,
    out: Path | str | None = None,
) -> Sweep:
    """Run a settings file with all combinations of some settings' values. A sweep that was stopped continues.

    Args:
        file: A settings file, as `coalmine.run` takes it.
        settings: Values of each setting by its name, such as ``{"training.noise_multiplier": [0.5, 1, 2]}``. Those
            with a single value replace the value of the file.
        seeds: Number of runs of each combination: with the seeds of the file, and with these plus 1, 2, …
        workers: Number of runs at a time. The results do not depend on it.
        out: Directory of the sweep, by default ``runs/NAME-sweep`` for a file NAME.toml.

    Returns:
        The results of all runs. The directory has a run directory for each run, and ``sweep.json``.

    Raises:
        InputError: If a setting is wrong, before anything is run; if there is nothing to sweep; or if a run fails.

    Example:
        >>> import os, tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     file = Path(directory) / "audit.toml"
        ...     written = file.write_text('[ldp]\\ntrials = 200\\ncrafter = "dummy-gradient"\\nview = "white-box"\\n')
        ...     swept = sweep(file, {"ldp.epsilon": [1, 4]}, out=Path(directory) / "sweep")
        >>> [(row.point, row.result.claim.epsilon) for row in swept.rows]
        [({'ldp.epsilon': '1'}, 1.0), ({'ldp.epsilon': '4'}, 4.0)]
    """
    path = Path(file)
    directory = RUNS / f"{path.stem}-sweep" if out is None else Path(out)
    values = {name: [_text(value) for value in several] for name, several in (settings or {}).items()}
    # Everything is read and built before the first run, so that a wrong value is not found after hours.
    cells = _cells(path, values, check_count("seeds", seeds), directory)
    for cell in cells[::seeds]:  # of several seeds the first
        if not cell.directory.exists():
            with naming(f"{cell.directory.name}:"):
                check(cell.settings)
    runs = finished(_run, {cell.directory.name: cell for cell in cells}, workers=check_count("workers", workers))
    failures = [reason for _, reasons in track(runs, "runs", total=len(cells)) for reason in reasons]
    axes: dict[str, list[str]] = {}
    for cell in cells:
        for name, value in cell.point.items():
            axes[name] = list(dict.fromkeys([*axes.get(name, []), value]))
    results = [read_run_directory(cell.directory).results for cell in cells]
    rows = []
    for title, compared in side_by_side(results):
        for cell, result in zip(cells, compared, strict=True):
            if result is not None:
                rows.append(SweptResult(point=cell.point, title=title, result=result, directory=cell.directory))
    gates = {cell.directory.name: judge(found) for cell, found in zip(cells, results, strict=True)}
    swept = Sweep(axes=axes, rows=rows, gates=gates, failures=failures, directory=directory)
    write_json(directory / SUMMARY, results_to_dict([], sweep=swept.to_dict()))
    write_index(directory)
    return swept


def values_from_texts(texts: Sequence[str]) -> dict[str, list[str]]:
    """Return texts ``table.key=A,B,C`` as the values of each setting.

    Example:
        >>> values_from_texts(["training.noise_multiplier=0.5,1"])
        {'training.noise_multiplier': ['0.5', '1']}
    """
    values: dict[str, list[str]] = {}
    for text in texts:
        name, equals, right = (part.strip() for part in text.partition("="))
        if not equals or not name:
            raise InputError(f"a setting is table.key=A,B,…, such as training.noise_multiplier=0.5,1,2, got {text!r}")
        if name in values:
            raise InputError(f"the setting {name} is set twice")
        values[name] = [value.strip() for value in right.split(",")]
    return values


@dataclass(frozen=True, kw_only=True)
class _Cell:
    """One run of a sweep."""

    point: Mapping[str, str]
    settings: RunSettings
    directory: Path


def _cells(file: Path, values: Mapping[str, Sequence[str]], seeds: int, directory: Path) -> list[_Cell]:
    """Return all runs, their settings read and checked."""
    axes = {name: several for name, several in values.items() if len(several) != 1}
    for name, several in values.items():
        if not several or "" in several or len(set(map(as_number, several))) < len(several):
            raise InputError(f"the setting {name} needs different values, such as {name}=1,2,4; got {list(several)}")
    if seeds == 1 and not axes:
        raise InputError(
            "there is nothing to sweep: give several values of a setting (--set training.noise_multiplier=0.5,1,2) or "
            "several seeds (--seeds 3)"
        )
    fixed_settings = [f"{name}={several[0]}" for name, several in values.items() if name not in axes]
    cells = []
    for combination in itertools.product(*axes.values()):
        point = dict(zip(axes, combination, strict=True))
        overrides = [*fixed_settings, *(f"{name}={value}" for name, value in point.items())]
        text = read_text(file)
        settings = run_from_text(text, str(file), overrides)
        tables = {**settings.trainings, **settings.methods}
        first_seeds = {name: int(getattr(table, _SEED)) for name, table in tables.items() if hasattr(table, _SEED)}
        if seeds > 1 and not first_seeds:
            raise InputError(f"nothing in {file} has a seed: leave out seeds")
        for number in range(seeds):
            if seeds > 1:
                # Each table counts up from its own seed; the first table's seed stands for all in names and tables.
                seeded = {table: seed + number for table, seed in first_seeds.items()}
                point = {**point, _SEED: str(next(iter(seeded.values())))}
                with_seeds = [*overrides, *(f"{table}.seed={seed}" for table, seed in seeded.items())]
                settings = run_from_text(text, str(file), with_seeds)
            pairs = ",".join(f"{name.rpartition('.')[2]}={value}" for name, value in point.items())
            path = directory / re.sub(r"[^A-Za-z0-9.=+,_-]+", "-", pairs)[:_LONGEST_NAME].rstrip(".")
            cells.append(_Cell(point=point, settings=settings, directory=path))
    return cells


def _run(cell: _Cell) -> list[str]:
    """Run to the end, and draw the report; return why methods have no result."""
    from coalmine.report.page import write_report

    with naming(f"{cell.directory.name}:"):
        finished = run(cell.settings, out=cell.directory)
        if not (cell.directory / REPORT).is_file():  # drawing takes longer than reading a finished run
            write_report(cell.directory)
    return [f"{cell.directory.name}: {method.failure}" for method in finished.methods if method.failure]


def _text(value: Any) -> str:
    """Return a value as the command line takes it: the items of a list are separated by commas."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
