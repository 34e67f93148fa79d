"""Checkpoints: the whole state of a training in one safetensors file, whose metadata hold the rest as JSON. No pickle.

There is no random state to save: every draw is a function of the seed and the round (`coalmine.seeds`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialized
from torch import Tensor

from coalmine.errors import InputError
from coalmine.files import write_whole
from coalmine.simulation.optimizers import OptimizerState

FORMAT = 2
_FILE = "checkpoint.safetensors"

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


def holds_one(directory: Path) -> bool:
    """Whether ``directory`` holds a checkpoint."""
    return (directory / _FILE).is_file()


def save(state: TrainingState, directory: Path, settings: Mapping[str, str]) -> None:
    """Write a checkpoint atomically: a kill at any moment leaves either the old one or the new one.

    ``settings`` identify the training that the state belongs to.
    """
    tensors = {"model": state.model}
    for key, values in state.optimizer.items():
        for i, tensor in enumerate(values):
            tensors[f"optimizer.{key}.{i:06d}"] = tensor  # padded, so that names sort like the parameters
    for i, audit in enumerate(state.audits):
        for key, tensor in audit.items():
            tensors[f"audit.{i}.{key}"] = tensor
    about = {
        "format": FORMAT,
        "round": state.round,
        "clip_norm": state.clip_norm,
        "history": state.history,
        "audits": len(state.audits),
        "settings": dict(settings),
    }
    on_cpu = {name: tensor.cpu() for name, tensor in tensors.items()}
    content = serialized(on_cpu, metadata={"about": json.dumps(about)})
    write_whole(directory / _FILE, lambda path: path.write_bytes(content))


def load(directory: Path, settings: Mapping[str, str]) -> TrainingState:
    """Read a checkpoint; raises `InputError` if it is missing, damaged, of another format or of another training."""
    path = directory / _FILE
    if not path.is_file():
        raise InputError(f"there is no checkpoint in {directory}: {_FILE} is missing")
    try:
        with safe_open(path, framework="pt") as file:
            about: dict[str, Any] = json.loads(file.metadata()["about"])
            # Clone into aligned memory: the last bits of a matrix product can depend on the alignment of its factors.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        _check_settings(about, path, settings)
        state = TrainingState(
            model=tensors.pop("model"),
            clip_norm=float(about["clip_norm"]),
            round=int(about["round"]),
            history=about["history"],
            audits=[{} for _ in range(about["audits"])],
        )
        for name in sorted(tensors):
            kind, group, rest = name.split(".", 2)
            if kind == "optimizer":
                state.optimizer.setdefault(group, []).append(tensors[name])
            else:
                state.audits[int(group)][rest] = tensors[name]
    except (SafetensorError, OSError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the checkpoint {path} cannot be read: {type(error).__name__}: {error}") from None
    return state


def _check_settings(about: Mapping[str, Any], path: Path, settings: Mapping[str, str]) -> None:
    """Raise `InputError` unless a checkpoint has the right format and is of the training with these settings."""
    if about["format"] != FORMAT:
        raise InputError(f"{path} has format {about['format']}, this version of coalmine reads format {FORMAT}")
    for key, value in settings.items():
        saved = about["settings"].get(key)
        if saved != value:
            hint = ". Call torch.manual_seed before building the model" if key == "the first model" else ""
            raise InputError(
                f"{path} belongs to another training: {key} is {saved} in the checkpoint and {value} here{hint}"
            )
