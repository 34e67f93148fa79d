"""``coalmine.run``: what ``coalmine run`` does, as a function."""

from __future__ import annotations

from pathlib import Path

from coalmine.errors import check_kind
from coalmine.runs import running
from coalmine.runs.running import Finished
from coalmine.runs.settings import RunSettings, read_run


def run(settings: RunSettings | Path | str, *, out: Path | str | None = None) -> Finished:
    """One training with all audits, of a file or of settings; a run that was stopped goes on.

    ``out`` is its directory. A file's is runs/NAME, by the file's name, if not given, as on the command line; settings
    without one leave nothing behind.
    """
    check_kind("settings", settings, (RunSettings, Path, str), "the path of a file of settings, or a RunSettings")
    directory = None if out is None else Path(out)
    if not isinstance(settings, RunSettings):
        path = Path(settings)
        settings, directory = read_run(path), directory or directory_for(path)
    return running.run(settings, out=directory)


def directory_for(file: Path) -> Path:
    """Where the run of a file goes unless asked otherwise."""
    return Path("runs") / file.stem
