"""Bounded readers of everything that comes from outside: text, JSON, TOML, CSV, JSON lines, .npz and safetensors.

A file may be damaged, hostile or merely not what its name says. Each reader bounds the size, the depth and with these
the time of what it accepts, reads pipes as well as files, and raises only `InputError`. Nothing is unpickled.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import stat
import tomllib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np

from coalmine.arrays import Array
from coalmine.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 1 << 30
"""Bytes of a file that is read whole, and of what a small compressed file may contain."""

LARGEST_SETTINGS = 1 << 18
"""Characters of a settings file. Time to parse keys with many dots grows with their square."""

LONGEST_LINE = 1 << 26
"""Bytes of one line of a JSON lines file."""

DEEPEST = 100
"""Levels of lists and objects inside each other."""

LONGEST_INTEGER = 308
"""Digits of an integer in JSON."""

_MANY_DIGITS = re.compile(f"[0-9]{{{LONGEST_INTEGER}}}")  # in few files, so that others are read at full speed
_SURROGATE = re.compile(r"\\ud[89a-f]", re.IGNORECASE)  # halves of a character, of which a pair makes a whole one
_LONGEST_ROW = 1 << 22  # characters in a row of a CSV file
_LONGEST_SETTING = 4096  # characters in a line of a settings file
_EXPANSION = 20  # how many times its size a compressed file may contain, if that is more than LARGEST


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file or a pipe for reading, in binary.

    Raises:
        InputError: If there is no such file, or it is a directory or cannot be read, now or while it is open.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a directory, not a file") from None
    except (OSError, ValueError) as error:  # a path with a null character is a ValueError
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    with file:
        try:
            yield file
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


def is_pipe(path: Path) -> bool:
    """Return whether the path is readable but no regular file, such as ``<(command)`` in a shell."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode)


def read_bytes(path: Path, *, most: int = LARGEST) -> bytes:
    """Return the content of a file or pipe of at most ``most`` bytes."""
    with opened(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise InputError(f"{path} is too large: at most {most:,} bytes are read")
    return content


def largest_content(path: Path) -> int:
    """Return how many bytes the compressed file ``path`` may contain."""
    return max(LARGEST, _EXPANSION * (0 if is_pipe(path) else path.stat().st_size))


def read_text(path: Path, *, most: int = LARGEST) -> str:
    """Return the text of a UTF-8 file or pipe, without a byte order mark."""
    try:
        return read_bytes(path, most=most).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text") from None


def parse_json(text: str, source: object) -> Any:
    """Return the value of a JSON text; ``source`` is named in errors.

    Raises:
        InputError: If it is not JSON, nested too deeply, or has a number of thousands of digits or half a character.

    Example:
        >>> parse_json("[1, 2.5]", "a.json")
        [1, 2.5]
    """
    try:
        content = _decoder(text).decode(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{source} is not JSON: {error.msg}, line {error.lineno}, column {error.colno} (character {error.pos} of "
            f"{len(text)})"
        ) from None
    except RecursionError:
        raise _too_deep(source) from None
    except ValueError as error:  # an integer of too many digits
        raise InputError(f"{source} is not JSON that can be read: {error!s:.100}") from None
    check_depth(content, source)
    if _SURROGATE.search(text):
        try:
            json.dumps(content, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise InputError(f"{source} has half of a character, which is no text: a lone surrogate") from None
    return content


def json_rows(text: str, source: object) -> Iterator[Any]:
    """Yield the items of a JSON list one by one, so that a long list of objects is never in memory as a whole."""
    decoder, position, separator = _decoder(text), text.index("[") + 1, ""
    try:
        while True:
            position = _after_space(text, position)
            if separator != "," and text[position : position + 1] == "]":
                position += 1
                break
            item, position = decoder.raw_decode(text, position)
            yield item
            position = _after_space(text, position)
            separator, position = text[position : position + 1], position + 1
            if separator == "]":
                break
            if separator != ",":
                raise json.JSONDecodeError("expected ',' or ']'", text, position)
        if text[position:].strip():
            raise json.JSONDecodeError("extra data", text, position)
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        parse_json(text, source)  # says where
        raise InputError(f"{source} is not JSON: {error!s:.100}") from None


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of coalmine's own, in which every name occurs once and every number is one.

    Readers disagree on which of two equal names counts, so a file that has them may show others than what we read.
    """
    text = read_text(path)
    content = parse_json(text, path)
    try:
        json.loads(text, object_pairs_hook=_unique, parse_constant=_no_number)
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error!s:.100}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold a JSON object, got a {type(content).__name__}")
    return content


def parse_toml(text: str, source: object) -> dict[str, Any]:
    """Return the tables of a TOML text; ``source`` is named in errors."""
    if len(text) > LARGEST_SETTINGS:
        raise InputError(f"{source} is too large for a settings file: at most {LARGEST_SETTINGS:,} characters are read")
    for number, line in enumerate(text.splitlines(), start=1):
        if len(line) > _LONGEST_SETTING:
            raise InputError(
                f"{source}, line {number}: a line of settings has at most {_LONGEST_SETTING:,} characters, got "
                f"{len(line):,}"
            )
    try:
        content = tomllib.loads(text)
    except RecursionError:
        raise _too_deep(source) from None
    except ValueError as error:  # TOMLDecodeError, or an integer of thousands of digits
        raise InputError(f"{source} is not TOML: {error!s:.200}") from None
    check_depth(content, source)
    return content


def check_depth(content: object, source: object) -> None:
    """Raise `InputError` if lists and objects are nested more than `DEEPEST` levels deep."""
    level = [content]
    for _ in range(DEEPEST + 1):
        level = [part for value in level for part in _parts(value)]
        if not level:
            return
    raise _too_deep(source)


def json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the number and the JSON value of each line that is not blank, of a .jsonl or .jsonl.gz file."""
    number, total = 0, 0
    with opened(path) as file:
        most = largest_content(path)
        lines = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
        try:
            while line := lines.readline(LONGEST_LINE + 1):
                number, total = number + 1, total + len(line)
                if len(line) > LONGEST_LINE or (lines is not file and total > most):
                    raise InputError(f"{path}, line {number}: the line or the file is too large to be read")
                if not line.isspace():
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip()
                    yield number, parse_json(text, f"{path}, line {number},")
        except UnicodeDecodeError:
            raise InputError(f"{path}, line {number}: not UTF-8 text") from None
        except (EOFError, zlib.error):
            raise InputError(f"{path} is truncated after line {number}: its compressed data does not end") from None


def csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of each row of a CSV file that is not blank, spaces around cells removed."""
    with opened(path) as file:
        rows = csv.reader(_lines(io.TextIOWrapper(file, encoding="utf-8-sig", newline=""), path), strict=True)
        try:
            for row in rows:
                if row:
                    yield rows.line_num, [cell.strip() for cell in row]
        except UnicodeDecodeError:
            raise InputError(f"{path} is not UTF-8 text") from None
        except csv.Error as error:
            raise InputError(f"{path}, line {rows.line_num}: not CSV ({error}); is a quote not closed?") from None


class Archive:
    """The arrays of an .npz file, read one by one. Damage of any kind is an `InputError`; objects are not unpickled.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     path = Path(directory) / "a.npz"
        ...     np.savez(path, x=[1.0, 2.0])
        ...     with Archive(path) as archive:
        ...         archive.read("x")
        array([1., 2.])
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # np.load reads backwards, which a pipe cannot do.
        source: Any = io.BytesIO(read_bytes(path)) if is_pipe(path) else path
        try:
            self._file = np.load(source, allow_pickle=False)
            if not isinstance(self._file, np.ndarray):
                self._check_size()
        except FileNotFoundError:
            raise InputError(f"there is no file {path}") from None
        except InputError:
            raise
        except Exception:  # a damaged file can raise anything from zipfile, zlib, struct or NumPy
            raise self._damaged() from None
        if isinstance(self._file, np.ndarray):
            raise InputError(f"{path} is a single array (.npy), not an .npz file of named arrays")
        self.names: list[str] = list(self._file.files)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, name: str) -> Array:
        """Return one array. Each read decompresses it."""
        try:
            return np.asarray(self._file[name])
        except Exception as error:  # as above
            if "allow_pickle" in str(error):
                raise InputError(
                    f"{self.path}: the array {name!r} holds Python objects, not plain arrays; save numbers or strings"
                ) from None
            raise self._damaged() from None

    def _check_size(self) -> None:
        """Refuse an archive that contains far more than its size: a few megabytes could fill any memory."""
        parts = self._file.zip.infolist()
        contained, stored = sum(part.file_size for part in parts), sum(part.compress_size for part in parts)
        if contained > max(LARGEST, _EXPANSION * stored):
            raise InputError(f"{self.path} is too large: {stored:,} bytes that contain {contained:,}")

    def _damaged(self) -> InputError:
        return InputError(f"{self.path} is not an .npz file of plain arrays, or it is truncated")


def read_arrays(path: Path) -> dict[str, Array]:
    """Return the arrays in an .npz file, by name."""
    with Archive(path) as archive:
        return {name: archive.read(name) for name in archive.names}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors in a safetensors file, by name."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except (SafetensorError, OSError, ValueError, KeyError, OverflowError, RuntimeError) as error:
        raise InputError(f"{path} is not a safetensors file: {error!s:.200}") from None


def _lines(file: io.TextIOWrapper, path: Path) -> Iterator[str]:
    """Yield the lines of a text, unless one is too long."""
    while line := file.readline(_LONGEST_ROW + 1):
        if len(line) > _LONGEST_ROW:
            raise InputError(f"{path} has a row of more than {_LONGEST_ROW:,} characters: is it a CSV file?")
        yield line


def _decoder(text: str) -> json.JSONDecoder:
    """Return a decoder that refuses integers which are no floats: whoever compares one with a float would fail."""
    return json.JSONDecoder(parse_int=_integer) if _MANY_DIGITS.search(text) else json.JSONDecoder()


def _integer(digits: str) -> int:
    if len(digits) > LONGEST_INTEGER:
        raise ValueError(f"an integer has more than {LONGEST_INTEGER} digits")
    return int(digits)


def _unique(pairs: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("an object has the same name twice")


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not a number")


def _after_space(text: str, position: int) -> int:
    """Return the position of the next character that is not white space."""
    while text[position : position + 1] in (" ", "\n", "\r", "\t"):
        position += 1
    return position


def _parts(value: object) -> list[Any]:
    """Return the lists and objects directly inside a list or object."""
    values: Any = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    # Of a list of ten million numbers, only the set of types is made.
    return [part for part in values if isinstance(part, dict | list)] if {dict, list} & set(map(type, values)) else []


def _too_deep(source: object) -> InputError:
    return InputError(f"{source} is nested too deeply: at most {DEEPEST} lists and objects inside each other are read")
