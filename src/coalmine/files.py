"""Atomic file writes, whose errors are `InputError`; `coalmine.reading` has the readers.

A file is written under a temporary name beside its destination, flushed to disk and renamed, so a reader sees the old
file or the new one, never half of either.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from coalmine.errors import InputError


def temporary_name(path: Path) -> Path:
    """Return where a file is written before it is renamed; a killed process may leave it behind."""
    return path.with_name(f".{path.name}.{os.getpid()}.new")  # two processes may write the same file


def write_whole(path: Path, write: Callable[[Path], object]) -> Path:
    """Replace ``path`` atomically by the file that ``write`` fills; an `OSError` becomes an `InputError`."""
    temporary = temporary_name(path)
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
    return str(float(content)) if isinstance(content, float) and not math.isfinite(content) else content


def write_arrays(path: Path, arrays: Mapping[str, ArrayLike]) -> Path:
    """Write a compressed .npz file atomically; equal arrays give equal bytes."""

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez_compressed(file, **{name: np.asarray(array) for name, array in arrays.items()})  # type: ignore[arg-type]

    return write_whole(path, write)
