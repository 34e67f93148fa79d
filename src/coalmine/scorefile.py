"""Reads scores, losses and ranks from CSV, NPZ and JSON files. Errors name the file, the row and the column.

The accepted layouts are described in docs/runs.md.
"""

from __future__ import annotations

import csv
import difflib
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coalmine.arrays import Bools, Floats
from coalmine.errors import InputError
from coalmine.reading import parse_json, read_arrays, read_text

_TRUE = {"1", "1.0", "true", "yes", "in", "member", "canary"}
_FALSE = {"0", "0.0", "false", "no", "out", "nonmember", "non-member", "reference"}


@dataclass(frozen=True)
class ScoreTable:
    """The named columns of a file.

    Attributes:
        source: Path of the file, for error messages.
        columns: The columns by name, as lists of cells or as arrays.
        first_row: Row number of the first value as a text editor shows it, for error messages.
    """

    source: str
    columns: Mapping[str, Any]
    first_row: int = 1

    def has(self, *names: str) -> bool:
        """Return whether the file has all of these columns."""
        return all(name in self.columns for name in names)

    def require(self, name: str, hint: str = "") -> Any:
        """Return a column, or raise an `InputError` that lists the columns of the file."""
        if name not in self.columns:
            columns = f"{', '.join(self.columns):.400}" or "none"
            matches = difflib.get_close_matches(name.lower(), [column.lower() for column in self.columns], n=1)
            suggestion = f" (did you mean {matches[0]:.60}?)" if matches else ""
            raise InputError(f"{self.source} has no column {name!r}{suggestion}; its columns are: {columns}{hint}")
        values = self.columns[name]
        if not isinstance(values, list | np.ndarray):
            raise InputError(f"{self.source}: {name} must be a list, got {values!r:.40}")
        return values

    def numbers(self, name: str, *, padded: bool = False) -> Floats:
        """Return a column of finite numbers; with ``padded``, empty cells at its end are dropped.

        The shorter of two columns in a CSV file ends in such empty cells.
        """
        values = self.require(name)
        if isinstance(values, np.ndarray) and values.dtype.kind not in "biuf":
            raise InputError(f"{self.source}: {name} must be a list of numbers, got {values.dtype}")
        size = len(values)
        while padded and size and isinstance(values[size - 1], str) and not values[size - 1]:
            size -= 1
        try:
            column = np.array(values[:size], dtype=np.float64)
        except (TypeError, ValueError, OverflowError):  # cell by cell, to name the first bad one
            column = np.array([_number(value) for value in values[:size]])
        if column.ndim != 1:
            raise InputError(f"{self.source}: {name} must be a list of numbers, got shape {column.shape}")
        bad = np.flatnonzero(~np.isfinite(column))
        if bad.size:
            row, cell = bad[0] + self.first_row, values[bad[0]]
            got = "an empty cell" if cell is None or cell == "" else f"{cell!r:.60}"
            raise InputError(f"{self.source}, row {row}: {name} must be a finite number, got {got}")
        return column

    def flags(self, name: str, hint: str = "") -> Bools:
        """Return a column of yes or no, in any of the usual spellings, as booleans."""
        words = [str(value).strip().lower() for value in self.require(name, hint)]
        for row, word in enumerate(words, start=self.first_row):
            if word not in _TRUE and word not in _FALSE:
                raise InputError(
                    f"{self.source}, row {row}: {name} must be 1 or 0 (or true/false, in/out, member/nonmember, "
                    f"canary/reference), got {word!r:.60}"
                )
        return np.array([word in _TRUE for word in words], dtype=bool)


def _number(value: Any) -> float:
    """Return a cell as a number, NaN if it is none."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def read_table(path: Path) -> ScoreTable:
    """Read the columns of a .csv file with a header, of an .npz file or of a .json file.

    Args:
        path: The file; its suffix decides the format.

    Returns:
        The columns, unchecked: `ScoreTable.numbers` and `ScoreTable.flags` check them on access.

    Raises:
        InputError: If the file does not exist, is empty or is not in the format of its suffix.
    """
    suffix = path.suffix.lower()
    if suffix == ".npz":
        table = ScoreTable(str(path), read_arrays(path))
    elif suffix == ".json":
        table = ScoreTable(str(path), _json_columns(parse_json(read_text(path), path), path))
    elif suffix == ".csv":
        table = _csv_table(path)
    else:
        read_text(path)  # says if it is missing or a directory
        raise InputError(f"{path} must end in .csv, .npz or .json")
    if not table.columns:
        raise InputError(f"{path} is empty: it has no columns")
    return table


def _csv_table(path: Path) -> ScoreTable:
    """Read a CSV file whose first line names its columns."""
    rows = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        header = [name.strip() for name in next(rows, [])]
        if len(set(header)) != len(header):
            raise InputError(f"{path} names a column twice: {', '.join(header):.200}")
        if len(header) == 1 and any(separator in header[0] for separator in ";\t"):
            raise InputError(f"{path} must have cells separated by commas, got {header[0]!r:.60} as its first line")
        if header and all(math.isfinite(_number(name)) for name in header):
            raise InputError(f"{path} must begin with a line of column names, got {', '.join(header):.60}")
        columns: dict[str, list[str]] = {name: [] for name in header}
        for row in rows:
            if row and len(row) != len(header):
                raise InputError(f"{path}, line {rows.line_num}: {len(row)} cells, but {len(header)} column names")
            for name, cell in zip(header, row, strict=False):  # a blank line has no cells
                columns[name].append(cell.strip())
    except csv.Error as error:
        raise InputError(f"{path}, line {rows.line_num}: not CSV ({error}); is a quote not closed?") from None
    return ScoreTable(str(path), columns, first_row=2)


def _json_columns(content: Any, path: Path) -> dict[str, Any]:
    """Return the columns of an object of lists, or of a list of objects."""
    if isinstance(content, list) and content and all(isinstance(row, dict) for row in content):
        names = dict.fromkeys(name for row in content for name in row)
        return {name: [row.get(name, "") for row in content] for name in names}
    if not isinstance(content, dict) or not any(isinstance(value, list) for value in content.values()):
        raise InputError(f"{path} must hold an object of lists, or a list of objects")
    return content


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
        numbers = table.numbers(first, padded=True)
        if single and not table.has(second):
            return numbers, None
        return _nonempty(table, numbers, table.numbers(second, padded=True), groups)
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
