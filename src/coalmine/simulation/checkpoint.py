"""Checkpoints: the whole state of a training in a directory, tensors as safetensors and the rest as JSON, no pickle.

There is no random state to save: every draw is a function of the seed and the round (`coalmine.seeds`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save as serialized
from torch import Tensor

from coalmine.errors import InputError
from coalmine.files import remove, write_json, write_whole
from coalmine.reading import parse_json, read_tensors, read_text
from coalmine.simulation.optimizers import OptimizerState

FORMAT = 1
_FILE = "checkpoint.json"

Metrics = dict[str, float]


@dataclass
class TrainingState:
    """The state of a training after ``round`` rounds.

    Attributes:
        model: Parameters of the global model, shape (d,).
        optimizer: State of the server's optimizer.
        clip_norm: Clip norm of the next round.
        round: Number of completed rounds.
        history: Metrics of each completed round.
        audits: State of each audit; filled in when a checkpoint is written or read.
    """

    model: Tensor
    optimizer: OptimizerState = field(default_factory=dict)
    clip_norm: float = math.inf
    round: int = 0
    history: list[Metrics] = field(default_factory=list)
    audits: list[dict[str, Tensor]] = field(default_factory=list)


def save(state: TrainingState, directory: Path, settings: Mapping[str, str]) -> None:
    """Write a checkpoint atomically: a kill at any moment leaves either the old one or the new one.

    ``settings`` identify the training that the state belongs to.
    """
    name = f"round-{state.round:06d}.safetensors"
    tensors = {"model": state.model}
    tensors |= {f"optimizer.{key}.{i}": t for key, values in state.optimizer.items() for i, t in enumerate(values)}
    tensors |= {f"audit.{i}.{key}": t for i, values in enumerate(state.audits) for key, t in values.items()}
    tensors = {key: tensor.cpu() for key, tensor in tensors.items()}
    write_whole(directory / name, lambda path: path.write_bytes(serialized(tensors)))
    content = {
        "format": FORMAT,
        "round": state.round,
        "clip_norm": None if math.isinf(state.clip_norm) else state.clip_norm,
        "tensors": name,
        "settings": dict(settings),
        "history": state.history,
    }
    # The JSON file names the tensors' file, so replacing it is what switches from the old checkpoint to the new one.
    write_json(directory / _FILE, content)
    _remove_others(directory, name)


def _remove_others(directory: Path, name: str) -> None:
    """Remove the tensors of earlier checkpoints."""
    for other in directory.glob("round-*.safetensors"):
        if other.name != name:
            remove(other)


def holds_one(directory: Path) -> bool:
    """Whether ``directory`` holds a checkpoint."""
    return (directory / _FILE).is_file()


def load(directory: Path, settings: Mapping[str, str]) -> TrainingState:
    """Read a checkpoint; raises `InputError` if it is of another training, incomplete or of another format."""
    path = directory / _FILE
    if not path.is_file():
        raise InputError(f"there is no checkpoint in {directory}: {_FILE} is missing")
    try:
        content: dict[str, Any] = parse_json(read_text(path), path)
        _check_content(content, path, settings)
        if not (directory / content["tensors"]).is_file():
            raise InputError(f"the checkpoint in {directory} is incomplete: {content['tensors']} is missing")
        _remove_others(directory, content["tensors"])  # left by a process that was killed while it saved
        # Clone into aligned memory: the last bits of a matrix product can depend on the alignment of its factors.
        tensors = {name: tensor.clone() for name, tensor in read_tensors(directory / content["tensors"]).items()}
        clip_norm, audits = content["clip_norm"], _by_group(tensors, "audit")
        return TrainingState(
            model=tensors["model"],
            optimizer={
                key: [values[str(i)] for i in range(len(values))]
                for key, values in _by_group(tensors, "optimizer").items()
            },
            clip_norm=math.inf if clip_norm is None else float(clip_norm),
            round=int(content["round"]),
            history=list(content["history"]),
            audits=[audits.get(str(i), {}) for i in range(max(map(int, audits), default=-1) + 1)],
        )
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, OSError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the checkpoint in {directory} cannot be read: {error}") from None


def _check_content(content: object, path: Path, settings: Mapping[str, str]) -> None:
    """Raise `InputError` unless a checkpoint has the right format and is of the training with these settings."""
    if not isinstance(content, dict):
        raise InputError(f"{path} is not a checkpoint: it must contain a JSON object")
    if content["format"] != FORMAT:
        raise InputError(f"{path} has format {content['format']}, this version of coalmine reads format {FORMAT}")
    for key, value in settings.items():
        saved = content["settings"].get(key)
        if saved != value:
            hint = ". Call torch.manual_seed before building the model" if key == "the first model" else ""
            raise InputError(
                f"{path} belongs to another training: {key} is {saved} in the checkpoint and {value} here{hint}"
            )


def _by_group(tensors: Mapping[str, Tensor], kind: str) -> dict[str, dict[str, Tensor]]:
    """The tensors named ``KIND.GROUP.NAME``, by group and name."""
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        first, *rest = name.split(".", 2)
        if first == kind:
            groups.setdefault(rest[0], {})[rest[1]] = tensor
    return groups
