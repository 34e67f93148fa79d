"""What a reproduction gets and gives."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, NamedTuple

from coalmine.files import write_text
from coalmine.progress import Track

Scale = Literal["quick", "full"]


class Table(NamedTuple):
    """A title, names of columns, rows, what there is to say about them, and how to draw it: charts by name."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""
    draw: Callable[[], dict[str, Any]] = dict

    def markdown(self) -> str:
        """The same as text for a file."""
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        drawn = "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
        return "\n\n".join(part for part in (self.title, drawn, self.note) if part) + "\n"

    def json(self) -> str:
        """The same as an object with these names."""
        content = {name: value for name, value in self._asdict().items() if name != "draw"}
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Context:
    """How to reproduce: from which ``seed``, at which ``scale``, in how many ``workers``, on which ``data`` if asked.

    Parts that are done are kept in ``directory``, where one is given, and not done again.
    """

    seed: int = 0
    scale: Scale = "quick"
    track: Track = iter
    directory: Path | None = None
    workers: int = 1
    data: str | None = None

    def parts(self, work: Callable[[Any], dict[str, Any]], parts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """What ``work`` makes of each part by name, in whatever order they get done."""
        found = {name: done for name in parts if (done := self._kept(name)) is not None}
        missing = {name: part for name, part in parts.items() if name not in found}
        for name, done in self.track(self._done(work, missing)):
            self._keep(name, done)
            found[name] = done
        return found

    def keep_table(self, name: str, table: Table) -> Path | None:
        """Write a table beside its parts, for people and as JSON, where a ``directory`` is given, and say where."""
        if self.directory is None:
            return None
        file = self.directory / f"{self.scale}-{self.seed}-{name}.md"
        write_text(file, table.markdown())
        write_text(file.with_suffix(".json"), table.json())
        return file

    def _done(self, work: Callable[[Any], dict[str, Any]], parts: Mapping[str, Any]) -> Sequence[Any] | Iterable[Any]:
        if self.workers == 1 or len(parts) <= 1:
            return Sized(len(parts), ((name, work(part)) for name, part in parts.items()))
        return Sized(len(parts), self._in_processes(work, parts))

    def _in_processes(self, work: Callable[[Any], dict[str, Any]], parts: Mapping[str, Any]) -> Iterable[Any]:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        with ProcessPoolExecutor(self.workers, mp_context=get_context("spawn")) as pool:
            names = {pool.submit(work, part): name for name, part in parts.items()}
            for done in as_completed(names):
                yield names[done], done.result()

    def _file(self, name: str) -> Path | None:
        return None if self.directory is None else self.directory / f"{self.scale}-{self.seed}-{name}.json"

    def _kept(self, name: str) -> dict[str, Any] | None:
        file = self._file(name)
        if file is None or not file.is_file():
            return None
        kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return kept

    def _keep(self, name: str, done: dict[str, Any]) -> None:
        file = self._file(name)
        if file is not None:
            write_text(file, json.dumps(done))


@dataclass(frozen=True)
class Sized:
    """An iterable of known length, for progress bars."""

    length: int
    items: Iterable[Any]

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Any:
        return iter(self.items)
