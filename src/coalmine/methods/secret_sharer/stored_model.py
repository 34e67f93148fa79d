"""What a run stores so that its model can be audited later: ``canaries.json`` and the model's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save as serialize
from torch import nn

from coalmine.arrays import Ints
from coalmine.errors import InputError, check_count
from coalmine.files import write_json, write_whole
from coalmine.methods.secret_sharer.insertion import Insertion
from coalmine.methods.secret_sharer.phrases import Configuration, Language, PhraseCanaries
from coalmine.methods.secret_sharer.settings import TextTrainingSettings
from coalmine.reading import read_json, read_tensors
from coalmine.simulation.data import Task
from coalmine.simulation.data.text import BEGIN, MARKS, UNKNOWN, Vocabulary
from coalmine.simulation.flat import moved
from coalmine.simulation.models import default_model
from coalmine.simulation.settings import TrainingSettings, build_model

_VERSION = 1


def write_canaries(insertion: Insertion, path: Path) -> None:
    """Write what `read_canaries` reads."""
    phrases = insertion.phrases
    language, users, copies = phrases.language, insertion.users, insertion.copies
    content = {
        "version": _VERSION,
        "size": language.size,
        "words": [language.words.start, language.words.stop],
        "begin": language.begin,
        "design": phrases.design,
        "seed": phrases.seed,
        "most_users": insertion.most_users,
        "canaries": [
            {
                "phrase": language.text(phrase),
                "tokens": phrase.tolist(),
                "p_u": phrases.configuration(i).p_u,
                "p_e": phrases.configuration(i).p_e,
                "planted": bool(phrases.inserted[i]),
                "users": int(users[i]),
                "copies": int(copies[i]),
            }
            for i, phrase in enumerate(phrases.phrases)
        ],
        "vocabulary": None if language.vocabulary is None else language.vocabulary.to_json(),
    }
    write_json(path, content)


def read_canaries(path: Path) -> tuple[PhraseCanaries, Ints | None, int | None]:
    """Read canaries from a JSON file.

    The file needs ``size``, the width of the model's output (or a ``vocabulary``), and ``canaries``, each with
    ``planted`` (was it in the training data?) and either ``tokens`` or a ``phrase`` in words of the vocabulary.
    Optional are ``words`` [first, stop], the tokens that stand for text (from 4 on if missing); ``begin``, the mark
    before each phrase (1 if missing, null for none); ``most_users``, the largest number of users that could have held
    a canary; and ``p_u``, ``p_e`` and ``users`` of each canary.

    Args:
        path: The file.

    Returns:
        The canaries, the number of users that hold each, shape (n,), and the largest number of users that could hold
        one; None where the file does not say.

    Raises:
        InputError: If the file cannot be read, or has no valid canaries.
    """
    content = read_json(path)
    try:
        return _stored(content, path)
    except InputError as error:
        raise InputError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
    except KeyError as missing:
        raise InputError(f"{path} has no canaries: the key {missing.args[0]!r} is missing") from None
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise InputError(f"{path} has no canaries that could be read: {error}") from None


def _stored(content: dict[str, Any], path: Path) -> tuple[PhraseCanaries, Ints | None, int | None]:
    """Return the canaries of a file's content."""
    if content.get("version", _VERSION) != _VERSION:
        raise InputError(f"{path} has version {content['version']}, and only version {_VERSION} can be read")
    entries = content["canaries"]
    if not entries:
        raise InputError(f"{path} has no canaries: the list is empty")
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict) or entry.get("planted") not in (True, False):
            raise InputError(f'canary {number} needs "planted": true or false (was it in the training data?)')
    language = _language(content, path)
    tokens = [_tokens(entry, number, language.vocabulary) for number, entry in enumerate(entries)]
    lengths = {len(sequence) for sequence in tokens}
    if len(lengths) > 1:
        raise InputError(f"{path}: all canaries must have the same number of words, got {sorted(lengths)}")
    each = [Configuration(float(entry.get("p_u", 0)), float(entry.get("p_e", 0))) for entry in entries]
    configurations = tuple(sorted(set(each), key=lambda configuration: configuration.frequency))
    canaries = PhraseCanaries(
        phrases=np.array(tokens, dtype=np.int64),
        configurations=configurations,
        configuration_index=np.array([configurations.index(configuration) for configuration in each]),
        inserted=np.array([bool(entry["planted"]) for entry in entries]),
        language=language,
        design=content.get("design", "fixed"),
        seed=check_count("seed", content.get("seed", 0), least=0),
    )
    if not all("users" in entry for entry in entries):
        return canaries, None, None
    users = np.array([check_count("users", entry["users"], least=0) for entry in entries])
    most = content.get("most_users")
    return canaries, users, None if most is None else check_count("most_users", most, least=int(users.max()))


def _language(content: dict[str, Any], path: Path) -> Language:
    """Return the language of a file's canaries."""
    stored = content.get("vocabulary")
    vocabulary = None if stored is None else Vocabulary.from_json(stored, str(path))
    size = check_count("size", content["size"] if vocabulary is None else len(vocabulary))
    first, stop = content.get("words") or (len(MARKS), size)
    if not 0 <= first < stop <= size:
        raise InputError(f"words must be a range within 0..{size}, got {first} to {stop}")
    return Language(size=size, words=range(first, stop), begin=content.get("begin", BEGIN), vocabulary=vocabulary)


def _tokens(entry: Any, number: int, vocabulary: Vocabulary | None) -> list[int]:
    """Return the tokens of one canary, looked up in the vocabulary if it has only a phrase."""
    if "tokens" in entry:
        return [check_count("a token", token, least=0) for token in entry["tokens"]]
    if vocabulary is None:
        raise InputError(f"canary {number} has no tokens, and the file has no vocabulary to look up its words")
    if "phrase" not in entry:
        raise InputError(f"canary {number} has neither tokens nor a phrase")
    words = str(entry["phrase"]).split() if vocabulary.level == "words" else list(entry["phrase"])
    tokens = [int(token) for token in vocabulary.lookup(words)]
    if UNKNOWN in tokens:
        word = words[tokens.index(UNKNOWN)]
        raise InputError(f"canary {number} has the word {word!r}, which is not in the vocabulary")
    return tokens


def load_model(training: TrainingSettings, canaries: PhraseCanaries, weights: Path) -> nn.Module:
    """Return the model that the training settings name, with stored weights.

    Args:
        training: Names the model, its settings and its device.
        canaries: Canaries whose language tells the size of the model.
        weights: A safetensors file.

    Raises:
        InputError: If the file cannot be read, or does not fit the model.
    """
    language = canaries.language
    task = Task(
        input_shape=(len(language.context) + canaries.length,),
        classes=language.size,
        tokens=language.size,
        per_position=True,
        ignored=0,
    )
    name = training.model or default_model(task)
    module = build_model(name, task, _model_settings(training))
    try:
        module.load_state_dict(read_tensors(weights))
    except RuntimeError as error:
        details = " ".join(str(error).split())
        raise InputError(f"{weights} does not fit the model {name}: {details:.300}") from None
    return moved(module, training.device)


def save_weights(module: nn.Module, path: Path) -> None:
    """Write a model's weights as a safetensors file."""
    weights = {name: tensor.cpu().contiguous() for name, tensor in module.state_dict().items()}
    write_whole(path, lambda beside: beside.write_bytes(serialize(weights)))


def _model_settings(training: TrainingSettings) -> dict[str, float]:
    """Return the model's settings; the defaults belong to the default model and are not passed to any other."""
    defaults = TextTrainingSettings()
    if training.model != defaults.model and training.model_settings == defaults.model_settings:
        return {}
    return training.model_settings
