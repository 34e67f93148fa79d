"""A reproduction's input (seeds, scale, where to keep finished parts) and its output: a table and judged claims."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from coalmine.files import read_json, write_text
from coalmine.parallel import finished
from coalmine.progress import Track
from coalmine.results.tables import Table
from coalmine_reproductions.cells import Number
from coalmine_reproductions.claims import JudgedClaim, Numbers, PaperClaim

Scale = Literal["quick", "full"]
_ARGUMENTS = "computed from"  # key of a kept part: a digest of its arguments


@dataclass(frozen=True)
class ReproducedTable(Table):
    """A paper's table or figure, beside the paper's numbers.

    Args:
        note: A sentence or two on how to read it.
        draw: Returns charts of the same numbers by file name, where there are any.
        numbers: The numbers that decide the claims: by name, one per seed.
        claims: What the paper claims about them.
    """

    note: str = ""
    draw: Callable[[], dict[str, Any]] = field(default=dict, compare=False)
    numbers: Numbers = field(default_factory=dict)
    claims: Sequence[PaperClaim] = ()

    def judged(self) -> list[JudgedClaim]:
        """Return each claim of the paper beside our numbers."""
        return [claim.judged(self.numbers) for claim in self.claims]

    def markdown(self) -> str:
        """Return the table as Markdown, with a line for each claim."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        rows = "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
        claims = "\n".join(f"- {claim}" for claim in self.judged())
        return "\n\n".join(part for part in (self.title, rows, self.note, claims) if part) + "\n"

    def json(self) -> str:
        """Return the table as a JSON object."""
        content: dict[str, Any] = {"title": self.title, "columns": self.columns, "rows": self.rows, "note": self.note}
        content |= {"numbers": dict(self.numbers), "claims": [asdict(claim) for claim in self.judged()]}
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def over_seeds(cls, tables: Mapping[int, ReproducedTable]) -> ReproducedTable:
        """Return the tables of several seeds as one; its title names the seeds.

        Args:
            tables: By seed. All have the same labels and claims.
        """
        (seed, first), *others = tables.items()
        if not others:
            return replace(first, title=f"{first.title}, seed {seed}")
        rows = [
            [Number.over_seeds(cells) for cells in zip(*row, strict=True)]
            for row in zip(*(table.rows for table in tables.values()), strict=True)
        ]
        notes = {table.note for table in tables.values()}
        numbers = {name: [x for table in tables.values() for x in table.numbers[name]] for name in first.numbers}
        return replace(
            first,
            title=f"{first.title}, seeds {', '.join(map(str, tables))} (mean ± std over seeds, range of bounds)",
            rows=rows,
            note=first.note if len(notes) == 1 else " ".join(f"Seed {s}: {table.note}" for s, table in tables.items()),
            draw=lambda: {
                f"{name}-seed-{s}": chart for s, table in tables.items() for name, chart in table.draw().items()
            },
            numbers=numbers,
        )


@dataclass(frozen=True)
class Context:
    """How to reproduce a table.

    Args:
        seed: Seed for all random choices, or the first one.
        scale: ``"quick"`` (minutes) or ``"full"`` (up to hours).
        track: Wraps the iterable of parts, to show progress.
        directory: Where finished parts are kept, so that an interrupted reproduction resumes; or None.
        workers: Number of processes.
        data: Data set to use instead of the paper's, where a reproduction allows it.
        seeds: Number of seeds that `over_seeds` runs.
    """

    seed: int = 0
    scale: Scale = "quick"
    track: Track = iter
    directory: Path | None = None
    workers: int = 1
    data: str | None = None
    seeds: int = 1

    def over_seeds(self, reproduction: Callable[[Context], ReproducedTable]) -> ReproducedTable:
        """Run a reproduction for each seed and return one table; finished parts of each seed are kept."""
        seeds = range(self.seed, self.seed + self.seeds)
        return ReproducedTable.over_seeds({seed: reproduction(replace(self, seed=seed, seeds=1)) for seed in seeds})

    def parts(self, work: Callable[[Any], dict[str, Any]], parts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Compute the parts that are not on disk yet.

        Args:
            work: Computes one part. Its result must be JSON-ready.
            parts: Arguments of ``work`` by name. The name becomes part of the file name. A part on disk that was
                computed from other arguments is computed anew.

        Returns:
            The result of each part by name, in the order in which they became available.
        """
        results = {name: kept for name, part in parts.items() if (kept := self._load(name, part)) is not None}
        missing = {name: part for name, part in parts.items() if name not in results}
        for name, result in self.track(Sized(len(missing), finished(work, missing, workers=self.workers))):
            self._keep(name, parts[name], result)
            results[name] = result
        return results

    def keep_table(self, name: str, table: ReproducedTable) -> Path | None:
        """Write a table as Markdown and JSON beside its parts and return the path, or None without a directory."""
        if self.directory is None:
            return None
        last = f"-to-{self.seed + self.seeds - 1}" if self.seeds > 1 else ""
        file = self.directory / f"{self.scale}-{self.seed}{last}-{name}.md"
        write_text(file, table.markdown())
        write_text(file.with_suffix(".json"), table.json())
        return file

    def _file(self, name: str) -> Path | None:
        return None if self.directory is None else self.directory / f"{self.scale}-{self.seed}-{name}.json"

    def _load(self, name: str, part: object) -> dict[str, Any] | None:
        """Return a part that is on disk, or None."""
        file = self._file(name)
        if file is None or not file.is_file():
            return None
        result: dict[str, Any] = read_json(file)
        return result if result.pop(_ARGUMENTS, None) in (None, _digest(part)) else None

    def _keep(self, name: str, part: object, result: dict[str, Any]) -> None:
        file = self._file(name)
        if file is not None:
            write_text(file, json.dumps({_ARGUMENTS: _digest(part), **result}))


def _digest(part: object) -> str:
    """Return a digest of the arguments of a part: frozen dataclasses and plain values, whose text says all."""
    return hashlib.sha256(repr(part).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Sized:
    """An iterable of known length, for progress bars."""

    length: int
    items: Iterable[Any]

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Any:
        return iter(self.items)
