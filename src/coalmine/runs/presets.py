"""Settings files to begin with: one for each common case, every setting explained in a comment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coalmine.config import toml
from coalmine.errors import InputError
from coalmine.methods import registry
from coalmine.runs.settings import run_from_mapping


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A case that ``coalmine init`` knows.

    Args:
        about: What it is for, one line.
        tables: The settings it changes, by table. All others keep their defaults.
    """

    about: str
    tables: Mapping[str, Mapping[str, Any]]

    def questions(self) -> Iterator[tuple[str, str, str]]:
        """Yield what a user may want to change: the setting, the question, and the default answer."""
        for path, question in _QUESTIONS.items():
            table, key = path.split(".")
            if key in self.tables.get(table, {}):
                yield path, question, str(self.tables[table][key])


_QUESTIONS = {
    "training.data": "data: a name or a file",
    "training.model": "model: a name or path.py:function",
    "training.noise_multiplier": "noise multiplier (0 for none)",
    "training.clip_norm": "clip norm",
    "ldp.data": "data of the LDP audit: a name or a file",
    "ldp.mechanism": "local mechanism: ldp-sgd, gaussian, privunit or path.py:function",
    "ldp.epsilon": "claimed ε of each report",
}

_TEXT = {
    "data": "generated-text",
    "model": "word-lstm",
    "rounds": 40,
    "cohort": "poisson:0.2",
    "clip_norm": "0.5",
    "noise_multiplier": 0.5,
    "seed": 0,
}

PRESETS = {
    "digits": Preset(
        about="a small image classifier on bundled digits: one-shot and CANIFE, about a minute",
        tables={
            "run": {"title": "Digits"},
            "training": {
                "data": "digits",
                "partition": "iid:150",
                "model": "mlp",
                "rounds": 40,
                "cohort": "poisson:0.5",
                "clip_norm": "1.0",
                "noise_multiplier": 2.0,
                "seed": 0,
            },
            "one-shot": {"view": ["final-change", "updates"], "delta": 1e-5},
            "canife": {"every": 20, "trials": 100, "delta": 1e-5},
        },
    ),
    "text": Preset(
        about="a language model of users' texts: one-shot, secret sharer and exposure",
        tables={
            "run": {"title": "Text"},
            "training": _TEXT,
            "one-shot": {"view": ["final-change"], "delta": 1e-5},
            "secret-sharer": {"p_u": [0.01, 0.03], "p_e": [0.1, 1.0], "references": 100_000},
            "exposure": {"delta": 0.0},
        },
    ),
    "images": Preset(
        about="images from a file or a named data set: one-shot with three views",
        tables={
            "run": {"title": "Images", "baseline": True},
            "training": {
                "data": "fashion-mnist",
                "client": {"learning_rate": 0.1},  # the default of 0.5 diverges on this CNN
                "partition": "iid:100",
                "rounds": 50,
                "cohort": "poisson:0.3",
                "clip_norm": "1.0",
                "noise_multiplier": 1.0,
                "seed": 0,
            },
            "one-shot": {"view": ["final", "final-change", "updates"], "delta": 1e-5},
        },
    ),
    "local": Preset(
        about="a local mechanism that randomizes each gradient: six adversaries, no training",
        tables={
            "run": {"title": "Local privacy"},
            "ldp": {"data": "digits", "mechanism": "ldp-sgd", "epsilon": [1, 4], "trials": 10_000, "seed": 0},
        },
    ),
    "all": Preset(
        about="five methods on generated text and digits, a few minutes",
        tables={
            "run": {"title": "All methods"},
            "training": _TEXT,
            "one-shot": {"view": ["final-change", "updates"], "delta": 1e-5},
            "canife": {"every": 20, "trials": 60},
            "secret-sharer": {"references": 100_000},
            "ldp": {"crafter": ["benign", "dummy-gradient"], "epsilon": [1, 4], "trials": 5000},
            "exposure": {"delta": 0.0},
        },
    ),
}


def for_methods(names: Sequence[str]) -> Preset:
    """Return a preset of these methods with the settings each suggests, and a training if any needs one.

    Raises:
        InputError: If a method is unknown.
    """
    methods = [registry.get(name) for name in names]
    for method in methods:
        if method.settings_type is None:
            raise InputError(f"{method.name} runs only inside an integration, not in a run of its own")
    trainings = {method.training_table for method in methods if method.training_type is not None}
    training = {"training": PRESETS["digits"].tables["training"]} if "training" in trainings else {}
    other_tables = {table: {"seed": 0} for table in sorted(trainings - {"training"})}
    tables = {"run": {"title": ", ".join(names)}, **training, **other_tables, **{m.name: m.init for m in methods}}
    return Preset(about=f"methods: {', '.join(names)}", tables=tables)


def adapted(preset: Preset, answers: Mapping[str, str]) -> Preset:
    """Return the preset with a user's answers to its questions, by ``table.key``."""
    tables: dict[str, dict[str, Any]] = {name: dict(table) for name, table in preset.tables.items()}
    for path, answer in answers.items():
        table, key = path.split(".")
        if answer != str(tables[table][key]):
            tables[table][key] = answer
    return Preset(about=preset.about, tables=tables)


def written(preset: Preset) -> str:
    """Return the settings file: what is set with its meaning, all other settings as comments with their defaults."""
    settings = run_from_mapping(preset.tables)
    tables = {"run": settings.run, **settings.trainings, **settings.methods}
    parts = [toml.table(name, tables[name], explained=True) for name in preset.tables]
    head = f"# {preset.about}\n# Run it with `coalmine run`; docs/config.md lists every setting.\n"
    return "\n".join([head, "\n\n".join(parts), ""])
