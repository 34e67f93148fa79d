"""All runs in a directory: the progress and headline of each."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coalmine.errors import InputError
from coalmine.report.subjects import subjects
from coalmine.results.directory import RunDirectory
from coalmine.results.manifest import REPORT, verify
from coalmine.results.result import in_json
from coalmine.results.saved import read_run_directory, refusing_damage

_TAIL = 65_536


def run_directories(root: Path) -> dict[str, Path]:
    """Return the runs directly in ``root``, by name. Symbolic links to elsewhere are skipped."""
    try:
        inside = sorted(root.iterdir())
    except OSError as error:
        raise InputError(f"{root} cannot be read: {error.strerror or error}") from None
    top = root.resolve()
    return {path.name: path for path in inside if path.resolve().parent == top and _holds_a_run(path)}


def report_of(root: Path, name: str) -> Path | None:
    """Return the report of a listed run, if it is a file inside the run's own directory."""
    directory = run_directories(root).get(name)
    if directory is None:
        return None
    path = directory / REPORT
    return path if path.is_file() and path.resolve().parent == directory.resolve() else None


class Overview:
    """Reads the runs repeatedly, and unchanged results only once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._read: dict[Path, tuple[tuple[int, int], dict[str, Any]]] = {}

    def runs(self) -> list[dict[str, Any]]:
        """Return one entry per run, ready for JSON, the latest change first."""
        entries = [self._entry(name, path) for name, path in run_directories(self.root).items()]
        return sorted(entries, key=lambda entry: str(entry["changed"]), reverse=True)

    def _entry(self, name: str, path: Path) -> dict[str, Any]:
        entry: dict[str, Any] = {"name": name, "title": name, "changed": "", "progress": "", "message": ""}
        entry |= {"unit": "", "claim": None, "bound": None, "verdict": ""}
        entry |= {"report": report_of(self.root, name) is not None}
        directory = RunDirectory(path)
        try:
            if directory.exists:
                entry["changed"] = str(directory.about().get("changed"))[:40]
                entry["state"], entry["message"] = directory.standing()
            else:
                entry |= {"changed": _changed(path / "result.json"), "state": "saved"}
            if entry["state"] == "running":
                entry["progress"] = last_words(path / "log.jsonl")
            elif entry["state"] == "stopped":
                entry["message"] = f"{entry['message']}; continue with `coalmine resume`".lstrip("; ")
            if (path / "result.json").is_file():
                entry |= self._headline(path)
        except InputError as error:
            entry |= {"state": "unreadable", "message": str(error)}
        return entry

    def _headline(self, path: Path) -> dict[str, Any]:
        verify(path)
        try:
            stat = (path / "result.json").stat()
        except OSError as error:
            raise InputError(f"{path / 'result.json'} cannot be read: {error.strerror or error}") from None
        stamp = stat.st_mtime_ns, stat.st_size
        kept = self._read.get(path)
        if kept is None or kept[0] != stamp:
            kept = stamp, headline(path)
            self._read[path] = kept
        return kept[1]


def headline(path: Path) -> dict[str, Any]:
    """Return what the report leads with: the unit, its claim, its strongest bound and the verdict."""
    with refusing_damage(path):
        run = read_run_directory(path)
        group = subjects(run)[0].lead
    strongest = group.strongest
    bound = None if strongest is None else strongest.decisive
    return {
        "title": run.title,
        "unit": group.title,
        "claim": in_json(group.claim),
        "bound": in_json(None if bound is None else bound.epsilon),
        "verdict": group.verdict.value,
    }


def last_words(log: Path) -> str:
    """Return how far a run is, from the end of its log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL))
            end = file.read(_TAIL)
    except OSError:
        return ""
    for raw in reversed(end.splitlines()):
        try:
            event = json.loads(raw)
        except (ValueError, RecursionError):
            continue  # the first line may be cut off, the last one half written
        if not isinstance(event, dict):
            continue
        if event.get("event") == "round":
            done = event["round"] + 1 if isinstance(event.get("round"), int) else "?"
            live = "; ".join(map(str, event["live"])) if isinstance(event.get("live"), list) else ""
            return f"{event.get('what')}: round {done} of {event.get('rounds')}" + (f"; {live}" if live else "")
        if event.get("event") == "found":
            return f"{event.get('part')} is done"
    return ""


def _holds_a_run(path: Path) -> bool:
    """Whether a directory holds a run or saved results."""
    return (path / "run.json").is_file() or (path / "result.json").is_file()


def _changed(path: Path) -> str:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(timespec="milliseconds")
    except OSError:
        return ""
