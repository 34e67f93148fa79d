"""Mutate everything that coalmine reads from outside, and check that it is read or refused with a sentence.

``python benchmarks/fuzz.py [--minutes 60] [--target NAME] [--seed 0]`` goes through all targets in turn and prints how
often each was accepted and refused. The invariant: exit code 0 or 2 (1 where a verdict says no) within 60 seconds and
4 GiB, one sentence on standard error if it is 2, no control characters, and no file changed. One case in 200 is
repeated in a process of its own, as a user would run it.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np

import mutations

SECONDS, BYTES = 60, 4 << 30
_LIMIT, _STOPPED = 30, 130  # seconds of a command, and its exit code after SIGTERM
_SUBPROCESSES = 200

TOKENS: list[bytes] = [
    b"", b"\x00", b"\xff\xfe", b"\x1b[2J", b'"', b"'", b",", b"\n", b"\r\n", b"\xe2\x80\xae", b"[" * 300,
    b'{"a":' * 300, b"a." * 400, b"9" * 400, b"9" * 4400, b"1e999", b"-1e999", b"NaN", b"Infinity", b"nan", b"-0",
    b"1e-320", b"null", b"true", b'"\\ud800"', b'"\\u0000"', b"[]", b"{}", b"x" * 140_000, b"=", b"#", b"[[", b"0",
    b"-1", b"2", b"18446744073709551616",
]  # fmt: skip
"""Bytes that often break parsers: inserted into a file, or in place of a number or a string."""


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Return the content with one to four mutations."""
    for _ in range(rng.choice([1, 1, 1, 1, 3])):
        content = rng.choice(_MUTATIONS)(content, rng)
    return content


def _flip(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(min(len(content), rng.choice([1, 1, 3, 20]))):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _remove(content: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(content) + 1)
    return content[:start] + content[start + rng.choice([1, 2, 8, 100]) :]


def _repeat(content: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(content) + 1)
    piece = content[start : start + rng.choice([1, 10, 200])]
    return content[:start] + piece * rng.choice([2, 5, 500]) + content[start:]


def _insert(content: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(content) + 1)
    return content[:start] + rng.choice(TOKENS) + content[start:]


def _replace(content: bytes, rng: random.Random) -> bytes:
    """Replace a number or a string."""
    values = list(re.finditer(rb'-?\d[\d.e+-]*|"[^"]*"', content[:20_000]))
    if not values:
        return _insert(content, rng)
    chosen = rng.choice(values)
    return content[: chosen.start()] + rng.choice(TOKENS) + content[chosen.end() :]


def _digit(content: bytes, rng: random.Random) -> bytes:
    """Change one digit, which often leaves the file readable."""
    places = [place.start() for place in re.finditer(rb"\d", content[:20_000])]
    place = rng.choice(places) if places else 0
    return content[:place] + str(rng.randrange(10)).encode() + content[place + 1 :]


_MUTATIONS: list[Callable[[bytes, random.Random], bytes]] = [
    _flip, _cut, _remove, _repeat, _insert, _replace, _replace, _digit, _digit,
]  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A kind of input.

    Args:
        name: Its name in the table.
        file: Name of the file that is mutated.
        seed: Returns a valid content.
        arguments: Returns the command line that reads the file.
        read: Instead, a function that reads it and may raise `InputError`.
        codes: Exit codes that are allowed.
    """

    name: str
    file: str
    seed: Callable[[], bytes]
    arguments: Callable[[Path], list[str]] | None = None
    read: Callable[[Path], object] | None = None
    codes: tuple[int, ...] = (0, 1, 2)


def _npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def _rows() -> list[dict[str, float]]:
    rng = random.Random(1)
    return [{"score": round(rng.gauss(i % 2, 1), 3), "member": i % 2} for i in range(30)]


def _csv() -> bytes:
    return ("score,member\n" + "".join(f"{row['score']},{row['member']}\n" for row in _rows())).encode()


def _losses() -> bytes:
    return ("loss,canary\n" + "".join(f"{row['score']},{row['member']}\n" for row in _rows())).encode()


def _images() -> bytes:
    rng = np.random.default_rng(1)
    return _npz(x=rng.integers(0, 255, (40, 8, 8), dtype=np.uint8), y=np.arange(40) % 10, user=np.arange(40) // 4)


def _leaf() -> bytes:
    users = [f"u{i}" for i in range(8)]
    data = {user: {"x": [[0.5] * 6, [0.1] * 6], "y": [i % 3, 1]} for i, user in enumerate(users)}
    return json.dumps({"users": users, "num_samples": [2] * 8, "user_data": data}).encode()


def _jsonl() -> bytes:
    return "".join(json.dumps({"user": f"u{i % 8}", "text": f"the cat {i} sat"}) + "\n" for i in range(40)).encode()


def _phrases() -> bytes:
    canaries = [{"tokens": [5 + i, 6, 7], "planted": i % 2 == 0, "users": i % 3} for i in range(8)]
    return json.dumps({"version": 1, "size": 50, "words": [4, 50], "canaries": canaries}).encode()


def _weights() -> bytes:
    import torch
    from safetensors.torch import save

    return save({"model": torch.arange(30.0), "audit.0.sum": torch.zeros(3, 4)})


def _table() -> Any:
    import pyarrow as pa

    labels, users = [i % 3 for i in range(40)], [i // 4 for i in range(40)]
    return pa.table({"x": [[0.5, 1.0]] * 40, "y": labels, "user": users})


def _parquet() -> bytes:
    import pyarrow.parquet as pq

    file = io.BytesIO()
    pq.write_table(_table(), file)
    return file.getvalue()


def _settings() -> bytes:
    return b'[run]\ntitle = "a title"\n[mechanism]\nnoise_multiplier = 1.0\ndim = 100\ncanaries = 5\ncalls = 0\n'


def _source() -> bytes:
    return (
        b"import numpy as np\n\nRNG = np.random.default_rng(0)\n\n\ndef noisy_sum(total):\n"
        b"    noise = RNG.normal(0.0, 2.5, total.shape)\n    return (total + noise).astype(np.float32)\n"
    )


def _load(path: Path) -> object:
    from coalmine.simulation.data import load

    return load(path)


def _read_canaries(path: Path) -> object:
    from coalmine.methods.secret_sharer.stored_model import read_canaries

    return read_canaries(path)


def _read_tensors(path: Path) -> object:
    from coalmine.files import read_tensors

    return read_tensors(path)


def _estimate(path: Path) -> list[str]:
    return ["estimate", str(path), "--method", "simultaneous", "--json"]


def _mechanism(path: Path) -> list[str]:
    settings = ["--set", "dim=50", "--set", "canaries=5", "--set", "calls=0", "--json"]
    return ["audit", "mechanism", "--function", f"{path}:noisy_sum", *settings]


def _run(path: Path) -> list[str]:
    return ["run", str(path), "--out", str(path.parent / "run"), "--json"]


TARGETS = [
    Target("scores .csv", "s.csv", _csv, _estimate),
    Target("scores .npz", "s.npz", lambda: _npz(members=np.arange(9.0), nonmembers=np.arange(-4.0, 4)), _estimate),
    Target("losses .csv", "l.csv", _losses, lambda path: ["audit", "exposure", "--file", str(path), "--json"]),
    Target("settings .toml", "a.toml", _settings, _run),
    Target("phrases .json", "canaries.json", _phrases, read=_read_canaries),
    Target("LEAF .json", "leaf.json", _leaf, read=_load),
    Target("images .npz", "images.npz", _images, read=_load),
    Target("texts .jsonl", "texts.jsonl", _jsonl, read=_load),
    Target("texts .jsonl.gz", "texts.jsonl.gz", lambda: gzip.compress(_jsonl()), read=_load),
    Target("table .parquet", "table.parquet", _parquet, read=_load),
    Target("weights .safetensors", "w.safetensors", _weights, read=_read_tensors),
    Target("user's file .py", "mine.py", _source, _mechanism),
]


def case(target: Target, seed: int, directory: Path, *, own_process: bool = False) -> tuple[str, str]:
    """Try one mutation; return ``"accepted"``, ``"refused"`` or what went wrong, and details."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / target.file
    content = mutated(target.seed(), random.Random(f"{target.name}, {seed}"))
    path.write_bytes(content)
    start = time.process_time()  # of this process: on a busy machine, a clock on the wall counts others' work
    if target.read is not None:
        outcome, details = _read(target.read, path)
    else:
        assert target.arguments is not None
        call = _in_own_process if own_process else mutations.call
        outcome, details = _judged(*_limited(call, target.arguments(path)), target.codes)
    if path.read_bytes() != content:
        return "overwrote its input", details
    if time.process_time() - start > SECONDS:
        return "took too long", details
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > BYTES:
        return "took too much memory", details
    return outcome, details


def _read(read: Callable[[Path], object], path: Path) -> tuple[str, str]:
    from coalmine.errors import InputError

    try:
        read(path)
    except InputError as error:
        return "refused", str(error)
    except BaseException:
        return "crashed", traceback.format_exc()
    return "accepted", ""


def _limited(call: Callable[[list[str]], tuple[int, str, str]], arguments: list[str]) -> tuple[int, str, str]:
    """Call a command, and stop it as by SIGTERM after a while: a mutation may ask for a million rounds."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, _LIMIT)
    try:
        return call(arguments)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _judged(code: int, stderr: str, crash: str, codes: Sequence[int]) -> tuple[str, str]:
    """Return the outcome of a command from its exit code and what it said."""
    lines = [line for line in stderr.splitlines() if line.startswith("coalmine: ")]
    if code == _STOPPED:
        return "accepted", stderr
    if crash or "Traceback" in stderr or code not in codes:
        return "crashed", f"exit code {code}\n{crash}{stderr}"
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", stderr):
        return "printed control characters", stderr
    if code == 2 and (len(lines) != 1 or len(lines[0]) > 3000):
        return "did not say one sentence", stderr
    return ("refused" if code == 2 else "accepted"), stderr


def _in_own_process(arguments: list[str]) -> tuple[int, str, str]:
    command = ["timeout", str(_LIMIT), sys.executable, "-m", "coalmine", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    return _STOPPED if ended.returncode == 124 else ended.returncode, ended.stderr, ""


def available(target: Target) -> bool:
    """Return whether what the target needs is installed."""
    import importlib.util

    return not target.name.startswith("table") or all(map(importlib.util.find_spec, ("pyarrow", "datasets")))


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"longer than {SECONDS} seconds")


def main() -> None:
    """Go through the targets until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--target", choices=[target.name for target in TARGETS])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    targets = [target for target in TARGETS if available(target) and options.target in (None, target.name)]
    for target in TARGETS:
        if not available(target):
            print(f"{target.name} is left out, because the library datasets is not installed.", flush=True)
    outcomes: dict[str, Counter[str]] = {target.name: Counter() for target in targets}
    until, number, failures = time.monotonic() + 60 * options.minutes, options.seed, 0
    signal.signal(signal.SIGALRM, _too_long)
    with tempfile.TemporaryDirectory() as root:
        whole = mutations.finished_run(Path(root)) if options.target is None else None
        outcomes["run directories"] = Counter()
        while time.monotonic() < until:
            for target in targets:
                directory = Path(root) / f"case-{number}"
                signal.alarm(SECONDS + 5)
                outcome, details = case(target, number, directory, own_process=number % _SUBPROCESSES == 0)
                signal.alarm(0)
                failures += _record(outcomes[target.name], outcome, f"{target.name}, seed {number}", details)
                shutil.rmtree(directory, ignore_errors=True)
            if whole is not None:
                what, outcome, details = mutations.example(number, whole, Path(root) / "damaged")
                failures += _record(outcomes["run directories"], outcome, what, details)
            number += 1
    print("| input | accepted | refused | anything else |\n|---|---|---|---|")
    for name, counts in outcomes.items():
        others = ", ".join(f"{count} {what}" for what, count in counts.items() if what not in ("accepted", "refused"))
        print(f"| {name} | {counts['accepted']:,} | {counts['refused']:,} | {others or 0} |")
    print(f"{sum(map(Counter.total, outcomes.values())):,} cases, {failures} failures")
    sys.exit(1 if failures else 0)


def _record(counts: Counter[str], outcome: str, what: str, details: str) -> int:
    """Count an outcome; print it and return 1 if it must not happen."""
    counts[outcome] += 1
    if outcome in ("accepted", "refused"):
        return 0
    print(f"{outcome}: {what}\n{details[-1500:]}", flush=True)
    return 1


if __name__ == "__main__":
    main()
