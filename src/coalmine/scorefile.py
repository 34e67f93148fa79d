"""Reads scores, losses and ranks from CSV, NPZ and JSON files. Errors name the file, the row and the column.

The accepted layouts are described in docs/files.md.
"""

from __future__ import annotations

import difflib
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from coalmine.arrays import Array, Bools, Floats
from coalmine.errors import InputError
from coalmine.reading import Archive, csv_rows, is_pipe, json_rows, parse_json, read_bytes, read_text

_BLOCK = 1 << 16  # rows that are read before they are packed
_TRUE = {"1", "1.0", "true", "yes", "in", "member", "canary"}
_FALSE = {"0", "0.0", "false", "no", "out", "nonmember", "non-member", "reference"}


@dataclass(frozen=True)
class ScoreTable:
    """The named columns of a file.

    Attributes:
        source: Path of the file, for error messages.
        columns: The columns by name, as lists of cells or as arrays.
        first_row: Row number of the first value as a text editor shows it, for error messages.
        others: Entries of a JSON object that are not lists, by name.
    """

    source: str
    columns: Mapping[str, Sequence[Any] | Array]
    first_row: int = 1
    others: Mapping[str, Any] = field(default_factory=dict)

    def has(self, *names: str) -> bool:
        """Return whether the file has all of these columns."""
        return all(name in self.columns for name in names)

    def require(self, name: str, hint: str = "") -> Sequence[Any] | Array:
        """Return a column, or raise an `InputError` that lists the columns of the file."""
        if name in self.others:
            raise InputError(f"{self.source}: {name} must be a list, got {self.others[name]!r:.40}")
        if name not in self.columns:
            columns = f"{', '.join(self.columns):.400}" or "none"
            matches = difflib.get_close_matches(name.lower(), [column.lower() for column in self.columns], n=1)
            suggestion = f" (did you mean {matches[0]:.60}?)" if matches else ""
            raise InputError(f"{self.source} has no column {name!r}{suggestion}; its columns are: {columns}{hint}")
        return self.columns[name]

    def numbers(self, name: str, *, padded: bool = False) -> Floats:
        """Return a column of finite numbers; with ``padded``, empty cells at its end are dropped.

        The shorter of two columns in a CSV file ends in such empty cells.
        """
        values = self.require(name)
        if isinstance(values, np.ndarray):
            if values.ndim != 1 or values.dtype.kind not in "biuf":
                kind = "text" if values.dtype.kind in "US" else f"{values.dtype} of shape {values.shape}"
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
            except (TypeError, ValueError, OverflowError):
                column = np.array([self._number(name, i, v) for i, v in enumerate(values[:size])])
        if column.ndim != 1:
            raise InputError(f"{self.source}: {name} must be a list of numbers, got shape {column.shape}")
        bad = np.flatnonzero(~np.isfinite(column))
        if bad.size:
            first = f"{column[bad[0]]} in row {bad[0] + self.first_row}"
            more = f" (and {bad.size - 1} more)" if bad.size > 1 else ""
            raise InputError(f"{self.source}: {name} must be finite numbers, got {first}{more}")
        return column

    def flags(self, name: str, hint: str = "") -> Bools:
        """Return a column of yes or no, in any of the usual spellings, as booleans."""
        values = self.require(name, hint)
        if isinstance(values, np.ndarray) and values.dtype.kind in "biuf" and values.ndim == 1:
            is_member: Bools = values == 1
            wrong = np.flatnonzero(~is_member & (values != 0))
        else:
            read = [_flag(value) for value in values]
            is_member = np.array([flag is True for flag in read], dtype=bool)
            wrong = np.array([i for i, flag in enumerate(read) if flag is None], dtype=np.int64)
        if wrong.size:
            cell = values[wrong[0]]
            word = f"{cell:g}" if isinstance(cell, float | np.floating) else str(cell).strip().lower()
            raise InputError(
                f"{self.source}, row {wrong[0] + self.first_row}: {name} must be 1 or 0 (or true/false, in/out,"
                f" member/nonmember, canary/reference), got {word!r:.60}"
            )
        return is_member

    def _number(self, name: str, index: int, value: Any) -> float:
        """Return one cell as a number, or raise an `InputError` that names its row."""
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            got = "an empty cell" if value in ("", None) else f"{value!r:.60}"
            raise InputError(
                f"{self.source}, row {index + self.first_row}: {name} must be a number, got {got}"
            ) from None


def _flag(value: object) -> bool | None:
    """Return what a cell means, or None if it is neither yes nor no."""
    word = str(value).strip().lower()
    return True if word in _TRUE else False if word in _FALSE else None


def read_table(path: Path) -> ScoreTable:
    """Read the columns of a .csv file with a header, of an .npz file or of a .json file.

    Args:
        path: The file; its suffix decides the format. A pipe such as ``<(command)`` is recognized by its content.

    Returns:
        The columns, unchecked: `ScoreTable.numbers` and `ScoreTable.flags` check them on access.

    Raises:
        InputError: If the file does not exist, is empty or is not in the format of its suffix.
    """
    if not path.exists():
        raise InputError(f"there is no file {path}")
    if path.is_dir():
        raise InputError(f"{path} is a directory, not a file")
    if is_pipe(path):
        table = _read_pipe(path)
    else:
        readers = {".csv": _read_csv, ".npz": _read_npz, ".json": _read_json}
        reader = readers.get(path.suffix.lower())
        if reader is None:
            raise InputError(f"{path} must end in .csv, .npz or .json")
        if path.stat().st_size == 0:
            raise InputError(f"{path} is empty")
        table = reader(path)
    if not table.columns:
        raise InputError(f"{path} has no columns")
    return table


def _read_pipe(path: Path) -> ScoreTable:
    """Read a pipe in the format that it begins with. It can be read only once, so its content goes through a file."""
    content = read_bytes(path)
    if not content:
        raise InputError(f"{path} is empty")
    npz, first = content[:2] == b"PK", content.lstrip()[:1]
    suffix = ".npz" if npz else ".json" if first in (b"{", b"[") else ".csv"
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / f"scores{suffix}"
        copy.write_bytes(content)
        try:
            return replace(read_table(copy), source=str(path))
        except InputError as error:
            raise InputError(str(error).replace(str(copy), str(path))) from None


def _read_csv(path: Path) -> ScoreTable:
    """Read a CSV file whose first line names its columns."""
    rows = csv_rows(path)
    _, header = next(rows, (0, []))
    if len(set(header)) != len(header):
        raise InputError(f"{path} names a column twice: {', '.join(header):.200}")
    if len(header) == 1 and any(separator in header[0] for separator in ";\t"):
        raise InputError(f"{path} must have cells separated by commas, got {header[0]!r:.60} as its first line")
    if header and all(_is_number(name) for name in header):
        raise InputError(f"{path} must begin with a line of column names, got {', '.join(header):.60}")

    def named() -> Iterable[dict[str, str]]:
        for line, row in rows:
            if len(row) != len(header):
                raise InputError(f"{path}, line {line}: {len(row)} cells, but {len(header)} column names")
            yield dict(zip(header, row, strict=True))

    return ScoreTable(str(path), _columns(named(), header), first_row=2)


def _columns(rows: Iterable[Mapping[str, Any]], names: Sequence[str] = ()) -> dict[str, Sequence[Any] | Array]:
    """Return the columns of many rows. Cells are packed block by block, so that ten million rows fit into memory."""
    blocks: dict[str, list[Array | list[Any]]] = {name: [] for name in names}
    sizes: list[int] = []
    remaining = iter(rows)
    while block := list(islice(remaining, _BLOCK)):
        for name in dict.fromkeys(name for row in block for name in row):
            if name not in blocks:  # rows of a JSON file need not have the same keys
                blocks[name] = [[""] * size for size in sizes]
        for name, parts in blocks.items():
            parts.append(_packed([row.get(name, "") for row in block]))
        sizes.append(len(block))
    return {name: _joined(parts) for name, parts in blocks.items()}


def _packed(cells: list[Any]) -> Array | list[Any]:
    """Return cells as an array if all are numbers, else as a list in which equal texts are one object."""
    kinds = set(map(type, cells))
    if kinds <= {bool}:
        return np.array(cells, dtype=bool)
    if kinds <= {int, float} or kinds == {str}:
        try:
            return np.array(cells, dtype=np.float64)
        except (ValueError, OverflowError):
            pass
    return [sys.intern(cell) if type(cell) is str else cell for cell in cells]


def _joined(parts: list[Array | list[Any]]) -> Sequence[Any] | Array:
    """Return the blocks of a column as one array, or as a list if one of them is a list or their types differ."""
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    if len(arrays) == len(parts) and len({array.dtype for array in arrays}) == 1:
        return np.concatenate(arrays)
    return [cell for part in parts for cell in (part.tolist() if isinstance(part, np.ndarray) else part)]


def _is_number(text: str) -> bool:
    """Return whether the text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_npz(path: Path) -> ScoreTable:
    """Read the arrays of an .npz file; pickled objects are rejected."""
    with Archive(path) as archive:
        return ScoreTable(str(path), {name: archive.read(name) for name in archive.names})


def _read_json(path: Path) -> ScoreTable:
    """Read a JSON file that holds an object of lists or a list of objects."""
    text = read_text(path)
    expected = f"{path} must hold an object of lists, or a list of objects"
    if text.lstrip()[:1] == "[":

        def named() -> Iterable[dict[str, Any]]:
            for row in json_rows(text, path):
                if not isinstance(row, dict):
                    raise InputError(expected)
                yield row

        columns = _columns(named())
        if not columns:
            raise InputError(expected)
        return ScoreTable(str(path), columns)
    content = parse_json(text, path)
    if not isinstance(content, dict):
        raise InputError(expected)
    lists = {name: value for name, value in content.items() if isinstance(value, list)}
    if not lists:
        names = ", ".join(content) or "it is empty"
        raise InputError(f"{path} must hold lists, got an object without any: {names:.200}")
    others = {name: value for name, value in content.items() if name not in lists}
    return ScoreTable(str(path), {name: _packed(value) for name, value in lists.items()}, others=others)


def read_scores(path: Path, score: str, member: str, *, known_null: bool) -> tuple[Floats, Floats | None]:
    """Return the scores of members and of non-members; with ``known_null`` the file must hold members only."""
    members, nonmembers = two_groups(
        read_table(path), groups=("members", "nonmembers"), value=score, flag=member, single=known_null
    )
    if known_null and nonmembers is not None:
        raise InputError(f"{path} contains non-members: leave out --null, or remove them from the file")
    return members, nonmembers


def two_groups(
    table: ScoreTable, *, groups: tuple[str, str], value: str, flag: str, single: bool = False
) -> tuple[Floats, Floats | None]:
    """Return two groups of numbers from two columns, or from one column that a second one splits.

    Args:
        table: The file's columns.
        groups: Names of the two groups. If the file has columns of these names, they hold the numbers.
        value: Otherwise, the column that holds all numbers,
        flag: and the column that says which of them belong to the first group.
        single: Whether the second group may be missing.

    Returns:
        The numbers of both groups; None for a missing second group.

    Raises:
        InputError: If columns are missing or ambiguous, a cell is not a number, or a group is empty.
    """
    first, second = groups
    if table.has(first, second) and table.has(value, flag):
        raise InputError(f"{table.source} has both {first}/{second} and {value}/{flag}: keep one of the two layouts")
    if table.has(first):
        if table.has(second):
            return _nonempty(table, table.numbers(first, padded=True), table.numbers(second, padded=True), groups)
        if single:
            return table.numbers(first, padded=True), None
        table.require(second)
    hint = f" (needed: {value} and {flag}, or {first} and {second})"
    table.require(value, hint)
    if single and not table.has(flag):
        return table.numbers(value), None
    in_first = table.flags(flag, hint)
    numbers = table.numbers(value)
    if numbers.size != in_first.size:
        raise InputError(f"{table.source}: {value} has {numbers.size} values, but {flag} has {in_first.size}")
    if single and np.all(in_first):
        return numbers, None
    return _nonempty(table, numbers[in_first], numbers[~in_first], groups)


def _nonempty(table: ScoreTable, first: Floats, second: Floats, names: tuple[str, str]) -> tuple[Floats, Floats]:
    """Return both groups unless one is empty."""
    if 0 in (first.size, second.size):
        raise InputError(f"{table.source} has {first.size} {names[0]} and {second.size} {names[1]}: both are needed")
    return first, second
