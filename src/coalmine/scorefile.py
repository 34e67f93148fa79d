"""Scores, losses and ranks from CSV, NPZ and JSON files: every wrong cell gets a sentence that says where it is."""

from __future__ import annotations

import csv
import difflib
import json
import lzma
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalmine.arrays import Floats
from coalmine.errors import InputError

_TRUE = {"1", "1.0", "true", "yes", "in", "member", "canary"}
_FALSE = {"0", "0.0", "false", "no", "out", "nonmember", "non-member", "reference"}


@dataclass(frozen=True)
class Table:
    """Named columns of a file; ``first_row`` is the number that people see beside the first value.

    ``others`` are named values that are no columns.
    """

    source: str
    columns: Mapping[str, Sequence[Any] | NDArray[Any]]
    first_row: int = 1
    others: Mapping[str, Any] = field(default_factory=dict)

    def has(self, *names: str) -> bool:
        """Whether all these columns are there."""
        return all(name in self.columns for name in names)

    def require(self, name: str, hint: str = "") -> Sequence[Any] | NDArray[Any]:
        """A column, or a sentence that says which columns there are."""
        if name in self.others:
            raise InputError(f"{self.source}: {name} must be a list, got {self.others[name]!r:.40}")
        if name not in self.columns:
            there = ", ".join(self.columns) or "none"
            near = difflib.get_close_matches(name.lower(), [column.lower() for column in self.columns], n=1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            raise InputError(f"{self.source} has no column {name!r}{meant}; its columns are: {there}{hint}")
        return self.columns[name]

    def numbers(self, name: str, *, padded: bool = False) -> Floats:
        """A column of finite numbers. ``padded`` ones may end in empty cells, as the shorter of two columns does."""
        values = self.require(name)
        if isinstance(values, np.ndarray):
            if values.ndim != 1 or values.dtype.kind not in "biuf":
                kind = "texts" if values.dtype.kind in "US" else f"{values.dtype} of shape {values.shape}"
                raise InputError(f"{self.source}: {name} must be a list of numbers, got {kind}")
            column = values.astype(np.float64)
        else:
            size = len(values)
            while padded and size and values[size - 1] == "":
                size -= 1
            try:
                if None in values:
                    raise TypeError
                column = np.array(values[:size], dtype=np.float64)
            except (TypeError, ValueError):
                column = np.array([self._number(name, i, v) for i, v in enumerate(values[:size])])
        if column.ndim != 1:
            raise InputError(f"{self.source}: {name} must be a list of numbers, got shape {column.shape}")
        bad = np.flatnonzero(~np.isfinite(column))
        if bad.size:
            what = f"{column[bad[0]]} in row {bad[0] + self.first_row}"
            more = f" (and {bad.size - 1} more)" if bad.size > 1 else ""
            raise InputError(f"{self.source}: {name} must be finite numbers, got {what}{more}")
        return column

    def flags(self, name: str, hint: str = "") -> NDArray[np.bool_]:
        """A column of yes and no in any of the usual spellings."""
        words = [str(value).strip().lower() for value in self.require(name, hint)]
        for i, word in enumerate(words):
            if word not in _TRUE and word not in _FALSE:
                raise InputError(
                    f"{self.source}, row {i + self.first_row}: {name} must be 1 or 0 (or true/false, in/out,"
                    f" member/nonmember, canary/reference), got {word!r}"
                )
        return np.array([word in _TRUE for word in words], dtype=bool)

    def _number(self, name: str, index: int, value: Any) -> float:
        try:
            return float(value)
        except (TypeError, ValueError):
            got = "an empty cell" if value in ("", None) else repr(value)
            raise InputError(
                f"{self.source}, row {index + self.first_row}: {name} must be a number, got {got}"
            ) from None


def read_table(path: Path) -> Table:
    """The columns of a .csv (with a header), .npz or .json file."""
    if not path.exists():
        raise InputError(f"there is no file {path}")
    if path.is_dir():
        raise InputError(f"{path} is a directory, not a file")
    readers = {".csv": _read_csv, ".npz": _read_npz, ".json": _read_json}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path} must end in .csv, .npz or .json")
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty")
    try:
        table = reader(path)
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    if not table.columns:
        raise InputError(f"{path} has no columns")
    return table


def _read_csv(path: Path) -> Table:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file)
        header = [name.strip() for name in next(rows, [])]
        if len(set(header)) != len(header):
            raise InputError(f"{path} names a column twice: {', '.join(header)}")
        if len(header) == 1 and any(mark in header[0] for mark in ";\t"):
            raise InputError(f"{path} must have its cells separated by commas, got {header[0]!r} as its first line")
        if header and all(_is_number(name) for name in header):
            raise InputError(f"{path} must begin with a line of column names, got {', '.join(header)}")
        columns: dict[str, list[str]] = {name: [] for name in header}
        for row in rows:
            if not row:
                continue
            if len(row) != len(header):
                raise InputError(f"{path}, line {rows.line_num}: {len(row)} cells, but {len(header)} column names")
            for name, cell in zip(header, row, strict=True):
                columns[name].append(cell.strip())
    return Table(str(path), columns, first_row=2)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_npz(path: Path) -> Table:
    try:
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise InputError(f"{path} is a single array (.npy), not an .npz file of named ones")
        with archive:
            return Table(str(path), {name: archive[name] for name in archive.files})
    except InputError:
        raise
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, lzma.LZMAError):
        raise InputError(f"{path} is not an .npz file of plain arrays, or was cut short") from None


def _read_json(path: Path) -> Table:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is not JSON: {error}") from None
    if isinstance(content, list) and content and all(isinstance(row, dict) for row in content):
        names = list(dict.fromkeys(name for row in content for name in row))
        return Table(str(path), {name: [row.get(name, "") for row in content] for name in names})
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold an object of lists, or a list of objects")
    lists = {name: value for name, value in content.items() if isinstance(value, list)}
    if not lists:
        raise InputError(f"{path} must hold lists, got {', '.join(content) or 'nothing'} without any")
    return Table(str(path), lists, others={name: value for name, value in content.items() if name not in lists})


def read_scores(path: Path, score: str, member: str, *, known_null: bool) -> tuple[Floats, Floats | None]:
    """Scores of members and of non-members; with a known null the file must have members alone."""
    members, nonmembers = two_groups(
        read_table(path), groups=("members", "nonmembers"), value=score, flag=member, single=known_null
    )
    if known_null and nonmembers is not None:
        raise InputError(f"{path} has non-members of its own: leave out --null, or leave them out of the file")
    return members, nonmembers


def two_groups(
    table: Table, *, groups: tuple[str, str], value: str, flag: str, single: bool = False
) -> tuple[Floats, Floats | None]:
    """Two groups of numbers: two columns named ``groups``, or one column ``value`` split by a column ``flag``.

    With ``single`` the second group may be missing altogether: then it is None.
    """
    first, second = groups
    if table.has(first, second) and table.has(value, flag):
        raise InputError(f"{table.source} has both {first}/{second} and {value}/{flag}: which is meant?")
    if table.has(first):
        if table.has(second):
            return _not_empty(table, first, second)
        if single:
            return table.numbers(first, padded=True), None
        table.require(second)
    hint = f" (needed: {value} and {flag}, or {first} and {second})"
    table.require(value, hint)
    if single and not table.has(flag):
        return table.numbers(value), None
    chosen = table.flags(flag, hint)
    numbers = table.numbers(value)
    if numbers.size != chosen.size:
        raise InputError(f"{table.source}: {value} has {numbers.size} values, but {flag} has {chosen.size}")
    split = Table(table.source, {first: numbers[chosen], second: numbers[~chosen]})
    if single and not np.any(~chosen):
        return numbers, None
    return _not_empty(split, first, second)


def _not_empty(table: Table, first: str, second: str) -> tuple[Floats, Floats]:
    found = table.numbers(first, padded=True), table.numbers(second, padded=True)
    sizes = found[0].size, found[1].size
    if 0 in sizes:
        raise InputError(f"{table.source} has {sizes[0]} {first} and {sizes[1]} {second}: both are needed")
    return found
