"""A run directory: used by one process at a time, with atomic files, a format version and a log.

``run.json`` holds version and state, ``config.toml`` the settings, ``log.jsonl`` the events, ``checkpoint/`` the
state of the training and ``parts/`` the results of finished methods. All stay readable if the process is killed at any
moment. `coalmine.results.io` writes what a finished run adds: results, scores and the manifest.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows
    import msvcrt

    fcntl = None  # type: ignore[assignment]

from coalmine import __version__
from coalmine.errors import InputError
from coalmine.files import read_json, read_text, write_json, write_text

RUN, RESULT, PROVENANCE, LOG, REPORT = "run.json", "result.json", "provenance.json", "log.jsonl", "report.html"
FORMAT = 2
CONFIG, _LOCK = "config.toml", ".lock"
_PATIENCE = 0.5  # seconds; other processes hold the lock briefly, to ask whether the directory is in use


@dataclass(frozen=True)
class RunDirectory:
    """The directory of one run. `claimed` opens it for writing."""

    path: Path

    @property
    def exists(self) -> bool:
        """Whether it holds a run."""
        return (self.path / RUN).is_file()

    @property
    def config(self) -> str:
        """The settings of the run, as TOML."""
        return read_text(self.path / CONFIG)

    def about(self) -> dict[str, Any]:
        """Return the content of ``run.json``.

        Raises:
            InputError: If there is none, or another version wrote it.
        """
        if not self.exists:
            raise InputError(f"{self.path} holds no coalmine run: {RUN} is missing")
        content = read_json(self.path / RUN)
        if content.get("format") != FORMAT:
            raise InputError(
                f"{self.path} was written by coalmine {content.get('coalmine')!s:.30} (format "
                f"{content.get('format')!s:.30}); this is coalmine {__version__}, which reads format {FORMAT}"
            )
        return content

    @contextmanager
    def claimed(self, config: str) -> Iterator[None]:
        """Lock the directory for a run of ``config``, and record how it ends: done, failed or stopped.

        Raises:
            InputError: If another process has it, or it holds a run with other settings.
        """
        with self._locked():
            # A killed process may have left files half written.
            for path in [*self.path.glob(".*.new"), *self.path.glob("*/.*.new")]:
                path.unlink(missing_ok=True)
            if self.exists:
                self.about()
                # What the result depends on; another device changes it by rounding only.
                others = ("workers = ", "checkpoint_every = ", "device = ")
                theirs, ours = (
                    [line for line in text.splitlines() if not line.startswith(others)]
                    for text in (self.config, config)
                )
                for differs, other in zip_longest(theirs, ours, fillvalue="nothing"):
                    if differs != other:
                        raise InputError(
                            f"{self.path} holds a run with other settings ({differs} there, {other} here): choose "
                            "another directory"
                        )
            else:
                taken = [name for name in (RESULT, "checkpoint", "parts") if (self.path / name).exists()]
                if (self.path / CONFIG).exists() and self.config != config:  # the same: a run killed at its start
                    taken.append(CONFIG)
                for name in taken:
                    raise InputError(f"{self.path} holds {name}, which belongs to no run: choose another directory")
                write_text(self.path / CONFIG, config)
            self._state("running")
            try:
                yield
                self._check_in_place()
            except BaseException as error:
                if not self.exists:
                    raise
                bookkeeping = {RUN, CONFIG, LOG, _LOCK}
                nothing_computed = {path.name for path in self.path.iterdir()} <= bookkeeping
                if isinstance(error, InputError) and nothing_computed:
                    # The settings can be corrected and the directory reused.
                    for name in (RUN, CONFIG, LOG):
                        (self.path / name).unlink(missing_ok=True)
                    raise
                with suppress(InputError):  # on a full disk, the failure itself matters more
                    self._state("stopped" if isinstance(error, KeyboardInterrupt) else "failed", f"{error}"[:2000])
                raise
            self._state("done")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the directory. If there is no run in it at the end, remove what was created for the lock."""
        created = [path for path in (self.path, *self.path.parents) if not path.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / _LOCK).open("a+")
        except OSError as error:
            raise InputError(f"{self.path} cannot be written to: {error.strerror or error}") from error
        with lock:
            until = time.monotonic() + _PATIENCE
            while not _try_lock(lock):
                if time.monotonic() >= until:
                    raise InputError(
                        f"{self.path} is in use by another process: wait for it, or choose another directory"
                    )
                time.sleep(0.02)
            try:
                yield
            finally:
                if not self.exists:
                    with suppress(OSError):  # a directory that holds anything stays
                        (self.path / _LOCK).unlink()
                        for path in created:
                            path.rmdir()

    def _check_in_place(self) -> None:
        """Refuse to go on in a directory that was moved: whatever is written would be half of another one."""
        if not self.exists:
            raise InputError(
                f"{self.path} was moved or deleted during the run: `coalmine resume` continues it where it is now"
            )

    def log(self, event: str, **facts: Any) -> None:
        """Append a line to ``log.jsonl``."""
        self._check_in_place()
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, "event": event, **facts}, ensure_ascii=False, default=str)
        try:
            with (self.path / LOG).open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise InputError(f"{self.path / LOG} cannot be written: {error.strerror or error}") from error

    def standing(self) -> tuple[str, str]:
        """Return the state of the run and a message: those of ``run.json``, unless its process was killed."""
        about = self.about()
        state, message = str(about.get("state"))[:40], str(about.get("message") or "")[:300]
        with suppress(OSError), (self.path / _LOCK).open("r+") as lock:
            if not _try_lock(lock):
                return "running", ""
        return ("stopped", "its process is gone") if state == "running" else (state, message)

    def _state(self, state: str, message: str = "") -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        before = read_json(self.path / RUN) if self.exists else {"started": now}
        content = {
            "format": FORMAT,
            "coalmine": __version__,
            "state": state,
            "message": message,
            "process": os.getpid(),
            "started": before.get("started"),
            "changed": now,
        }
        write_json(self.path / RUN, content)
        self.log(state, message=message)


def _try_lock(file: IO[str]) -> bool:
    """Lock an open file, if no other process has. The system unlocks it when the process ends."""
    try:
        if fcntl is None:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
