"""Texts by user from .jsonl and .jsonl.gz files: one JSON object per line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coalmine.errors import InputError
from coalmine.reading import json_lines
from coalmine.simulation.data.text import Corpus

_ROLES = ("user", "text", "label")


def read_records(path: Path, *, keys: Mapping[str, str] | None = None) -> Corpus:
    """Read lines such as {"user": "ann", "text": "…", "label": 1}; either all lines have a label or none.

    ``keys`` names the fields, such as ``{"user": "author"}``; other fields are ignored. The lines of a user need not be
    consecutive: they are brought together in their order.
    """
    keys = keys or {}
    for role in keys:
        if role not in _ROLES:
            raise InputError(f"keys must be among {', '.join(_ROLES)}, got {role!r}")
    names = {role: keys.get(role, role) for role in _ROLES}
    users: list[str] = []
    texts: list[str] = []
    labels: list[int] = []
    for number, record in _records(path):
        try:
            user, text = record[names["user"]], record[names["text"]]
        except KeyError as missing:
            present = ", ".join(record) or "none"
            raise InputError(
                f"{path}, line {number}: {missing.args[0]!r} is missing; its keys are: {present}"
            ) from None
        if not isinstance(text, str) or isinstance(user, bool) or not isinstance(user, str | int):
            raise InputError(
                f"{path}, line {number}: {names['user']} must be a string or an integer and {names['text']} a string,"
                f" got {user!r:.40} and {text!r:.40}"
            )
        users.append(str(user))
        texts.append(text)
        if names["label"] in record:
            labels.append(_label(record[names["label"]], path, number))
        if labels and len(labels) != len(texts):
            raise InputError(f"{path}, line {number}: either every line has a {names['label']} or none")
    if not texts:
        raise InputError(f"{path} is empty: it needs at least one line")
    if "label" in keys and not labels:
        raise InputError(f"{path} has no {names['label']!r} in its lines")
    return Corpus.from_columns(source=str(path), users=users, texts=texts, labels=np.array(labels) if labels else None)


def _label(value: Any, path: Path, number: int) -> int:
    """Return a label, or raise unless it is an integer of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(f"{path}, line {number}: a label must be an integer of at least 0, got {value!r:.40}")
    return value


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line number and the JSON object of each line that is not blank."""
    for number, record in json_lines(path):
        if not isinstance(record, dict):
            raise InputError(f"{path}, line {number}: a line must be an object with user and text, got {record!r:.40}")
        yield number, record
