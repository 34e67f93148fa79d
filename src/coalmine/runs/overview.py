"""All runs under a directory in short: how far each is, and what it found."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any

from coalmine.errors import InputError
from coalmine.results.directory import RunDirectory
from coalmine.results.groups import groups_of, in_order
from coalmine.results.saved import read_run_directory, refusing_damage
from coalmine.results.summary import VERDICTS

_TAIL = 65_536


def run_directories(root: Path) -> dict[str, Path]:
    """The runs directly under ``root``, by name; those that lead elsewhere by a link are left out."""
    try:
        inside = sorted(root.iterdir())
    except OSError as error:
        raise InputError(f"{root} cannot be read: {error.strerror or error}") from None
    top = root.resolve()
    return {path.name: path for path in inside if path.resolve().parent == top and _holds_a_run(path)}


def report_of(root: Path, name: str) -> Path | None:
    """The report of a run by its name: one of those listed, and a file of its own directory."""
    directory = run_directories(root).get(name)
    if directory is None:
        return None
    path = directory / "report.html"
    return path if path.is_file() and path.resolve().parent == directory.resolve() else None


class Overview:
    """Reads runs again and again, and what has not changed only once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._read: dict[Path, tuple[tuple[int, int], dict[str, Any]]] = {}

    def runs(self) -> list[dict[str, Any]]:
        """One entry a run, JSON-ready, the one that changed last first."""
        found = [self._entry(name, path) for name, path in run_directories(self.root).items()]
        return sorted(found, key=lambda entry: str(entry["changed"]), reverse=True)

    def _entry(self, name: str, path: Path) -> dict[str, Any]:
        entry: dict[str, Any] = {"name": name, "title": name, "changed": "", "progress": "", "message": ""}
        entry |= {"about": "", "theory": None, "bound": None, "verdict": ""}
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
                entry["message"] = f"{entry['message']}; `coalmine resume` goes on with it".lstrip("; ")
            if (path / "result.json").is_file():
                entry |= self._headline(path)
        except InputError as error:
            entry |= {"state": "cannot be read", "message": str(error)}
        return entry

    def _headline(self, path: Path) -> dict[str, Any]:
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
    """What a run found, in short: what the report tells first, its promise and its strongest bound."""
    with refusing_damage(path):
        run = read_run_directory(path)
        first = in_order(groups_of(run))[0]
    best = first.strongest
    refuted = best is not None and best.refuted
    return {
        "title": run.title,
        "about": first.title,
        "theory": _in_json(first.promise),
        "bound": _in_json(None if best is None else best.bound),
        "verdict": VERDICTS["none" if first.promise is None else "refuted" if refuted else "consistent"],
    }


def last_words(log: Path) -> str:
    """How far a run is, from the end of its log."""
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
            continue  # the first line may be cut off, and the last one not yet whole
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
    """Whether a run was started here, or results were saved."""
    return (path / "run.json").is_file() or (path / "result.json").is_file()


def _changed(path: Path) -> str:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(timespec="milliseconds")
    except OSError:
        return ""


def _in_json(value: float | None) -> float | str | None:
    return "inf" if value == inf else value
