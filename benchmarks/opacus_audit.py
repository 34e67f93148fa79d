"""Does the audit of Opacus find bugs, does it leave correct trainings alone, and what does it cost?

    python benchmarks/opacus_audit.py coverage [--seeds 100]   # correct trainings: how often a promise is refuted
    python benchmarks/opacus_audit.py bugs [--seeds 20]        # trainings with a bug
    python benchmarks/opacus_audit.py cost                     # the audit's share of a training

The trainings are DP-SGD on scikit-learn's digits, an MLP of 9,610 parameters, batches of 64. Prints Markdown.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import importlib.util
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from coalmine import AuditResult
from coalmine.integrations.opacus import SampleCanaries, audit_opacus

CLIP, NOISE, DELTA, SPARE = 1.0, 1.0, 1e-5, 200

_found = importlib.util.spec_from_file_location(
    "opacus_example", Path(__file__).resolve().parents[1] / "examples" / "opacus" / "train.py"
)
example = importlib.util.module_from_spec(_found)
_found.loader.exec_module(example)


def trained(
    *, seed: int, epochs: int = 1, canaries: int | None = 500, participation: str | None = None, bug: str | None = None,
    samples: bool = False, poisson: bool = True, audited: bool = True, **settings,
) -> tuple[list[AuditResult], float]:  # fmt: skip
    """The results, and the CPU seconds of the training loop."""
    torch.manual_seed(seed)
    images, labels = load_digits(return_X_y=True)
    inputs, targets = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    planted = SampleCanaries.mislabeled(inputs[:SPARE], targets[:SPARE], classes=10, seed=seed)
    data = TensorDataset(inputs[SPARE:], targets[SPARE:])
    module = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.5),
        data_loader=DataLoader(planted.planted(data) if samples else data, batch_size=64, shuffle=True),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        poisson_sampling=poisson,
    )
    if bug is not None:
        optimizer.__class__ = example.BUGS[bug]
    audit = None
    if audited:
        audit = audit_opacus(
            engine, optimizer, loader, steps=epochs * len(loader), canaries=canaries, participation=participation,
            samples=planted if samples else None, model=model, seed=seed, **settings,
        )  # fmt: skip
    start = time.process_time()
    for _ in range(epochs):
        for batch, classes in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(batch), classes).backward()
            optimizer.step()
    seconds = time.process_time() - start
    return [] if audit is None else audit.results(delta=DELTA), seconds


def row(name: str, runs: list[AuditResult]) -> None:
    """A line of the table."""
    bounds, promise = np.array([r.bound.epsilon for r in runs]), float(np.median([r.theory.epsilon for r in runs]))
    refuted = sum(r.refuted for r in runs)
    shown = " | ".join(f"{value:.2f}" for value in (bounds.min(), np.median(bounds), bounds.max()))
    print(f"| {name} | {runs[0].view} | {promise:.2f} | {refuted} of {len(runs)} | {shown} |", flush=True)


HEADER = "| training | view | promised ε | refuted | least bound | median | largest |\n|---|---|---|---|---|---|---|"


def table(cases: dict[str, dict[str, object]], seeds: int) -> None:
    """Every case for so many seeds, each view a line."""
    print(HEADER)
    for name, settings in cases.items():
        found = [trained(seed=seed, **settings)[0] for seed in range(seeds)]
        for results in zip(*found, strict=True):
            row(name, list(results))


def coverage(seeds: int) -> None:
    """Correct trainings."""
    table(
        {
            "correct, drawn like examples": {},
            "correct, every step": {"participation": "every-round"},
            "correct, mislabeled samples": {"canaries": None, "samples": True},
        },
        seeds,
    )


def bugs(seeds: int) -> None:
    """Trainings that do not do what is accounted."""
    worst = {"participation": "every-round", "views": ("updates", "final-change")}
    table(
        {
            "half the noise, every step": {"bug": "half-noise", **worst},
            "no noise, every step": {"bug": "no-noise", **worst},
            "no clipping, every step": {"bug": "no-clipping", **worst},
            "no noise, drawn like examples": {"bug": "no-noise"},
            "no clipping, drawn like examples": {"bug": "no-clipping"},
        },
        seeds,
    )


def cost() -> None:
    """CPU time of a training loop, the least of five."""
    cases = {
        "without an audit": {"audited": False},
        "500 canaries drawn like examples": {},
        "500 canaries in every step": {"participation": "every-round"},
        "the same, added at once (length=1)": {"participation": "every-round", "length": 1.0},
        "200 samples, losses": {"canaries": None, "samples": True, "sample_views": ("final-change",)},
        "200 samples, gradients of every step": {"canaries": None, "samples": True, "sample_views": ("updates",)},
    }
    print("| audit | CPU time of the training | more |\n|---|---|---|")
    plain = None
    for name, settings in cases.items():
        seconds = min(trained(seed=0, epochs=4, **settings)[1] for _ in range(5))
        plain = seconds if plain is None else plain
        print(f"| {name} | {seconds:.2f} s | {seconds / plain - 1:+.0%} |", flush=True)


def main() -> None:
    """Choose."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("coverage", "bugs", "cost"))
    parser.add_argument("--seeds", type=int)
    arguments = parser.parse_args()
    if arguments.what == "cost":
        cost()
    elif arguments.what == "bugs":
        bugs(arguments.seeds or 20)
    else:
        coverage(arguments.seeds or 100)


if __name__ == "__main__":
    main()
