"""The backends: each is imported when a tracker is made, and a missing package is a sentence."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from coalmine.errors import InputError, did_you_mean
from coalmine.files import write_text
from coalmine.integrations.tracking.tracker import Tracker
from coalmine.results.tables import Table


class MLflow(Tracker):
    """A run of MLflow: the active one, or a new one.

    Args:
        uri: Tracking URI or directory for a new run. By default what MLflow is set to (``MLFLOW_TRACKING_URI``), else
            its own default, or the directory ``mlruns`` for mlflow-skinny, which has no database.
        experiment: Name of the experiment for a new run, created if needed.
        name: Name of a new run.

    Raises:
        InputError: If MLflow is not installed.
    """

    def __init__(self, uri: Path | str | None = None, *, experiment: str = "coalmine", name: str | None = None) -> None:
        mlflow = _package("mlflow", "mlflow")
        # A client instead of the functions of the module: those would change where the user's own runs go.
        self._client = client = mlflow.MlflowClient(tracking_uri=_mlflow_uri(mlflow, uri))
        active = mlflow.active_run()
        self._started = active is None
        if active is None:
            known = client.get_experiment_by_name(experiment)
            number = client.create_experiment(experiment) if known is None else known.experiment_id
            active = client.create_run(number, run_name=name)
        self._id: str = active.info.run_id

    def numbers(self, values: Mapping[str, float], round: int) -> None:
        """Log metrics at a step."""
        for name, value in values.items():
            self._client.log_metric(self._id, name, value, step=round)

    def settings(self, texts: Mapping[str, str]) -> None:
        """Log parameters."""
        for name, text in texts.items():
            self._client.log_param(self._id, name, text[:_LONGEST])

    def verdicts(self, texts: Mapping[str, str]) -> None:
        """Set tags, which can be searched for."""
        for name, text in texts.items():
            self._client.set_tag(self._id, name, text)

    def attach(self, name: str, text: str) -> None:
        """Log an artifact."""
        self._client.log_text(self._id, text, name)

    def close(self) -> None:
        """End a run that was started here."""
        if self._started:
            self._client.set_terminated(self._id)


def _mlflow_uri(mlflow: Any, uri: Path | str | None) -> str | None:
    """Return the tracking URI to use, or None for what MLflow is set to."""
    if mlflow.active_run() is not None:
        return None
    if uri is None and not mlflow.is_tracking_uri_set() and importlib.util.find_spec("sqlalchemy") is None:
        uri = "mlruns"
    if uri is None or "://" in str(uri) or str(uri) == "databricks":
        return None if uri is None else str(uri)
    # MLflow wants a confirmation that files are meant. A directory was asked for, or there is nothing else.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return Path(uri).resolve().as_uri()


class TensorBoard(Tracker):
    """Event files of TensorBoard. The report is a file beside them.

    Args:
        directory: Directory for the event files; ``tensorboard --logdir`` shows it.

    Raises:
        InputError: If TensorBoard is not installed.
    """

    def __init__(self, directory: Path | str = "tensorboard") -> None:
        _package("tensorboard", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._directory = Path(directory)
        self._writer: Any = SummaryWriter(str(directory))

    def numbers(self, values: Mapping[str, float], round: int) -> None:
        """Write scalars at a step."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, round)

    def settings(self, texts: Mapping[str, str]) -> None:
        """Write a table of texts."""
        self._writer.add_text("settings", Table("", ["setting", "value"], list(texts.items())).to_markdown())

    def verdicts(self, texts: Mapping[str, str]) -> None:
        """Write a table of texts."""
        self._writer.add_text("verdicts", Table("", ["result", "verdict"], list(texts.items())).to_markdown())

    def attach(self, name: str, text: str) -> None:
        """Write Markdown as text, and other files beside the event files."""
        if name.endswith(".md"):
            self._writer.add_text(Path(name).stem, text)
        else:
            write_text(self._directory / name, text)

    def close(self) -> None:
        """Write what is not yet on disk."""
        self._writer.close()


class WeightsAndBiases(Tracker):
    """A run of Weights & Biases: the active one, or a new one. Offline unless asked otherwise.

    Args:
        directory: Where a new run keeps its files; ``wandb sync`` uploads them.
        project: Name of the project for a new run.
        name: Name of a new run.
        mode: ``"offline"``, ``"online"`` or ``"disabled"``; by default that of ``WANDB_MODE``, else offline.

    Raises:
        InputError: If wandb is not installed.
    """

    def __init__(
        self,
        directory: Path | str | None = None,
        *,
        project: str = "coalmine",
        name: str | None = None,
        mode: Literal["offline", "online", "disabled"] | None = None,
    ) -> None:
        self._wandb = wandb = _package("wandb", "wandb")
        self._started = wandb.run is None
        if self._started:
            if directory is not None:
                Path(directory).mkdir(parents=True, exist_ok=True)
            wandb.init(
                project=project,
                name=name,
                dir=None if directory is None else str(directory),
                mode=mode or os.environ.get("WANDB_MODE", "offline"),
                settings=wandb.Settings(silent=True),
            )
        self._run: Any = wandb.run

    def numbers(self, values: Mapping[str, float], round: int) -> None:
        """Log numbers at a step."""
        self._run.log(dict(values), step=round)

    def settings(self, texts: Mapping[str, str]) -> None:
        """Add to the run's configuration."""
        self._run.config.update(dict(texts))

    def verdicts(self, texts: Mapping[str, str]) -> None:
        """Add to the run's summary."""
        self._run.summary.update(dict(texts))

    def attach(self, name: str, text: str) -> None:
        """Log HTML as a panel, and other files as files of the run."""
        if name.endswith(".html"):
            self._run.log({Path(name).stem: self._wandb.Html(text, inject=False)})
        else:
            path = write_text(Path(self._run.dir) / name, text)
            self._run.save(str(path), base_path=self._run.dir, policy="now")

    def close(self) -> None:
        """End a run that was started here."""
        if self._started:
            self._run.finish()


Backend = Literal["mlflow", "tensorboard", "wandb"]
BACKENDS: tuple[Backend, ...] = ("mlflow", "tensorboard", "wandb")
"""Names of the trackers."""

_LONGEST = 500  # characters of a parameter that every MLflow server takes


def tracker(to: str, *, where: str | None = None, project: str = "coalmine", name: str | None = None) -> Tracker:
    """Return a tracker by the name of its backend.

    Args:
        to: ``"mlflow"``, ``"tensorboard"`` or ``"wandb"``.
        where: MLflow's tracking URI, or the directory for files.
        project: MLflow's experiment, or the project of Weights & Biases.
        name: Name of the run.

    Raises:
        InputError: If there is no such backend, or it is not installed.
    """
    if to == "mlflow":
        return MLflow(where, experiment=project, name=name)
    if to == "tensorboard":
        return TensorBoard(Path(where or "tensorboard") / (name or ""))
    if to == "wandb":
        return WeightsAndBiases(where, project=project, name=name)
    raise InputError(f"there is no tracker {to!r}. {did_you_mean(to, BACKENDS)}")


def _package(name: str, extra: str) -> Any:
    """Import a package, or say how it is installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"{name} is not installed: pip install 'coalmine[{extra}]'") from error
