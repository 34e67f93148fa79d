"""Texts by user from .jsonl and .jsonl.gz files: one JSON object a line."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coalmine.errors import InputError
from coalmine.simulation.data.text import Corpus

_ROLES = ("user", "text", "label")


def read_records(path: Path, *, keys: Mapping[str, str] | None = None) -> Corpus:
    """Lines such as {"user": "ann", "text": "…", "label": 1}; the label may be missing, but then in every line.

    ``keys`` names the file's own fields, such as ``{"user": "author"}``; further fields are not looked at. A user's
    lines need not be consecutive: they are brought together, in their order.
    """
    for role in keys or {}:
        if role not in _ROLES:
            raise InputError(f"keys must be among {', '.join(_ROLES)}, got {role!r}")
    names = {role: (keys or {}).get(role, role) for role in _ROLES}
    users: list[str] = []
    texts: list[str] = []
    labels: list[int] = []
    for number, record in _records(path):
        try:
            user, text = record[names["user"]], record[names["text"]]
        except KeyError as missing:
            there = ", ".join(record) or "none"
            raise InputError(f"{path}, line {number}: {missing.args[0]!r} is missing; its keys are: {there}") from None
        if not isinstance(text, str) or isinstance(user, bool) or not isinstance(user, str | int):
            raise InputError(
                f"{path}, line {number}: {names['user']} must be a text or a whole number and {names['text']} a text,"
                f" got {user!r:.40} and {text!r:.40}"
            )
        users.append(str(user))
        texts.append(text)
        if names["label"] in record:
            labels.append(_label(record[names["label"]], path, number))
        if labels and len(labels) != len(texts):
            raise InputError(f"{path}, line {number}: either every line has a {names['label']} or none")
    if not texts:
        raise InputError(f"{path} holds no lines")
    if "label" in (keys or {}) and not labels:
        raise InputError(f"{path} has no {names['label']!r} in its lines")
    return Corpus.of(source=str(path), users=users, texts=texts, labels=np.array(labels) if labels else None)


def _label(value: Any, path: Path, number: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(f"{path}, line {number}: a label must be a whole number from 0 on, got {value!r:.40}")
    return value


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.isspace():
                    continue
                record = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip())
                if not isinstance(record, dict):
                    raise InputError(
                        f"{path}, line {number}: an object with user and text is needed, got {record!r:.40}"
                    )
                yield number, record
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {number}: not a JSON object ({error.msg}, column {error.colno})") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}, line {number}: not UTF-8 text") from None
    except (EOFError, zlib.error):
        raise InputError(f"{path} was cut short after line {number}: its compressed data does not end") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
