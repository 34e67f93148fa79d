"""Damage what coalmine reads, and see what it says: a sentence and exit code 2, or a result, and never a traceback.

``python benchmarks/mutations.py [--examples 500]`` mutates files of settings, files of scores and a run's directory
(cut short, keys removed, types changed, bytes flipped) and prints how often commands refused, accepted, or crashed;
and how often a command that refused had changed a file all the same.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

SETTINGS = """
[training]
partition = "iid:10"
rounds = 3
noise = 0
model_settings = {hidden = 4}
client = {epochs = 1, batch_size = "all"}
[one-shot]
canaries = 10
view = ["final-change", "updates"]
[ldp]
crafter = "dummy-gradient"
epsilon = 2
trials = 60
"""

COMMANDS = ("check", "compare", "resume", "resume anew")
"""What is tried on a damaged run; anew: what the audits found is gone, and computed again from the checkpoint."""

ODD: list[Any] = [None, True, -1, 0, 2**70, 1.5, "", "inf", "nan", "x" * 300, [], [[]], {}, {"a": 1}, "../../x", "\x00"]
ODD_TOML = ["true", "-1", "0", "9" * 30, "1.5", "nan", "-inf", '""', '"x"', "[]", "[[]]", "{}", "{a = 1}", "1979-05-27"]


def call(arguments: list[str]) -> tuple[int, str, str]:
    """The command line in this process: exit code, what it said, and a traceback where it crashed."""
    from coalmine.cli import main as cli

    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["coalmine", *arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main()
        return 0, err.getvalue(), ""
    except SystemExit as stop:
        return int(stop.code or 0), err.getvalue(), ""
    except BaseException:
        return -1, err.getvalue(), traceback.format_exc()
    finally:
        sys.argv = before


def finished_run(root: Path) -> Path:
    """A small run that is done."""
    file = root / "audit.toml"
    file.write_text(SETTINGS)
    code, said, crash = call(["run", str(file), "--out", str(root / "run"), "--quiet"])
    if code:
        raise SystemExit(f"the run to damage did not come about: {said}{crash}")
    return root / "run"


def damaged_bytes(path: Path, rng: random.Random) -> None:
    """Cut a file short, or change some of its bytes."""
    content = bytearray(path.read_bytes())
    if not content or rng.random() < 0.4:
        path.write_bytes(bytes(content[: rng.randrange(len(content) + 1)]))
        return
    for _ in range(rng.choice([1, 1, 3, 20])):
        content[rng.randrange(len(content))] = rng.randrange(256)
    path.write_bytes(bytes(content))


def damaged_json(path: Path, rng: random.Random) -> None:
    """Remove a key somewhere in a JSON file, or put something of another type in its place."""
    content = json.loads(path.read_text())
    place, key = content, rng.choice(list(content))
    while rng.random() < 0.7 and isinstance(place[key], dict | list) and place[key]:
        place = place[key]
        key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
    if rng.random() < 0.3:
        del place[key]
    else:
        place[key] = rng.choice(ODD)
    path.write_text(json.dumps(content))


def damaged_toml(path: Path, rng: random.Random) -> None:
    """Change a line of a TOML file: its value, its key, or whether it is there."""
    lines = path.read_text().splitlines()
    i = rng.randrange(len(lines))
    key, equals, _ = lines[i].partition("=")
    change = rng.random()
    if change < 0.2:
        del lines[i]
    elif change < 0.3:
        lines.insert(i, lines[rng.randrange(len(lines))])
    elif change < 0.4:
        lines[i] = lines[i][::-1]
    elif equals:
        lines[i] = f"{key}= {rng.choice(ODD_TOML)}"
    path.write_text("\n".join(lines) + "\n")


def damaged_scores(path: Path, rng: random.Random) -> None:
    """Change a cell of a .csv file."""
    rows = [line.split(",") for line in path.read_text().splitlines()]
    row = rng.choice(rows)
    row[rng.randrange(len(row))] = rng.choice(["", "nan", "inf", "x", "1e999", "-0", "2", "1,1", '"', "\x00", "член"])
    path.write_text("\n".join(",".join(row) for row in rows))


def damage(path: Path, rng: random.Random) -> None:
    """Some damage that fits the kind of file."""
    special: dict[str, Callable[[Path, random.Random], None]] = {
        ".json": damaged_json, ".toml": damaged_toml, ".csv": damaged_scores,
    }  # fmt: skip
    chosen = special.get(path.suffix, damaged_bytes)
    (damaged_bytes if rng.random() < 0.3 else chosen)(path, rng)


def example(seed: int, run: Path, place: Path, commands: Sequence[str] = COMMANDS) -> tuple[str, str, str]:
    """One mutation and one command: what was done, how it went, and details.

    It went ``refused``, ``accepted``, ``crashed`` or ``overwrote``.
    """
    rng = random.Random(seed)
    copy = place / "run"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(run, copy)
    kind = rng.choice(["settings", "scores", "run", "run", "run"])
    if kind == "settings":
        target = shutil.copy(run / "config.toml", place / "audit.toml")
        words = ["run", str(target), "--out", str(place / "new"), "--quiet", "--set", "training.data=no-such-data"]
    elif kind == "scores":
        target = place / "scores.csv"
        target.write_text("score,member\n" + "".join(f"{rng.gauss(i % 2, 1):.3f},{i % 2}\n" for i in range(30)))
        words = ["estimate", str(target), "--method", "simultaneous"]
    else:
        files = sorted(path for path in copy.rglob("*") if path.is_file() and path.name not in (".lock", "log.jsonl"))
        target = rng.choice(files)
        command = rng.choice(commands)
        words = [command.removesuffix(" anew"), str(copy)] + ([str(run)] if command == "compare" else [])
        if command == "resume anew":
            for part in (copy / "parts").iterdir():
                if part != target:
                    part.unlink()
    damage(Path(target), rng)
    before = contents(place)
    code, said, crash = call(words)
    what = f"{words[0]} with {Path(target).relative_to(place)} damaged (seed {seed})"
    if crash or (code == 2 and "Traceback" in said) or (code == 2 and not said.strip()):
        return what, "crashed", crash or said
    if code == 2 and not before.items() <= contents(place).items():
        return what, "overwrote", said
    return what, {0: "accepted", 1: "accepted", 2: "refused"}[code], said


def contents(place: Path) -> dict[str, bytes]:
    """Everything in a directory but what a run may write about itself when it fails."""
    own = ("log.jsonl", ".lock", "run.json")
    return {str(p): p.read_bytes() for p in sorted(place.rglob("*")) if p.is_file() and p.name not in own}


def main() -> None:
    """Many mutations, counted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as root:
        run = finished_run(Path(root))
        for seed in range(given.first, given.first + given.examples):
            what, outcome, details = example(seed, run, Path(root) / "damaged")
            found[outcome] += 1
            if outcome in ("crashed", "overwrote"):
                print(f"{outcome}: {what}\n{details[-1500:]}")
    print(f"{given.examples} mutations: {', '.join(f'{count} {name}' for name, count in found.most_common())}")
    sys.exit(1 if found["crashed"] or found["overwrote"] else 0)


if __name__ == "__main__":
    main()
