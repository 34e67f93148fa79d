"""Files that are there whole or not at all: written beside, flushed to the disk, renamed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coalmine.errors import InputError


def write_whole(path: Path, write: Callable[[Path], object]) -> Path:
    """Let ``write`` fill a file beside ``path``, then put it in its place: a kill leaves the old one or the new one.

    A full disk or a directory that cannot be written to is refused with a sentence, and what was there stays.
    """
    beside = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(beside)
        beside.chmod(0o644)  # some writers would keep it to the user alone
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error
    return path


def write_text(path: Path, text: str) -> Path:
    """A text file."""
    return write_whole(path, lambda beside: beside.write_text(text, encoding="utf-8"))


def write_json(path: Path, content: Mapping[str, Any]) -> Path:
    """A JSON object. What is not a finite number is refused: JSON has no word for it."""
    return write_text(path, json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def write_arrays(path: Path, arrays: Mapping[str, npt.ArrayLike]) -> Path:
    """An .npz file, the same bytes for the same arrays."""

    def write(beside: Path) -> None:
        with beside.open("wb") as file:
            np.savez_compressed(file, **{name: np.asarray(array) for name, array in arrays.items()})  # type: ignore[arg-type]

    return write_whole(path, write)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, refused with a sentence where it is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold a JSON object, not {type(content).__name__}")
    return content


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an .npz file, refused with a sentence where it is none."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except Exception as error:  # zipfile, zlib, struct and NumPy each have their own
        raise InputError(f"{path} cannot be read as .npz: {error}") from None
