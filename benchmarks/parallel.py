"""Twenty commands at once, in separate directories and in the same one: none may clash with another.

``python benchmarks/parallel.py [--turns 3]`` starts in each turn 3 of ``estimate``, 3 each of ``check``, ``report`` and
``resume`` on one finished run, 3 of ``run`` in directories of their own and 5 of ``run`` in the same new one. Each
must give the result of the command alone, or be refused with exit code 2 because another process uses the directory.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

SETTINGS = """
[training]
partition = "iid:10"
rounds = 2
noise_multiplier = 2.0
model_settings = {hidden = 8}
client = {epochs = 1, batch_size = "all"}
[one-shot]
view = ["final-change", "updates"]
canaries = 20
"""
IN_USE = "is in use by another process"


def start(*arguments: object) -> subprocess.Popen[str]:
    """Start a command of coalmine."""
    command = [sys.executable, "-m", "coalmine", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def output(*arguments: object) -> tuple[int, str]:
    """Return exit code and output of a command that runs alone."""
    process = start(*arguments)
    text, _ = process.communicate()
    return process.returncode, text


def turn(root: Path, number: int) -> Counter[str]:
    """Start twenty commands at once, and return how many had each outcome."""
    settings, finished, scores = root / "audit.toml", root / "finished", root / "scores.npz"
    shared = root / f"shared-{number}"
    own = [root / f"own-{number}-{i}" for i in range(3)]
    commands = {
        "estimate": [("estimate", scores, "--json")] * 3,
        "check": [("check", finished, "--json")] * 3,
        "report": [("report", finished)] * 3,
        "resume": [("resume", finished, "--json")] * 3,
        "run": [("run", settings, "--quiet", "--out", path) for path in own],
        "run in one directory": [("run", settings, "--quiet", "--out", shared)] * 5,
    }
    alone = ("estimate", "check", "resume")
    expected = {name: output(*several[0]) for name, several in commands.items() if name in alone}
    reference = (finished / "result.json").read_bytes()
    started = [(name, start(*words)) for name, several in commands.items() for words in several]
    outcomes: Counter[str] = Counter()
    for name, process in started:
        text, error = process.communicate()
        right = (process.returncode, text) == expected[name] if name in expected else process.returncode == 0
        refused = process.returncode == 2 and IN_USE in error and name in ("run in one directory", "report", "resume")
        outcome = "right" if right else "refused" if refused else f"WRONG ({process.returncode}) {error}"
        outcomes[f"{name}: {outcome}"] += 1
    for path in (*own, shared, finished):
        result = path / "result.json"
        same = result.is_file() and result.read_bytes() == reference and output("verify", path)[0] == 0
        outcomes["results: the same bytes as of a run alone" if same else f"WRONG results in {path.name}"] += 1
    return outcomes


def main() -> None:
    """Print the outcomes of all turns; exit with 1 if one is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    turns = parser.parse_args().turns
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        rng = np.random.default_rng(0)
        np.savez(root / "scores.npz", members=rng.normal(1, 1, 10**4), nonmembers=rng.normal(0, 1, 10**4))
        (root / "audit.toml").write_text(SETTINGS)
        code, _ = output("run", root / "audit.toml", "--quiet", "--out", root / "finished")
        if code:
            sys.exit("the run by itself failed")
        total = sum((turn(root, number) for number in range(turns)), Counter[str]())
    for name, count in sorted(total.items()):
        print(f"{name}: {count}")
    sys.exit(any("WRONG" in name for name in total))


if __name__ == "__main__":
    main()
