"""Data sets with a name: two that need no file, and those in the directory COALMINE_DATA."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coalmine.errors import InputError

VARIABLE = "COALMINE_DATA"


@dataclass(frozen=True, kw_only=True)
class NamedData:
    """The kind of a data set, its file (None if it needs none) and its default partition."""

    kind: Literal["arrays", "words", "characters", "labeled", "digits", "generated-text"]
    file: str | None = None
    partition: str = "natural"


NAMED = {
    "digits": NamedData(kind="digits", partition="iid:50"),
    "generated-text": NamedData(kind="generated-text"),
    "mnist": NamedData(kind="arrays", file="mnist.npz"),
    "fashion-mnist": NamedData(kind="arrays", file="fashion_mnist.npz", partition="iid:100"),
    "cifar10": NamedData(kind="arrays", file="cifar10.npz", partition="iid:100"),
    "svhn": NamedData(kind="arrays", file="svhn_digits.npz", partition="iid:100"),
    "shakespeare": NamedData(kind="characters", file="shakespeare_roles.jsonl.gz"),
    "stackexchange": NamedData(kind="words", file="stackexchange_users.jsonl.gz"),
    "ubuntu-irc": NamedData(kind="words", file="ubuntu_irc_users.jsonl.gz"),
    "scotus": NamedData(kind="words", file="scotus_speakers.jsonl.gz"),
    "sent140": NamedData(kind="labeled", file="sent140_sample.jsonl.gz"),
}


def named(name: str) -> NamedData:
    """Return the data set of this name, or raise with the closest names."""
    if name not in NAMED:
        close = difflib.get_close_matches(name.lower(), NAMED, n=3, cutoff=0.5)
        question = f"did you mean {' or '.join(close)}? " if close else ""
        raise InputError(
            f"there is no data set and no file {name!r}; {question}Data sets: {', '.join(NAMED)}. Files: .npz, .jsonl,"
            " .jsonl.gz, .json, .parquet, .arrow or a directory"
        )
    return NAMED[name]


def file_of(name: str) -> Path:
    """Return the path of a named data set's file, or raise with what is missing."""
    file = named(name).file
    directory = os.environ.get(VARIABLE)
    if not directory:
        raise InputError(f"{name} needs the file {file}: set the environment variable {VARIABLE} to its directory")
    path = Path(directory) / str(file)
    if not path.is_file():
        raise InputError(f"{name} needs the file {file}, which is not in {directory} ({VARIABLE})")
    return path
