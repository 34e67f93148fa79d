"""Everything that is read and written: text, JSON, TOML, JSON lines, .npz, safetensors, and tables of scores.

Files are written under a temporary name beside their destination, flushed to disk and renamed, so a reader sees the
old file or the new one, never half of either. A file that comes from outside may be damaged or not what its name says:
whatever is wrong with it is an `InputError` that names it. Nothing is unpickled.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import os
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coalmine.arrays import Array, Bools, Floats
from coalmine.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from torch import Tensor


# Writing


def write_whole(path: Path, write: Callable[[Path], object]) -> Path:
    """Replace ``path`` atomically by the file that ``write`` fills; an `OSError` becomes an `InputError`."""
    # Two processes may write the same file, and a killed one may leave this behind.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        temporary.chmod(0o644)  # some writers create files that only their owner can read
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise InputError(f"{path} cannot be written: {error.strerror or error}") from error
        raise
    return path


def write_text(path: Path, text: str) -> Path:
    """Write UTF-8 text atomically; half of a character, which JSON can hold and UTF-8 cannot, becomes "?"."""
    return write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8", errors="replace"))


def write_json(path: Path, content: Mapping[str, Any]) -> Path:
    """Write a JSON object atomically."""
    return write_text(path, json_text(content) + "\n")


def json_text(content: object, *, indent: int | None = 2, ensure_ascii: bool = False) -> str:
    """Return JSON in which infinity and NaN, which JSON cannot represent, are the words "inf", "-inf" and "nan".

    Example:
        >>> json_text({"loss": float("nan"), "perplexity": [float("inf"), 2.5]}, indent=None)
        '{"loss": "nan", "perplexity": ["inf", 2.5]}'
    """
    try:
        return json.dumps(content, indent=indent, allow_nan=False, ensure_ascii=ensure_ascii)
    except ValueError:  # rare, so most contents are not walked through
        return json.dumps(_in_words(content), indent=indent, allow_nan=False, ensure_ascii=ensure_ascii)


def _in_words(content: object) -> object:
    """Return the content with infinity and NaN as words."""
    if isinstance(content, Mapping):
        return {key: _in_words(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_in_words(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return str(float(content))
    return content


# Reading


@contextmanager
def refusing(source: object, what: str) -> Iterator[None]:
    """Turn whatever goes wrong while ``source`` is read as ``what`` into an `InputError` that names both."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"there is no file {source}") from None
    except OSError as error:
        raise InputError(f"{source!s:.200} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # a damaged file can raise anything from zipfile, zlib, struct, NumPy or tomllib
        raise InputError(f"{source} cannot be read as {what}: {error!s:.200}") from None


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file, without a byte order mark."""
    with refusing(path, "UTF-8 text"):
        return path.read_text(encoding="utf-8-sig")


def parse_json(text: str, source: object) -> Any:
    """Return the value of a JSON text; ``source`` is named in errors.

    Example:
        >>> parse_json("[1, 2.5]", "a.json")
        [1, 2.5]
    """
    with refusing(source, "JSON"):
        return json.loads(text)


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of coalmine's own, which has no name twice and only real numbers."""
    with refusing(path, "JSON"):
        text = path.read_text(encoding="utf-8-sig")
        content = json.loads(text, object_pairs_hook=_unique, parse_constant=int)  # int refuses NaN and Infinity
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold a JSON object, got a {type(content).__name__}")
    return content


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; other readers may take the other value of a name that it has twice."""
    if len(dict(pairs)) < len(pairs):
        raise ValueError("an object has the same name twice")
    return dict(pairs)


def parse_toml(text: str, source: object) -> dict[str, Any]:
    """Return the tables of a TOML text; ``source`` is named in errors."""
    with refusing(source, "TOML"):
        return tomllib.loads(text)


def json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the line number and the value of each line that is not blank, of a .jsonl or .jsonl.gz file."""
    with refusing(path, "JSON lines"), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.isspace():
                with refusing(f"{path}, line {number},", "JSON"):
                    value = json.loads(line.decode("utf-8-sig"))
                yield number, value


def read_arrays(path: Path) -> dict[str, Array]:
    """Return the arrays in an .npz file, by name."""
    what = "an .npz file of plain arrays (numbers or strings)"
    # NumPy would take a file that is no archive for pickled data.
    with refusing(path, what), zipfile.ZipFile(path), np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors in a safetensors file, by name."""
    from safetensors.torch import load_file

    with refusing(path, "a safetensors file"):
        return load_file(path)


# Tables of scores, losses and ranks; docs/runs.md describes the layouts


# Tools for membership inference write all of these.
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

    def require(self, name: str, hint: str = "") -> Any:
        """Return a column, or raise an `InputError` that lists the columns of the file."""
        if name not in self.columns:
            columns = did_you_mean(name, [f"{column:.60}" for column in self.columns])
            raise InputError(f"{self.source} has no column {name!r}{hint}. {columns:.400}")
        return self.columns[name]

    def numbers(self, name: str) -> Floats:
        """Return a column of finite numbers."""
        values = self.require(name)
        size = len(values)
        # In a CSV file, the shorter of two columns ends in empty cells.
        while size and isinstance(values[size - 1], str) and not values[size - 1]:
            size -= 1
        try:
            column = np.array(values[:size], dtype=np.float64)
        except (TypeError, ValueError, OverflowError):  # cell by cell, to name the first bad one
            column = np.full(size, math.nan)
            for i in range(size):
                with suppress(TypeError, ValueError, OverflowError):
                    column[i] = values[i]
        if column.ndim != 1:
            raise InputError(f"{self.source}: {name} must be a list of numbers, got shape {column.shape}")
        bad = np.flatnonzero(~np.isfinite(column))
        if bad.size:
            row, cell = bad[0] + self.first_row, values[bad[0]]
            cell = cell.item() if isinstance(cell, np.generic) else cell
            raise InputError(f"{self.source}, row {row}: {name} must be a finite number, got {cell!r:.60}")
        return column

    def flags(self, name: str, hint: str = "") -> Bools:
        """Return a column of yes or no, in any of the usual spellings, as booleans."""
        words = [str(value).strip().lower() for value in self.require(name, hint)]
        for row, word in enumerate(words, start=self.first_row):
            if word not in _TRUE | _FALSE:
                raise InputError(
                    f"{self.source}, row {row}: {name} must be 1 or 0 (or true/false, in/out, member/nonmember, "
                    f"canary/reference), got {word!r:.60}"
                )
        return np.array([word in _TRUE for word in words], dtype=bool)


def read_table(path: Path) -> ScoreTable:
    """Read the columns of a .csv file with a header or of an .npz file; the suffix decides.

    The columns are unchecked: `ScoreTable.numbers` and `ScoreTable.flags` check them on access.
    """
    columns: dict[str, Any]
    suffix, first_row = path.suffix.lower(), 1
    if suffix == ".npz":
        columns = dict(read_arrays(path))
    elif suffix == ".csv":
        columns, first_row = _csv_columns(path), 2
    else:
        raise InputError(f"{path} must end in .csv or .npz")
    if not columns:
        raise InputError(f"{path} must hold columns with names: in CSV a header line")
    return ScoreTable(str(path), columns, first_row)


def _csv_columns(path: Path) -> dict[str, list[str]]:
    """Return the columns of a CSV file whose first line names them."""
    rows = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    with refusing(path, "CSV"):
        header = [name.strip() for name in next(rows, [])]
        columns: dict[str, list[str]] = {name: [] for name in header}
        if len(columns) < len(header):
            raise InputError(f"{path} names a column twice: {', '.join(header):.200}")
        for row in rows:
            if row and len(row) != len(header):
                raise InputError(f"{path}, line {rows.line_num}: {len(row)} cells, but {len(header)} column names")
            for name, cell in zip(header, row, strict=False):  # a blank line has no cells
                columns[name].append(cell.strip())
    return columns


def two_groups(
    table: ScoreTable,
    *,
    groups: tuple[str, str] = ("members", "nonmembers"),
    value: str = "score",
    flag: str = "member",
    single: bool = False,
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
        InputError: If columns are missing, a cell is not a number, or a group is empty.
    """
    if groups[0] in table.columns:
        first = table.numbers(groups[0])
        second = None if single and groups[1] not in table.columns else table.numbers(groups[1])
    else:
        hint = f" (needed: {value} and {flag}, or {groups[0]} and {groups[1]})"
        table.require(value, hint)
        first, second = table.numbers(value), None
        if flag in table.columns or not single:
            in_first = table.flags(flag, hint)
            if in_first.size != first.size:
                raise InputError(f"{table.source}: {value} has {first.size} values, but {flag} has {in_first.size}")
            first, second = first[in_first], first[~in_first]
    # Where the null is known, a file may have the column of non-members and leave it empty.
    if single and (second is None or not second.size):
        return first, None
    assert second is not None
    if 0 in (first.size, second.size):
        raise InputError(f"{table.source} has {first.size} {groups[0]} and {second.size} {groups[1]}: both are needed")
    return first, second
