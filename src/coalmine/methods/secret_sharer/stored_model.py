"""What a run stores so that its model can be audited later: ``canaries.json`` and the model's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError
from safetensors.torch import save as serialize
from torch import nn

from coalmine.arrays import Ints
from coalmine.errors import InputError
from coalmine.files import read_json, read_tensors, write_json, write_whole
from coalmine.methods.secret_sharer.method import TextTrainingSettings
from coalmine.methods.secret_sharer.phrases import Configuration, Insertion, Language, PhraseCanaries
from coalmine.simulation.data import Task
from coalmine.simulation.data.text import BEGIN, MARKS, Vocabulary
from coalmine.simulation.flat import moved
from coalmine.simulation.models import build, default_model
from coalmine.simulation.settings import TrainingSettings


class _Canary(BaseModel):
    """One canary of the file. The ``phrase`` is for readers: what counts are its ``tokens``."""

    phrase: str = ""
    tokens: list[Annotated[int, Field(ge=0, lt=2**31)]] = Field(min_length=1)
    p_u: float = Field(0.0, ge=0, le=1)
    p_e: float = Field(0.0, ge=0, le=1)
    planted: StrictBool
    users: int | None = Field(None, ge=0)
    copies: int | None = Field(None, ge=0)


class _CanaryFile(BaseModel):
    """The content of ``canaries.json``. Only ``canaries`` and ``size``, the width of the model's output, are required.

    ``words`` are the first token that stands for text and the end of these tokens; ``begin`` is the mark before each
    phrase, null for none; ``most_users`` is the largest number of users that could have held a canary.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    version: Literal[1] = 1
    size: int = Field(ge=1)
    words: tuple[int, int] | None = None
    begin: int | None = Field(BEGIN, ge=0)
    design: Literal["fixed", "coin-flips"] = "fixed"
    seed: int = Field(0, ge=0)
    most_users: int | None = Field(None, ge=0)
    canaries: list[_Canary] = Field(min_length=1)
    vocabulary: dict[str, Any] | None = None


def write_canaries(insertion: Insertion, path: Path) -> None:
    """Write what `read_canaries` reads."""
    phrases = insertion.phrases
    language, users, copies = phrases.language, insertion.users, insertion.copies
    canaries = []
    for i, phrase in enumerate(phrases.phrases):
        configuration = phrases.configuration(i)
        canary = _Canary(phrase=language.text(phrase), tokens=phrase.tolist(), planted=bool(phrases.inserted[i]))
        canary.p_u, canary.p_e = configuration.p_u, configuration.p_e
        canary.users, canary.copies = int(users[i]), int(copies[i])
        canaries.append(canary)
    content = _CanaryFile(
        size=language.size,
        words=(language.words.start, language.words.stop),
        begin=language.begin,
        design=phrases.design,
        seed=phrases.seed,
        most_users=insertion.most_users,
        canaries=canaries,
        vocabulary=None if language.vocabulary is None else language.vocabulary.to_json(),
    )
    write_json(path, content.model_dump(mode="json"))


def read_canaries(path: Path) -> tuple[PhraseCanaries, Ints | None, int | None]:
    """Read canaries from a JSON file such as ``canaries.json`` of a run; docs/secret-sharer.md has its keys.

    Returns:
        The canaries, the number of users that hold each, shape (n,), and the largest number of users that could hold
        one; None where the file does not say.

    Raises:
        InputError: If the file cannot be read, or has no valid canaries.
    """
    # Pydantic checks types and ranges; what depends on several keys is checked below.
    try:
        content = _CanaryFile.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(f"{path}: {place} is wrong: {first['msg']}, got {first['input']!r:.60}") from None
    vocabulary = None if content.vocabulary is None else Vocabulary.from_json(content.vocabulary, str(path))
    start, stop = content.words or (len(MARKS), content.size)
    if not 0 <= start < stop <= content.size:
        raise InputError(f"{path}: words must be a range within 0..{content.size}, got {start} to {stop}")
    # Ranks are among random phrases of the canaries' length.
    tokens = [canary.tokens for canary in content.canaries]
    lengths = sorted(set(map(len, tokens)))
    if len(lengths) > 1:
        raise InputError(f"{path}: all canaries must have the same number of words, got {lengths}")
    # A file from elsewhere need not say how often canaries were inserted: then all have the configuration (0, 0).
    each = [Configuration(canary.p_u, canary.p_e) for canary in content.canaries]
    configurations = tuple(sorted(set(each), key=lambda configuration: configuration.frequency))
    try:
        canaries = PhraseCanaries(
            phrases=np.array(tokens, dtype=np.int64),
            configurations=configurations,
            configuration_index=np.array([configurations.index(configuration) for configuration in each]),
            inserted=np.array([canary.planted for canary in content.canaries]),
            language=Language(size=content.size, words=range(start, stop), begin=content.begin, vocabulary=vocabulary),
            design=content.design,
            seed=content.seed,
        )
    except InputError as error:  # an unknown word, or no canary that was inserted
        raise InputError(f"{path}: {error}") from None
    # One canary without its number of users leaves the size of the largest group unknown.
    users = [canary.users for canary in content.canaries if canary.users is not None]
    if len(users) < len(canaries):
        return canaries, None, None
    return canaries, np.array(users), content.most_users


def load_model(training: TrainingSettings, canaries: PhraseCanaries, weights: Path) -> nn.Module:
    """Return the model that the training settings name, with stored weights.

    Args:
        training: Names the model, its settings and its device.
        canaries: Canaries whose language tells the size of the model.
        weights: A safetensors file.

    Raises:
        InputError: If the file cannot be read, or does not fit the model.
    """
    # A language model fits any length; phrases after the begin mark are all that it will read.
    language = canaries.language
    task = Task(
        input_shape=(len(language.context) + canaries.length,),
        classes=language.size,
        tokens=language.size,
        per_position=True,
        ignored=0,
    )
    name = training.model or default_model(task)
    # Default settings belong to the default model and are not passed to any other.
    defaults = TextTrainingSettings()
    others = training.model != defaults.model and training.model_settings == defaults.model_settings
    module = build(name, task, seed=0, **({} if others else training.model_settings))
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
