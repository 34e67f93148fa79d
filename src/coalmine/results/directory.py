"""A run directory: used by one process at a time, with atomic files, a format version, a manifest and a log.

``run.json`` holds version and state, ``config.toml`` the settings, ``log.jsonl`` the events, ``checkpoint/`` the
state of the training, ``parts/`` the results of finished methods, and ``manifest.sha256`` the digests of all of them
but the log. All stay readable if the process is killed at any moment.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows
    import msvcrt

    fcntl = None  # type: ignore[assignment]

from coalmine import __version__
from coalmine.errors import InputError
from coalmine.files import remove, write_json, write_text
from coalmine.reading import read_json, read_text
from coalmine.results import manifest
from coalmine.results.manifest import LOG, NAME, RUN, Manifest

FORMAT = 1
_CONFIG, _LOCK = "config.toml", ".lock"


class RunDirectory:
    """The directory of one run. `claimed` opens it for writing."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def exists(self) -> bool:
        """Whether it holds a run."""
        return (self.path / RUN).is_file()

    @property
    def config(self) -> str:
        """The settings of the run, as TOML."""
        return read_text(self.path / _CONFIG)

    def about(self) -> dict[str, Any]:
        """Return the content of ``run.json``.

        Raises:
            InputError: If there is none, or a newer version wrote it.
        """
        if not self.path.is_dir():
            raise InputError(f"there is no directory {self.path}")
        if not self.exists:
            raise InputError(f"{self.path} holds no coalmine run: {RUN} is missing")
        content = read_json(self.path / RUN)
        written = content.get("format")
        if not isinstance(written, int) or isinstance(written, bool) or written < 1:
            raise InputError(f"{self.path / RUN} is damaged: its format is {written!r:.60}, not a number")
        if written > FORMAT:
            raise InputError(
                f"{self.path} was written by coalmine {content.get('coalmine')!s:.30} (format {written}); this is "
                f"coalmine {__version__}, which reads format {FORMAT}: use the newer version"
            )
        return content

    @contextmanager
    def claimed(self, config: str) -> Iterator[None]:
        """Lock the directory for a run of ``config``, and record how it ends: done, failed or stopped.

        Raises:
            InputError: If another process has it, or it holds a run with other settings.
        """
        with self._locked(), self._manifest(config).recording():
            if self.exists:
                self._check_same(config)
            else:
                write_text(self.path / _CONFIG, config)
            self._state("running")
            try:
                yield
            except BaseException as error:
                if isinstance(error, InputError) and self._nothing_computed():
                    self._let_go()  # the settings can be corrected and the directory reused
                    raise
                interrupted = isinstance(error, KeyboardInterrupt)
                self._state("stopped" if interrupted else "failed", f"{error}"[:2000])
                raise
            self._state("done")

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Lock a directory whose files are as its manifest says, to write more of them.

        Raises:
            InputError: If another process has it, or its files were changed.
        """
        with self._locked(patience=30), manifest.verify(self.path).recording():
            yield

    def _manifest(self, config: str) -> Manifest:
        """Return the manifest for a run of ``config``: the directory's own after a check of its files, or a new one."""
        self._remove_temporary_files()
        if self.exists:
            self.about()
            return manifest.verify(self.path)
        self._check_free(config)
        # A run that was killed at its start has a manifest, but no run.json yet.
        return Manifest(self.path, {}) if Manifest.read(self.path) is None else manifest.verify(self.path)

    def _remove_temporary_files(self) -> None:
        """Remove what a killed process left half written."""
        for path in [*self.path.glob(".*.new"), *self.path.glob("*/.*.new")]:
            path.unlink(missing_ok=True)

    @contextmanager
    def _locked(self, patience: float = 0.5) -> Iterator[None]:
        """Lock the directory; ``patience`` is for processes that hold it briefly, to ask whether it is in use.

        If there is no run in it at the end, the lock and the directories that were created for it are removed.
        """
        created = [path for path in (self.path, *self.path.parents) if not path.exists()]
        lock = self._open_lock(patience)
        _held.add(lock)
        try:
            yield
        finally:
            if not self.exists:
                with suppress(OSError):  # a directory that holds anything stays
                    (self.path / _LOCK).unlink()
                    for path in created:
                        path.rmdir()
            _held.discard(lock)
            lock.close()

    def _open_lock(self, patience: float) -> IO[str]:
        """Return the locked file, which is still the directory's own."""
        while True:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                lock = (self.path / _LOCK).open("a+")
            except OSError as error:
                raise InputError(f"{self.path} cannot be written to: {error.strerror or error}") from error
            try:
                _lock(lock, self.path, patience=patience)
                if os.path.samestat(os.fstat(lock.fileno()), os.stat(self.path / _LOCK)):
                    return lock
            except FileNotFoundError:  # whoever held it has removed it
                pass
            except BaseException:
                lock.close()
                raise
            lock.close()

    def log(self, event: str, **facts: Any) -> None:
        """Append a line to ``log.jsonl``."""
        line = json.dumps({"time": _now(), "event": event, **facts}, ensure_ascii=False, default=str)
        try:
            with (self.path / LOG).open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise InputError(f"{self.path / LOG} cannot be written: {error.strerror or error}") from error

    def part(self, name: str) -> Path:
        """Return where a method's results are kept until all methods are done."""
        return self.path / "parts" / f"{name}.json"

    def in_use(self) -> bool:
        """Whether a process has locked it."""
        try:
            with (self.path / _LOCK).open("r+") as lock:
                _lock(lock, self.path)
        except InputError:
            return True
        except OSError:
            return False
        return False

    def standing(self) -> tuple[str, str]:
        """Return the state of the run and a message: those of ``run.json``, unless its process was killed."""
        about = self.about()
        state, message = str(about.get("state"))[:40], str(about.get("message") or "")[:300]
        if self.in_use():
            return "running", ""
        return ("stopped", "its process is gone") if state == "running" else (state, message)

    def _state(self, state: str, message: str = "") -> None:
        before = read_json(self.path / RUN) if self.exists else {"started": _now()}
        content = {
            "format": FORMAT,
            "coalmine": __version__,
            "state": state,
            "message": message,
            "process": os.getpid(),
        }
        try:
            write_json(self.path / RUN, content | {"started": before.get("started"), "changed": _now()})
            self.log(state, message=message)
        except InputError:
            if state == "running":  # if the disk is full at the end of a run, the failure itself matters more
                raise

    def _nothing_computed(self) -> bool:
        bookkeeping = {RUN, _CONFIG, LOG, _LOCK, NAME}
        return all(path.name in bookkeeping for path in self.path.iterdir())

    def _let_go(self) -> None:
        for name in (RUN, _CONFIG, LOG):
            remove(self.path / name)

    def _check_same(self, config: str) -> None:
        theirs, ours = _essential(self.config), _essential(config)
        if theirs == ours:
            return
        differs = next((line for line in theirs if line not in ours), None)
        other = next((line for line in ours if line not in theirs), "nothing")
        raise InputError(
            f"{self.path} holds a run with other settings ({differs or 'nothing'} there, {other} here): choose another "
            "directory"
        )

    def _check_free(self, config: str) -> None:
        taken = [name for name in ("result.json", "checkpoint", "parts") if (self.path / name).exists()]
        if (self.path / _CONFIG).exists() and self.config != config:  # a run of ours that was killed at its start
            taken.append(_CONFIG)
        if taken:
            raise InputError(
                f"{self.path} holds {taken[0]}, which does not belong to a run that can be resumed: choose another "
                "directory"
            )


def _essential(config: str) -> list[str]:
    """Return the lines that the result depends on; another device changes it by rounding only."""
    others = ("workers = ", "checkpoint_every = ", "device = ")
    return [line for line in config.splitlines() if not line.startswith(others)]


def _lock(file: IO[str], path: Path, *, patience: float = 0.0) -> None:
    """Lock an open file, or give up after ``patience`` seconds. The system unlocks it when the process ends."""
    until = time.monotonic() + patience
    while not _locked(file):
        if time.monotonic() >= until:
            raise InputError(f"{path} is in use by another process: wait for it, or choose another directory")
        time.sleep(0.02)


def _locked(file: IO[str]) -> bool:
    try:
        if fcntl is None:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


_held: set[IO[str]] = set()


def _forget_locks() -> None:
    """Close the locks in a forked process: worker processes must not keep a directory locked that their parent used."""
    for lock in _held:
        lock.close()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
