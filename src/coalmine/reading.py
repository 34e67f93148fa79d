"""Readers of everything that comes from outside: text, JSON, TOML, JSON lines, .npz and safetensors.

A file may be damaged or not what its name says. Whatever is wrong with it is an `InputError` that names the file.
Nothing is unpickled.
"""

from __future__ import annotations

import gzip
import json
import tomllib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coalmine.arrays import Array
from coalmine.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file, without a byte order mark."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text") from None
    except (OSError, ValueError) as error:  # a path with a null character is a ValueError
        raise unreadable(path, error) from None


def unreadable(path: Path, error: Exception) -> InputError:
    """Return the sentence for a file that cannot be opened or read."""
    if isinstance(error, FileNotFoundError):
        return InputError(f"there is no file {path}")
    if isinstance(error, IsADirectoryError):
        return InputError(f"{path} is a directory, not a file")
    return InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}")


def parse_json(text: str, source: object, **options: Any) -> Any:
    """Return the value of a JSON text; ``source`` is named in errors, ``options`` are those of `json.loads`.

    Raises:
        InputError: If it is not JSON, or nested too deeply for Python.

    Example:
        >>> parse_json("[1, 2.5]", "a.json")
        [1, 2.5]
    """
    try:
        return json.loads(text, **options)
    except json.JSONDecodeError as error:
        raise InputError(f"{source} is not JSON: {error.msg}, line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise InputError(f"{source} is nested too deeply") from None
    except ValueError as error:  # an integer of thousands of digits, or what the options refuse
        raise InputError(f"{source} is not JSON that can be read: {error!s:.100}") from None


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of coalmine's own, in which every name occurs once and every number is one.

    Readers disagree on which of two equal names counts, so a file that has them may show others than what we read.
    """
    content = parse_json(read_text(path), path, object_pairs_hook=_unique, parse_constant=_no_number)
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold a JSON object, got a {type(content).__name__}")
    return content


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("an object has the same name twice")
    return dict(pairs)


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not a number")


def parse_toml(text: str, source: object) -> dict[str, Any]:
    """Return the tables of a TOML text; ``source`` is named in errors."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise InputError(f"{source} is nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError, or an integer of thousands of digits
        raise InputError(f"{source} is not TOML: {error!s:.200}") from None


def json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the line number and the value of each line that is not blank, of a .jsonl or .jsonl.gz file."""
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.isspace():
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip()
                    yield number, parse_json(text, f"{path}, line {number},")
    except UnicodeDecodeError:
        raise InputError(f"{path}, line {number}: not UTF-8 text") from None
    except (EOFError, zlib.error):
        raise InputError(f"{path} is truncated after line {number}: its compressed data does not end") from None
    except OSError as error:
        raise unreadable(path, error) from None


def read_arrays(path: Path) -> dict[str, Array]:
    """Return the arrays in an .npz file, by name."""
    try:
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise InputError(f"{path} is a single array (.npy), not an .npz file of named arrays")
        with archive:
            return {name: archive[name] for name in archive.files}
    except InputError:
        raise
    except (FileNotFoundError, IsADirectoryError) as error:
        raise unreadable(path, error) from None
    except Exception:  # a damaged file can raise anything from zipfile, zlib, struct or NumPy
        message = f"{path} is not an .npz file of plain arrays (numbers or strings), or it is truncated"
        raise InputError(message) from None


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors in a safetensors file, by name."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except FileNotFoundError as error:
        raise unreadable(path, error) from None
    except (SafetensorError, OSError, ValueError, KeyError, OverflowError, RuntimeError) as error:
        raise InputError(f"{path} is not a safetensors file: {error!s:.200}") from None
