"""A reproduction's input (seed, scale, where to keep finished parts) and its output, a table."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

from coalmine.files import write_text
from coalmine.progress import Track
from coalmine.reading import read_json
from coalmine.results.tables import Table

Scale = Literal["quick", "full"]


@dataclass(frozen=True)
class ReproducedTable(Table):
    """A paper's table or figure, beside the paper's numbers.

    Args:
        note: A sentence or two on how to read it.
        draw: Returns charts of the same numbers by file name, where there are any.
    """

    note: str = ""
    draw: Callable[[], dict[str, Any]] = field(default=dict, compare=False)

    def markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        rows = "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
        return "\n\n".join(part for part in (self.title, rows, self.note) if part) + "\n"

    def json(self) -> str:
        """Return the table as a JSON object."""
        content = {"title": self.title, "columns": self.columns, "rows": self.rows, "note": self.note}
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Context:
    """How to reproduce a table.

    Args:
        seed: Seed for all random choices.
        scale: ``"quick"`` (minutes) or ``"full"`` (up to hours).
        track: Wraps the iterable of parts, to show progress.
        directory: Where finished parts are kept, so that an interrupted reproduction resumes; or None.
        workers: Number of processes.
        data: Data set to use instead of the paper's, where a reproduction allows it.
    """

    seed: int = 0
    scale: Scale = "quick"
    track: Track = iter
    directory: Path | None = None
    workers: int = 1
    data: str | None = None

    def parts(self, work: Callable[[Any], dict[str, Any]], parts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Compute the parts that are not on disk yet.

        Args:
            work: Computes one part. Its result must be JSON-ready.
            parts: Arguments of ``work`` by name. The name becomes part of the file name.

        Returns:
            The result of each part by name, in the order in which they became available.
        """
        results = {name: kept for name in parts if (kept := self._load(name)) is not None}
        missing = {name: part for name, part in parts.items() if name not in results}
        for name, result in self.track(self._computed(work, missing)):
            self._keep(name, result)
            results[name] = result
        return results

    def keep_table(self, name: str, table: ReproducedTable) -> Path | None:
        """Write a table as Markdown and JSON beside its parts and return the path, or None without a directory."""
        if self.directory is None:
            return None
        file = self.directory / f"{self.scale}-{self.seed}-{name}.md"
        write_text(file, table.markdown())
        write_text(file.with_suffix(".json"), table.json())
        return file

    def _computed(self, work: Callable[[Any], dict[str, Any]], parts: Mapping[str, Any]) -> Iterable[Any]:
        """Return pairs of name and result, one by one as they are computed."""
        if self.workers == 1 or len(parts) <= 1:
            return Sized(len(parts), ((name, work(part)) for name, part in parts.items()))
        return Sized(len(parts), self._in_processes(work, parts))

    def _in_processes(self, work: Callable[[Any], dict[str, Any]], parts: Mapping[str, Any]) -> Iterable[Any]:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        with ProcessPoolExecutor(self.workers, mp_context=get_context("spawn")) as pool:
            names = {pool.submit(work, part): name for name, part in parts.items()}
            for future in as_completed(names):
                yield names[future], future.result()

    def _file(self, name: str) -> Path | None:
        return None if self.directory is None else self.directory / f"{self.scale}-{self.seed}-{name}.json"

    def _load(self, name: str) -> dict[str, Any] | None:
        """Return a part that is on disk, or None."""
        file = self._file(name)
        if file is None or not file.is_file():
            return None
        return read_json(file)

    def _keep(self, name: str, result: dict[str, Any]) -> None:
        file = self._file(name)
        if file is not None:
            write_text(file, json.dumps(result))


@dataclass(frozen=True)
class Sized:
    """An iterable of known length, for progress bars."""

    length: int
    items: Iterable[Any]

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Any:
        return iter(self.items)
