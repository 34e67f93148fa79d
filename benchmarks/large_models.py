"""What one-shot canaries cost by the size of the model: processor time and memory beyond the release itself.

    python benchmarks/large_models.py [--dims 1000000,10000000,100000000] [--kinds numpy,torch,bfloat16,list]

1,000 canaries inserted and 1,000 held out; one round of ``OneShot``, view "updates". The baseline transforms the whole
vector by one matrix product after the other, with temporary vectors, as coalmine did before; both are measured in turns
in one process. Times of the whole audit are those of its first round, with its checks and with drawing the canaries;
memory is the peak beyond what the process has once the release is there (Linux).
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from coalmine import OneShot
from coalmine.methods.one_shot import hadamard
from coalmine.methods.one_shot.hadamard import HadamardCanaries

_CANARIES = 1000


class PlainCanaries(HadamardCanaries):
    """The same canaries with whole vectors at a time: signs as numbers, and factors of 32 rows in separate passes."""

    def dots(self, vector: Any) -> Any:
        """Return ⟨canaryᵢ, vector⟩."""
        mixed = np.multiply(vector, self._signs(0), dtype=np.float32)
        mixed[: self._length] = plain_transform(mixed[: self._length])
        mixed *= self._signs(1)
        mixed[-self._length :] = plain_transform(mixed[-self._length :])
        mixed *= self._signs(2)
        folded = mixed[: self._whole].reshape(-1, self._rows).sum(axis=0)
        folded[: self.dim - self._whole] += mixed[self._whole :]
        return (plain_transform(8 * folded * self._scale)[: self.count] * self._flips).astype(np.float64)

    def total(self, weights: Any, device: Any = None) -> Any:
        """Return Σ weightᵢ · canaryᵢ."""
        coefficients = np.zeros(self._rows, dtype=np.float32)
        coefficients[: self.count] = weights * self._flips
        mixed = np.resize(8 * plain_transform(coefficients) * self._scale, self.dim)
        mixed *= self._signs(2)
        mixed[-self._length :] = plain_transform(mixed[-self._length :])
        mixed *= self._signs(1)
        mixed[: self._length] = plain_transform(mixed[: self._length])
        mixed *= self._signs(0)
        return mixed

    def _signs(self, layer: int) -> Any:
        return ((self._bytes >> layer + 1) & 1) * np.int8(2) - np.int8(1)


def plain_transform(vector: Any) -> Any:
    """Return the transform, by products with matrices of 32 rows as long as there are as many left."""
    after = len(vector)
    size, before = after >> hadamard._power(after), 1
    while after > 1:
        after //= size
        blocks, matrix = vector.reshape(before, size, after), hadamard._matrix(size)
        vector = matrix @ blocks if after > 1 else blocks.reshape(before, size) @ matrix
        before *= size
        size = min(32, after)
    return vector.reshape(-1)


def seconds(work: Callable[[], object]) -> float:
    """Return the processor time of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def times(dim: int, repeats: int) -> None:
    """Print the times of sums and scores, ours and the baseline's, and how far their results are apart."""
    release = np.random.default_rng(0).standard_normal(dim, dtype=np.float32)
    ours, plain = (kind(dim=dim, count=2 * _CANARIES, seed=0) for kind in (HadamardCanaries, PlainCanaries))
    weights = np.arange(2 * _CANARIES) % 2
    apart = max(
        np.abs(ours.dots(release) - plain.dots(release)).max(), np.abs(ours.total(weights) - plain.total(weights)).max()
    )
    works = [(lambda c=c: c.total(weights)) for c in (plain, ours)]
    works += [(lambda c=c: c.dots(release)) for c in (plain, ours)]
    measured = np.min([[seconds(work) for work in works] for _ in range(repeats)], axis=0)
    cells = [f"{plain:.3g} s / {ours:.3g} s = {plain / ours:.1f}" for plain, ours in measured.reshape(2, 2)]
    print(f"| {dim:,} | {' | '.join(cells)} | {apart:.0e} |", flush=True)


def whole_audit(dim: int, kind: str) -> None:
    """Print the processor time of a round, and the peak memory beyond the release."""
    release: Any = np.random.default_rng(0).standard_normal(dim, dtype=np.float32)
    if kind != "numpy":
        import torch

        torch.set_num_threads(1)
        release = torch.from_numpy(release)
        release = release.bfloat16() if kind == "bfloat16" else release
        release = list(release.split(-(-dim // 8))) if kind == "list" else release
    audit = OneShot(
        dim if kind == "numpy" else release, rounds=1, canaries=_CANARIES, view="updates",
        participation="every-round",
    )  # fmt: skip
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before, start = _status("VmRSS"), time.process_time()
    planted = audit.plant(0, clip_norm=1.0)
    middle = time.process_time()
    audit.observe(0, update=release, divisor=100.0)
    end = time.process_time()
    assert planted is not None
    cells = f"{middle - start:.3g} s | {end - middle:.3g} s | {(_status('VmHWM') - before) / 1024:,.0f} MiB"
    print(f"| {dim:,} | {kind} | {cells} |", flush=True)


def _status(name: str) -> int:
    """Return a number of this process's status, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--dims", default="1000000,10000000,100000000")
    parser.add_argument("--kinds", default="numpy,torch,bfloat16,list")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--audit", help=argparse.SUPPRESS)
    options = parser.parse_args()
    dims = [int(dim) for dim in options.dims.split(",")]
    if options.audit:
        whole_audit(dims[0], options.audit)
        return
    print("| parameters | sum of the canaries, baseline / ours | scores, baseline / ours | apart |\n|---|---|---|---|")
    for dim in dims:
        times(dim, options.repeats)
    print("\n| parameters | release | plant | observe | peak memory |\n|---|---|---|---|---|", flush=True)
    for dim in dims:
        for kind in options.kinds.split(","):
            subprocess.run([sys.executable, __file__, "--dims", str(dim), "--audit", kind], check=True)


if __name__ == "__main__":
    main()
