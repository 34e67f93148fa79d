"""The manifest of a run directory: the SHA-256 digest of every file, so that a changed one is noticed.

``manifest.sha256`` has the format of ``sha256sum``, one line per file. While a file is being replaced it has two lines,
one for the old content and one for the new: a process killed between writing the manifest and renaming the file leaves
a directory that is still as its manifest says. docs/integrity.md says what it protects against, and what it does not.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path, PurePosixPath

from coalmine.errors import InputError
from coalmine.files import announcing, write_text

NAME = "manifest.sha256"
RUN, RESULT, PROVENANCE, LOG, REPORT = "run.json", "result.json", "provenance.json", "log.jsonl", "report.html"

_ABSENT = "-"  # in place of the digest of a file that is about to be created or removed
_READ = {".json", ".npz", ".safetensors", ".toml"}  # what coalmine reads; other files in a run are not its business
_DIGITS = 64
_LONGEST = 255  # bytes of a file's path in the directory
_UNPORTABLE = re.compile(r'[<>:"\\|?*\x00-\x1f]|[. ]$|^(con|prn|aux|nul|com[0-9]|lpt[0-9])(\.|$)', re.IGNORECASE)
_TICK = 2 * 10**9  # nanoseconds
_ATTEMPTS = 20  # to read a directory in which a run is writing


class Manifest:
    """The digests of a directory's files.

    Args:
        root: The directory.
        digests: The accepted digests of each file by its path in the directory, the current one last.
    """

    def __init__(self, root: Path, digests: dict[str, list[str]]) -> None:
        self.root, self.digests = root, digests

    @classmethod
    def read(cls, root: Path) -> Manifest | None:
        """Return the manifest of a directory, or None if it has none.

        Raises:
            InputError: If it cannot be read.
        """
        path = root / NAME
        try:
            *lines, end = path.read_bytes().decode("utf-8").split("\n")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read: {error}") from None
        if end:
            raise InputError(f"{path}, line {len(lines) + 1} is damaged: it does not end, so others may be missing")
        digests: dict[str, list[str]] = {}
        for number, line in enumerate(lines, start=1):
            digest, separator, name = line.partition("  ")
            parts = PurePosixPath(name).parts
            inside = bool(parts) and ".." not in parts and not name.startswith("/")
            if not (separator and inside and (digest == _ABSENT or len(digest) == _DIGITS)):
                raise InputError(f"{path}, line {number} is damaged: it must hold a digest and the name of a file")
            digests.setdefault(name, []).append(digest)
        check_portable(digests, path)
        return cls(root, digests)

    @classmethod
    def of_files(cls, root: Path) -> Manifest:
        """Return a manifest of the files of a run as they are now."""
        names = _readable(root)
        check_portable(names, root)
        return cls(root, {name: [file_digest(root / name)] for name in names})

    @property
    def fingerprint(self) -> str:
        """The SHA-256 digest of the lines of all files that results rest on: one number for a whole directory.

        ``run.json``, which changes when a finished run is resumed, and the report, which shows the fingerprint, are
        left out.
        """
        lines = [line for name, line in self._lines() if name not in (RUN, REPORT)]
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def problem(self) -> str | None:
        """Return what is wrong with the files as a sentence, or None."""
        for name, accepted in self.digests.items():
            path = self.root / name
            digest = file_digest(path) if path.is_file() else _ABSENT
            if digest in accepted:
                continue
            if digest == _ABSENT:
                return f"{path} is missing, but {NAME} lists it"
            same = next((other for other, digests in self.digests.items() if digest in digests), None)
            swapped = "" if same is None else f", and has the content of {same}"
            return f"{path} was changed after coalmine wrote it: its digest differs from that in {NAME}{swapped}"
        added = next((name for name in _readable(self.root) if name not in self.digests), None)
        return None if added is None else f"{self.root / added} does not belong to the run: {NAME} does not list it"

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Keep the manifest up to date with every file that `coalmine.files` writes into the directory."""
        try:
            with announcing(self._announced):
                yield
        except BaseException:
            with suppress(InputError):  # the first error matters more than a full disk afterwards
                self.write()
            raise
        self.write()

    def write(self) -> None:
        """Write the manifest with one digest for each file; without any file, remove it."""
        self._settle()
        if self.digests:
            self._write()
        else:
            (self.root / NAME).unlink(missing_ok=True)

    def _write(self) -> None:
        write_text(self.root / NAME, "".join(line for _, line in self._lines()))

    def _announced(self, path: Path, new: Path | None) -> None:
        """Accept the file ``new`` in place of ``path``, or that ``path`` is removed, beside what is there now."""
        try:
            name = path.relative_to(self.root).as_posix()
        except ValueError:
            return  # not in this directory
        if name == NAME:
            return
        check_portable(self.digests.keys() | {name}, self.root)
        self._settle()
        before = self.digests.get(name, [_ABSENT])[-1]
        self.digests[name] = [before, _ABSENT if new is None else file_digest(new)]
        self._write()

    def _settle(self) -> None:
        """Keep one digest of each file; of the last announced one that of the file, which may not be in place."""
        for name, accepted in list(self.digests.items()):
            if len(accepted) > 1:
                digest = file_digest(self.root / name)
                self.digests[name] = [digest if digest in accepted else accepted[-1]]
            if self.digests[name] == [_ABSENT]:
                del self.digests[name]

    def _lines(self) -> list[tuple[str, str]]:
        """Return each file with its line or lines."""
        return [
            (name, "".join(f"{digest}  {name}\n" for digest in dict.fromkeys(digests)))
            for name, digests in sorted(self.digests.items())
        ]


def verify(root: Path) -> Manifest:
    """Return the manifest of a directory whose files are as it says.

    Raises:
        InputError: If it has none, or a file was changed, removed or added.
    """
    manifest = Manifest.read(root)
    for _ in range(_ATTEMPTS):
        if manifest is None:
            raise InputError(
                f"{root} has no {NAME}, so nothing says whether its files are those that coalmine wrote: "
                f"`coalmine verify {root} --adopt` recomputes its results and writes one"
            )
        problem = manifest.problem()
        if problem is None:
            return manifest
        again = Manifest.read(root)
        if again is not None and again.digests == manifest.digests:
            break
        manifest = again  # a run has written since: look again
    raise InputError(f"{problem}. Restore it, or run the audit again in another directory")


def check_portable(names: Iterable[str], source: object) -> None:
    """Refuse names of files that Windows or macOS would change, or take for each other.

    A run directory is sent to colleagues. There, names that differ in case or Unicode normalization alone are one
    file, a dot or space at the end is dropped, some names are devices, and long paths do not exist.

    Args:
        names: Paths inside a directory, with slashes.
        source: Where they are from, for the message.

    Raises:
        InputError: If there is such a name.
    """
    taken: dict[str, str] = {}
    for name in sorted(names):
        if len(name.encode()) > _LONGEST or any(_UNPORTABLE.search(part) for part in name.split("/")):
            raise InputError(f"{source} has a file {name!r:.100}, a name that Windows does not allow: rename it")
        same = taken.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
        if same != name:
            raise InputError(
                f"{source} has the files {same!r:.100} and {name!r:.100}, which are one file on macOS and Windows: "
                "rename one"
            )


def file_digest(path: Path) -> str:
    """Return the SHA-256 digest of a file; of one that has not changed since it was last asked for, from memory.

    Raises:
        InputError: If it cannot be read.
    """
    try:
        stat = path.stat()
        stamp = stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
        # A file may change twice within one tick of the clock of its file system.
        settled = time.time_ns() - max(stamp[2:]) > _TICK
        return _digest(path, *stamp) if settled else _digest.__wrapped__(path)
    except FileNotFoundError:
        return _ABSENT
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


@lru_cache(maxsize=4096)
def _digest(path: Path, *stamp: int) -> str:
    """Return the digest of a file; ``stamp`` is what changes with its content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _readable(root: Path) -> list[str]:
    """Return the files that coalmine reads from a directory: those of a run, or the results that `save` wrote.

    Hidden files are temporary ones, or the lock. The log is left out: it grows with every round, and no result rests on
    it.
    """
    if (root / RUN).is_file():
        paths = list(_files(root, {root.resolve()}))
    else:
        saved = [RESULT, REPORT, PROVENANCE, "scores-*.npz", "arrays-*.npz"]
        paths = [path for pattern in saved for path in root.glob(pattern)]
    names = []
    for path in paths:
        parts = path.relative_to(root).parts
        read = path.suffix in _READ or parts == (REPORT,)
        if read and not any(part.startswith(".") for part in parts) and os.path.isfile(path):
            names.append("/".join(parts))
    return sorted(names)


def _files(directory: Path, entered: set[Path]) -> Iterator[Path]:
    """Yield the files below a directory. Links to directories are followed once: what they lead to is read, too."""
    for path in directory.iterdir():
        if not path.is_dir():
            yield path
        elif (target := path.resolve()) not in entered:
            entered.add(target)
            yield from _files(path, entered)
