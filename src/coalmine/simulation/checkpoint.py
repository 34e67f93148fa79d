"""The whole state of a training in a directory: tensors in safetensors, all else in JSON. No pickle.

Nothing random is in it: every draw is a function of the seed and the round.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as serialized
from torch import Tensor

from coalmine.errors import InputError
from coalmine.files import write_json, write_whole
from coalmine.simulation.optimizers import State as OptimizerState

FORMAT = 1
_FILE = "checkpoint.json"

Metrics = dict[str, float]


@dataclass
class TrainingState:
    """Where a training is: the model (d,), the optimizer's memory, the clip norm, the rounds done, what they gave.

    ``audits`` has what each audit must remember; it is filled in when a checkpoint is written or read.
    """

    model: Tensor
    optimizer: OptimizerState = field(default_factory=dict)
    clip_norm: float = math.inf
    round: int = 0
    history: list[Metrics] = field(default_factory=list)
    audits: list[dict[str, Tensor]] = field(default_factory=list)


def save(state: TrainingState, directory: Path, settings: Mapping[str, str]) -> None:
    """Write the state; a kill at any moment leaves either the old one or the new one.

    ``settings`` says which training it is of.
    """
    name = f"round-{state.round:06d}.safetensors"
    tensors = {"model": state.model}
    tensors |= {f"optimizer.{key}.{i}": t for key, some in state.optimizer.items() for i, t in enumerate(some)}
    tensors |= {f"audit.{i}.{key}": t for i, some in enumerate(state.audits) for key, t in some.items()}
    write_whole(directory / name, lambda path: path.write_bytes(serialized(tensors)))
    content = {
        "format": FORMAT,
        "round": state.round,
        "clip_norm": None if math.isinf(state.clip_norm) else state.clip_norm,
        "tensors": name,
        "settings": dict(settings),
        "history": state.history,
    }
    write_json(directory / _FILE, content)
    for other in directory.glob("round-*.safetensors"):
        if other.name != name:
            other.unlink()


def holds_one(directory: Path) -> bool:
    """Whether there is a checkpoint in ``directory``."""
    return (directory / _FILE).is_file()


def load(directory: Path, settings: Mapping[str, str]) -> TrainingState:
    """Read a state back; refused where it is of another training, cut short or from a newer version."""
    path = directory / _FILE
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        if not isinstance(content, dict):
            raise InputError(f"{path} is not a checkpoint: it must hold a JSON object")
        if content["format"] != FORMAT:
            raise InputError(f"{path} has format {content['format']}, this version of coalmine reads format {FORMAT}")
        for key, value in settings.items():
            theirs = content["settings"].get(key)
            if theirs != value:
                seeded = "; make your model after torch.manual_seed" if key == "the first model" else ""
                raise InputError(f"{path} is of another training: there {key} is {theirs}, here {value}{seeded}")
        if not (directory / content["tensors"]).is_file():
            raise InputError(f"the checkpoint in {directory} is not whole: {content['tensors']} is missing")
        # cloned into aligned memory: the last bits of a product may depend on where its factors begin
        tensors = {name: tensor.clone() for name, tensor in load_file(directory / content["tensors"]).items()}
        clip_norm = content["clip_norm"]
        return TrainingState(
            model=tensors["model"],
            optimizer=_optimizer_state(tensors),
            clip_norm=math.inf if clip_norm is None else float(clip_norm),
            round=int(content["round"]),
            history=list(content["history"]),
            audits=_audit_states(tensors),
        )
    except FileNotFoundError:
        raise InputError(f"there is no checkpoint in {directory}: it has no {_FILE}") from None
    except (ValueError, KeyError, TypeError, OSError, SafetensorError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the checkpoint in {directory} cannot be read: {error}") from None


def _optimizer_state(tensors: Mapping[str, Tensor]) -> OptimizerState:
    numbered: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition(".")
        if kind == "optimizer":
            key, _, number = rest.rpartition(".")
            numbered.setdefault(key, {})[int(number)] = tensor
    return {key: [some[i] for i in range(len(some))] for key, some in numbered.items()}


def _audit_states(tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    found: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition(".")
        if kind == "audit":
            number, _, key = rest.partition(".")
            found.setdefault(int(number), {})[key] = tensor
    return [found.get(number, {}) for number in range(max(found, default=-1) + 1)]
