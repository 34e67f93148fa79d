"""Canaries in a file, for audits after the fact: what was planted, as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coalmine.arrays import Ints
from coalmine.errors import InputError, check_count
from coalmine.files import write_json
from coalmine.methods.secret_sharer.insertion import Insertion
from coalmine.methods.secret_sharer.phrases import Configuration, Language, PhraseCanaries
from coalmine.simulation.data.vocabulary import BEGIN, MARKS, UNKNOWN, Vocabulary

_VERSION = 1


@dataclass(frozen=True, eq=False)
class StoredCanaries:
    """Canaries from a file, and how many users held each where the file says so."""

    canaries: PhraseCanaries
    users: Ints | None


def write_canaries(insertion: Insertion, path: Path) -> None:
    """Write what ``read_canaries`` reads."""
    phrases = insertion.phrases
    language, users, copies = phrases.language, insertion.users, insertion.copies
    content = {
        "version": _VERSION,
        "size": language.size,
        "words": [language.words.start, language.words.stop],
        "begin": language.begin,
        "design": phrases.design,
        "seed": phrases.seed,
        "canaries": [
            {
                "phrase": language.text(phrase),
                "tokens": phrase.tolist(),
                "p_u": phrases.configuration(i).p_u,
                "p_e": phrases.configuration(i).p_e,
                "planted": bool(phrases.planted[i]),
                "users": int(users[i]),
                "copies": int(copies[i]),
            }
            for i, phrase in enumerate(phrases.phrases)
        ],
        "vocabulary": None if language.vocabulary is None else language.vocabulary.to_json(),
    }
    write_json(path, content)


def read_canaries(path: Path) -> StoredCanaries:
    """Canaries by their ``tokens``, or by their ``phrase`` in words of the ``vocabulary``.

    ``size`` is the number of logits of the model; ``words`` [first, stop] are those that stand for text (from 4 on if
    not given), ``begin`` is the mark before each phrase (1 if not given, null for none). ``p_u`` and ``p_e`` may be
    missing, and so may ``users``; ``planted`` may not.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise InputError(f"there is no file {path}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is not JSON: {error.msg} in line {error.lineno}") from None
    try:
        return _stored(content, path)
    except InputError as error:
        raise InputError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
    except KeyError as missing:
        raise InputError(f"{path} holds no canaries: it has no {missing.args[0]!r}") from None
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(f"{path} holds no canaries that could be read: {error}") from None


def _stored(content: Any, path: Path) -> StoredCanaries:
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no canaries: an object is needed, got a {type(content).__name__}")
    if content.get("version", _VERSION) != _VERSION:
        raise InputError(f"{path} is of version {content['version']}, and this reads version {_VERSION}")
    stored = content.get("vocabulary")
    vocabulary = None if stored is None else Vocabulary.from_json(stored, str(path))
    size = check_count("size", content["size"] if vocabulary is None else len(vocabulary))
    first, stop = content.get("words") or (len(MARKS), size)
    if not 0 <= first < stop <= size:
        raise InputError(f"words must be a range within 0..{size}, got {first} to {stop}")
    language = Language(size=size, words=range(first, stop), begin=content.get("begin", BEGIN), vocabulary=vocabulary)
    entries = content["canaries"]
    if not entries:
        raise InputError(f"{path} holds no canaries: the list is empty")
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict) or entry.get("planted") not in (True, False):
            raise InputError(f"canary {number} has no planted: true or false, was it in the training data?")
    tokens = [_tokens(entry, number, vocabulary) for number, entry in enumerate(entries)]
    lengths = {len(found) for found in tokens}
    if len(lengths) > 1:
        raise InputError(f"{path}: all canaries must have equally many words, got {sorted(lengths)}")
    each = [Configuration(float(entry.get("p_u", 0)), float(entry.get("p_e", 0))) for entry in entries]
    configurations = tuple(sorted(set(each), key=lambda configuration: configuration.frequency))
    canaries = PhraseCanaries(
        phrases=np.array(tokens, dtype=np.int64),
        configurations=configurations,
        which=np.array([configurations.index(one) for one in each]),
        planted=np.array([bool(entry["planted"]) for entry in entries]),
        language=language,
        design=content.get("design", "fixed"),
        seed=check_count("seed", content.get("seed", 0), least=0),
    )
    told = all("users" in entry for entry in entries)
    users = [check_count("users", entry["users"], least=0) for entry in entries] if told else None
    return StoredCanaries(canaries, None if users is None else np.array(users))


def _tokens(entry: Any, number: int, vocabulary: Vocabulary | None) -> list[int]:
    if "tokens" in entry:
        return [check_count("a token", token, least=0) for token in entry["tokens"]]
    if vocabulary is None:
        raise InputError(f"canary {number} has no tokens, and there is no vocabulary to look its words up in")
    if "phrase" not in entry:
        raise InputError(f"canary {number} has neither tokens nor a phrase")
    words = str(entry["phrase"]).split() if vocabulary.level == "words" else list(entry["phrase"])
    found = [int(token) for token in vocabulary.lookup(words)]
    if vocabulary.marks and UNKNOWN in found:
        word = words[found.index(UNKNOWN)]
        raise InputError(f"canary {number} has the unknown word {word!r}: it is not in the vocabulary")
    return found
