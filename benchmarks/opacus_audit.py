"""Does the Opacus audit find bugs, how often does it refute correct trainings, and what does it cost?

    python benchmarks/opacus_audit.py coverage [--seeds 100]   # correct trainings: how often a claim is refuted
    python benchmarks/opacus_audit.py false-alarms [--seeds 300]  # the default audit of correct trainings
    python benchmarks/opacus_audit.py bugs [--seeds 20]        # trainings with a bug
    python benchmarks/opacus_audit.py cost [--turns 15] [--epochs 1]  # the audit's share of a training

The trainings are DP-SGD on scikit-learn's digits, an MLP of 9,610 parameters, batches of 64; `cost` also has Opacus's
network for MNIST on random images. Prints Markdown.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import importlib.util
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from coalmine import Result
from coalmine.integrations.opacus import SampleCanaries, audit_opacus
from coalmine.stats.rates import rate_bounds

CLIP, NOISE, DELTA, SPARE = 1.0, 1.0, 1e-5, 200

_spec = importlib.util.spec_from_file_location(
    "opacus_example", Path(__file__).resolve().parents[1] / "examples" / "opacus" / "train.py"
)
example = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(example)


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return scikit-learn's digits."""
    pixels, labels = load_digits(return_X_y=True)
    return torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)


def random_images() -> tuple[torch.Tensor, torch.Tensor]:
    """Return images of the size of MNIST's."""
    return torch.rand(1480, 1, 28, 28), torch.randint(10, (1480,))


def convolutions() -> nn.Module:
    """Return the network of Opacus's MNIST example: 26,010 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


class Stopwatch:
    """Measures the processor time that is spent in the functions it wraps."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def times(self, function: Callable) -> Callable:
        """Return the function, wrapped so that its time is added to `seconds`."""

        def timed(*arguments):
            start = time.process_time()
            value = function(*arguments)
            self.seconds += time.process_time() - start
            return value

        return timed


def trained(
    *, seed: int, epochs: int = 1, canaries: int | None = 500, participation: str | None = "every-round",
    bug: str | None = None, samples: bool = False, poisson: bool = True, audited: bool = True, images: bool = False,
    batch: int = 64,
    **settings,
) -> tuple[list[Result], np.ndarray]:  # fmt: skip
    """Return the results, and processor times (steps, 2): of each step without the audit, and of the audit in it."""
    torch.manual_seed(seed)
    inputs, targets = random_images() if images else digits()
    sample_canaries = SampleCanaries.mislabeled(inputs[:SPARE], targets[:SPARE], classes=10, seed=seed)
    data = TensorDataset(inputs[SPARE:], targets[SPARE:])
    module = convolutions() if images else nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.5),
        data_loader=DataLoader(sample_canaries.insert_into(data) if samples else data, batch_size=batch, shuffle=True),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        poisson_sampling=poisson,
    )
    if bug is not None:
        optimizer.__class__ = example.BUGS[bug]
    # These two methods do the work of Opacus and torch. What else optimizer.step() takes is the audit's.
    opacus, kind = Stopwatch(), type(optimizer)
    optimizer.__class__ = type(kind.__name__, (kind,), {"pre_step": opacus.times(kind.pre_step)})
    optimizer.original_optimizer.step = opacus.times(optimizer.original_optimizer.step)
    audit = None
    if audited:
        audit = audit_opacus(
            engine, optimizer, loader, steps=epochs * len(loader), canaries=canaries, participation=participation,
            samples=sample_canaries if samples else None, model=model, seed=seed, **settings,
        )  # fmt: skip
    seconds, start = [], time.process_time()
    for _ in range(epochs):
        for examples, classes in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(examples), classes).backward()
            before, of_opacus = time.process_time(), opacus.seconds
            optimizer.step()
            end = time.process_time()
            of_audit = end - before - (opacus.seconds - of_opacus)
            seconds.append((end - start - of_audit, of_audit))
            start = end
    return [] if audit is None else audit.results(delta=DELTA), np.array(seconds)


def row(name: str, runs: list[Result]) -> None:
    """Print a row of the table."""
    bounds, claim = np.array([r.bound.epsilon for r in runs]), float(np.median([r.claim.epsilon for r in runs]))
    refuted = sum(r.refuted for r in runs)
    shown = " | ".join(f"{value:.2f}" for value in (bounds.min(), np.median(bounds), bounds.max()))
    print(
        f"| {name} | {runs[0].method}, {runs[0].view} | {claim:.2f} | {refuted} of {len(runs)} | {shown} |", flush=True
    )


HEADER = "| training | view | claimed ε | refuted | smallest bound | median | largest |\n|---|---|---|---|---|---|---|"


def table(cases: dict[str, dict[str, object]], seeds: int) -> None:
    """Print every case, with a row per view."""
    print(HEADER)
    for name, settings in cases.items():
        by_seed = [trained(seed=seed, **settings)[0] for seed in range(seeds)]
        for results in zip(*by_seed, strict=True):
            row(name, list(results))


def coverage(seeds: int) -> None:
    """Print how often correct trainings are refuted."""
    table(
        {
            "correct, sampled like examples": {"participation": None},
            "correct, every step": {},
            "correct, mislabeled samples": {"canaries": None, "samples": True},
        },
        seeds,
    )


def false_alarms(seeds: int) -> None:
    """Print how often the default audit, canaries in the last 25 of 36 steps, refutes correct trainings, by view."""
    counts: dict[str, list[bool]] = {}
    findings: list[str] = []
    for seed in range(seeds):
        results = trained(seed=seed, epochs=3, batch=128, canaries=100, participation="last:25")[0]
        for result in results:
            counts.setdefault(result.view, []).append(result.refuted)
            findings += [f"{finding.check}" for finding in result.findings if finding.refutes]
        counts.setdefault("either view", []).append(any(result.refuted for result in results))
        if (seed + 1) % 20 == 0 or seed + 1 == seeds:
            for view, refuted in counts.items():
                low, high = rate_bounds(sum(refuted), len(refuted), significance=0.025)
                print(f"| {view} | {sum(refuted)} of {len(refuted)} | {low:.1%}-{high:.1%} |", flush=True)
            print(f"findings: {sorted(findings)}", flush=True)


def bugs(seeds: int) -> None:
    """Print how often trainings with a bug are refuted."""
    table(
        {
            "half the noise, every step": {"bug": "half-noise"},
            "no noise, every step": {"bug": "no-noise"},
            "no clipping, every step": {"bug": "no-clipping"},
            "no noise, sampled like examples": {"bug": "no-noise", "participation": None},
            "no clipping, sampled like examples": {"bug": "no-clipping", "participation": None},
        },
        seeds,
    )


def cost(turns: int, epochs: int) -> None:
    """Print the audit's processor time inside each step, and that of whole trainings compared with unaudited ones.

    Trainings take turns, since the machine's load varies. The audit's time is divided by the rest of the same step,
    which other work slows down as much. Whole trainings are compared by the least time of each step in any turn.
    """
    cases = {
        "none": {"audited": False},
        "200 canaries in every step": {"canaries": 200},
        "200 canaries sampled like examples": {"canaries": 200, "participation": None},
        "200 samples, losses": {"canaries": None, "samples": True, "sample_views": ("final-change",)},
        "200 samples, gradients of every step": {"canaries": None, "samples": True, "sample_views": ("updates",)},
    }
    seconds = {(name, images): [] for images in (False, True) for name in cases}
    for _ in range(turns):
        for (name, images), turn in seconds.items():
            turn.append(trained(seed=0, images=images, epochs=epochs, **cases[name])[1])
    columns = "audit | parameters | a step | first step | usual step | training | training against none"
    print(f"| {columns} |\n" + "|---" * 7 + "|")
    for (name, images), turn in seconds.items():
        training, audit = np.moveaxis(np.array(turn), -1, 0)  # (turns, steps)
        least, without = (np.min(np.sum(seconds[key, images], axis=-1), axis=0).sum() for key in (name, "none"))
        later = slice(training.shape[1] // 2, -1)  # after the clipping tests, and before the final model is scored
        print(
            f"| {name} | {'26,010' if images else '9,610'} | {1e3 * np.median(training):.1f} ms "
            f"| {1e3 * np.median(audit[:, 0]):.1f} ms | {np.median(audit[:, later] / training[:, later]):.1%} "
            f"| {np.median(audit.sum(axis=1) / training.sum(axis=1)):.1%} | {least / without - 1:+.1%} |"
        )


def main() -> None:
    """Run the chosen benchmark."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("coverage", "false-alarms", "bugs", "cost"))
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--turns", type=int, default=15, help="number of trainings of each kind in cost")
    parser.add_argument("--epochs", type=int, default=1, help="length of the trainings in cost")
    arguments = parser.parse_args()
    if arguments.what == "cost":
        cost(arguments.turns, arguments.epochs)
    elif arguments.what == "false-alarms":
        false_alarms(arguments.seeds or 300)
    elif arguments.what == "bugs":
        bugs(arguments.seeds or 20)
    else:
        coverage(arguments.seeds or 100)


if __name__ == "__main__":
    main()
