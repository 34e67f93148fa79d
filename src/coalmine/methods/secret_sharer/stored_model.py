"""Trained models from files, to be audited with the canaries of an earlier run."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as serialize
from torch import nn

from coalmine.errors import InputError
from coalmine.files import write_whole
from coalmine.methods.secret_sharer.phrases import PhraseCanaries
from coalmine.methods.secret_sharer.settings import TextTrainingSettings
from coalmine.simulation.data import Task
from coalmine.simulation.models import default_model
from coalmine.simulation.settings import TrainingSettings, build_model


def load_model(training: TrainingSettings, canaries: PhraseCanaries, weights: Path) -> nn.Module:
    """Return the model that the training settings name, with stored weights.

    Args:
        training: Names the model and its settings.
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
        module.load_state_dict(load_file(weights))
    except FileNotFoundError:
        raise InputError(f"there is no file {weights}") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"{weights} is not a safetensors file: {error}") from None
    except RuntimeError as error:
        details = " ".join(str(error).split())
        raise InputError(f"{weights} does not fit the model {name}: {details:.300}") from None
    return module


def save_weights(module: nn.Module, path: Path) -> None:
    """Write a model's weights as a safetensors file."""
    weights = {name: tensor.contiguous() for name, tensor in module.state_dict().items()}
    write_whole(path, lambda beside: beside.write_bytes(serialize(weights)))


def _model_settings(training: TrainingSettings) -> dict[str, float]:
    """Return the model's settings; the defaults belong to the default model and are not passed to any other."""
    defaults = TextTrainingSettings()
    if training.model != defaults.model and training.model_settings == defaults.model_settings:
        return {}
    return training.model_settings
