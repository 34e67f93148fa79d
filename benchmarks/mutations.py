"""Damage the files that coalmine reads: commands must end with a result or with an error, never with a traceback.

``python benchmarks/mutations.py [--examples 500]`` mutates settings, score files and run directories (truncated files,
removed keys, changed types, flipped bytes). It prints how often commands reported an error (exit code 2), accepted the
file or crashed, and how often a command that reported an error had changed a file nevertheless.
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

from coalmine.results.io import MANIFEST, write_manifest

SETTINGS = """
[training]
partition = "iid:10"
rounds = 3
noise_multiplier = 0
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
"""Commands to try on a damaged run; "anew" deletes the audits' results, which are recomputed from the checkpoint."""

ODD: list[Any] = [None, True, -1, 0, 2**70, 1.5, "", "inf", "nan", "x" * 300, [], [[]], {}, {"a": 1}, "../../x", "\x00"]
ODD_TOML = ["true", "-1", "0", "9" * 30, "1.5", "nan", "-inf", '""', '"x"', "[]", "[[]]", "{}", "{a = 1}", "1979-05-27"]


def call(arguments: list[str]) -> tuple[int, str, str]:
    """Run the command line in this process; return its exit code, its stderr, and the traceback if it crashed."""
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
    """Return the directory of a small finished run."""
    file = root / "audit.toml"
    file.write_text(SETTINGS)
    code, stderr, crash = call(["run", str(file), "--out", str(root / "run"), "--quiet"])
    if code:
        raise SystemExit(f"the run that should be damaged failed: {stderr}{crash}")
    return root / "run"


def damage_bytes(path: Path, rng: random.Random) -> None:
    """Truncate a file, or change some of its bytes."""
    content = bytearray(path.read_bytes())
    if not content or rng.random() < 0.4:
        path.write_bytes(bytes(content[: rng.randrange(len(content) + 1)]))
        return
    for _ in range(rng.choice([1, 1, 3, 20])):
        content[rng.randrange(len(content))] = rng.randrange(256)
    path.write_bytes(bytes(content))


def damage_json(path: Path, rng: random.Random) -> None:
    """Remove a value somewhere in a JSON file, or replace it by one of another type."""
    content = json.loads(path.read_text())
    node, key = content, rng.choice(list(content))
    while rng.random() < 0.7 and isinstance(node[key], dict | list) and node[key]:
        node = node[key]
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
    if rng.random() < 0.3:
        del node[key]
    else:
        node[key] = rng.choice(ODD)
    path.write_text(json.dumps(content))


def damage_toml(path: Path, rng: random.Random) -> None:
    """Remove, duplicate or reverse a line of a TOML file, or change its value."""
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


def damage_scores(path: Path, rng: random.Random) -> None:
    """Change one cell of a .csv file."""
    rows = [line.split(",") for line in path.read_text().splitlines()]
    row = rng.choice(rows)
    row[rng.randrange(len(row))] = rng.choice(["", "nan", "inf", "x", "1e999", "-0", "2", "1,1", '"', "\x00", "член"])
    path.write_text("\n".join(",".join(row) for row in rows))


def damage(path: Path, rng: random.Random) -> None:
    """Damage a file in a way that fits its format."""
    special: dict[str, Callable[[Path, random.Random], None]] = {
        ".json": damage_json, ".toml": damage_toml, ".csv": damage_scores,
    }  # fmt: skip
    by_format = special.get(path.suffix, damage_bytes)
    (damage_bytes if rng.random() < 0.3 else by_format)(path, rng)


def example(seed: int, run: Path, directory: Path, commands: Sequence[str] = COMMANDS) -> tuple[str, str, str]:
    """Try one command on one mutation.

    Args:
        seed: Seed for the mutation and the command.
        run: Directory of a finished run, which is copied.
        directory: Scratch directory, deleted first.
        commands: Commands to choose from.

    Returns:
        What was done; ``"refused"``, ``"accepted"``, ``"crashed"`` or ``"overwrote"``; and details.
    """
    rng = random.Random(seed)
    copy = directory / "run"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(run, copy)
    kind = rng.choice(["settings", "scores", "run", "run", "run"])
    if kind == "settings":
        target = shutil.copy(run / "config.toml", directory / "audit.toml")
        arguments = ["run", str(target), "--out", str(directory / "new"), "--quiet"]
        arguments += ["--set", "training.data=no-such-data"]  # fails before training, if not earlier
    elif kind == "scores":
        target = directory / "scores.csv"
        target.write_text("score,member\n" + "".join(f"{rng.gauss(i % 2, 1):.3f},{i % 2}\n" for i in range(30)))
        arguments = ["estimate", str(target), "--method", "simultaneous"]
    else:
        files = sorted(path for path in copy.rglob("*") if path.is_file() and path.name not in (".lock", "log.jsonl"))
        target = rng.choice(files)
        command = rng.choice(commands)
        arguments = [command.removesuffix(" anew"), str(copy)] + ([str(run)] if command == "compare" else [])
        if command == "resume anew":
            for part in (copy / "parts").iterdir():
                if part != target:
                    part.unlink()
    damage(Path(target), rng)
    if kind == "run" and Path(target).name != MANIFEST:
        # As if whoever changed the file had changed the manifest too: otherwise nothing would be read at all.
        write_manifest(copy)
    before = contents(directory)
    code, stderr, crash = call(arguments)
    what = f"{arguments[0]} with {Path(target).relative_to(directory)} damaged (seed {seed})"
    if crash or (code == 2 and "Traceback" in stderr) or (code == 2 and not stderr.strip()):
        return what, "crashed", crash or stderr
    if code == 2 and not before.items() <= contents(directory).items():
        return what, "overwrote", stderr
    return what, {0: "accepted", 1: "accepted", 2: "refused"}[code], stderr


def contents(directory: Path) -> dict[str, bytes]:
    """Return all files of a directory, except those in which a run may record that it failed."""
    status = ("log.jsonl", ".lock", "run.json", MANIFEST)
    return {str(p): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file() and p.name not in status}


def main() -> None:
    """Try many mutations and count the outcomes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as root:
        run = finished_run(Path(root))
        for seed in range(options.first, options.first + options.examples):
            what, outcome, details = example(seed, run, Path(root) / "damaged")
            outcomes[outcome] += 1
            if outcome in ("crashed", "overwrote"):
                print(f"{outcome}: {what}\n{details[-1500:]}")
    print(f"{options.examples} mutations: {', '.join(f'{count} {name}' for name, count in outcomes.most_common())}")
    sys.exit(1 if outcomes["crashed"] or outcomes["overwrote"] else 0)


if __name__ == "__main__":
    main()
