"""What CANIFE's running mode adds to a training, and what is saved of canaries by designing them less.

python benchmarks/canife_running.py [--repeats 7] [--rounds 100] [--settings data=mnist …]

First the cost of `coalmine audit canife --set mode=running`. *Within* is the processor time of the audit, from making
it to its last score, over that of the rest of the same run: both are measured in turn every few milliseconds, so that a
busy machine is busy for both: the median over ``--repeats``. *Against* is that of the whole run over that of the same
training without the audit, run in turn in the same process: of each the shortest, since what else a machine does only
adds. Bar: at most 15% on the default configuration.

Then what it buys: the same training with ``--rounds`` rounds at several noises, with the defaults of the running mode
and with the long designs of the frozen one. *Effective σ* is the deviation of a round's score over what the canary adds
to it, in rounds of the training's own clients, who are not in the pool: its noise, who comes, and the *drift* of what
all of them have in common, looked at in every fifth round with the canaries as old as they are there. A perfect canary
has the noise multiplier. *Accuracy* is that of the best threshold between N(0, σ²) and N(1, σ²); *measured* is the
attack's, on the audit's own scores: at 100 of them, good to 4 points.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from scipy.special import ndtr

from coalmine.config import settings_from_texts
from coalmine.methods.canife.pool import MockClients
from coalmine.methods.canife.settings import CanifeSettings
from coalmine.simulation.data import Splits
from coalmine.simulation.settings import TrainingSettings

LONG = ("every=10", "design.iterations=200", "design.start=random")
CLIENTS, EVERY = 40, 5


def prepared(texts: Sequence[str]) -> tuple[TrainingSettings, CanifeSettings, Splits]:
    """Settings and data, read once: reading data is no part of a training."""
    training, audit = settings_from_texts(["mode=running", *texts], TrainingSettings, CanifeSettings)
    return training, audit, training.splits(pool_fraction=audit.pool_fraction)


class Timed:
    """Calls of a function, with the processor time that they took."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.seconds, self._function = 0.0, function

    def __call__(self, *args: Any, **named: Any) -> Any:
        """As the function."""
        start = time.process_time()
        found = self._function(*args, **named)
        self.seconds += time.process_time() - start
        return found


def seconds(training: TrainingSettings, audit: CanifeSettings | None, splits: Splits) -> tuple[float, float]:
    """Processor time of a training, with its audit or without, and of that the audit's."""
    start = time.process_time()
    module = training.module(splits)
    made = Timed(lambda: [] if audit is None else audit.audits(training, splits, module))
    audits, timed = made(), [made]
    for one in audits:
        for name in ("plant", "observe"):
            timed.append(Timed(getattr(one, name)))
            setattr(one, name, timed[-1])
    training.training(splits, module, audits).run()
    return time.process_time() - start, sum(part.seconds for part in timed)


def cost(name: str, texts: Sequence[str], repeats: int) -> None:
    """A row: what the audit adds, two ways."""
    training, audit, splits = prepared(texts)
    seconds(training, audit, splits)
    times = np.array([[*seconds(training, None, splits), *seconds(training, audit, splits)] for _ in range(repeats)])
    plain, _, whole, own = times.T
    within, against = np.median(own / (whole - own)), whole.min() / plain.min() - 1
    print(f"| {name} | {plain.min():.2f} | {own.min():.2f} | {within:.1%} | {against:.1%} |", flush=True)


def quality(name: str, texts: Sequence[str]) -> None:
    """A row: how well the canaries of one audit are seen."""
    training, settings, splits = prepared(texts)
    module = training.module(splits)
    (audit,) = settings.audits(training, splits, module)
    some, client = splits.train.subset(range(min(CLIENTS, len(splits.train)))), training.client.local()
    mock_clients, clip_norm = MockClients(module, some, client), training.mechanism().clipping.start()
    expected, spread, drift = training.sampling().expected(len(splits.train), training.rounds, 0), [], []
    run = training.training(splits, module, [audit])
    for until in range(EVERY, training.rounds + 1, EVERY):
        run.run(until=until)
        model = run.state.model
        crafted = audit.canaries.crafted(model.numpy(), clip_norm=clip_norm)
        dots = mock_clients.pool(clip_norm, model).dots(torch.from_numpy(crafted.directions))[0].numpy()
        noise, signal = audit.canaries.noise_multiplier * clip_norm, float(crafted.signals[0])
        spread.append((expected * np.mean(dots**2) + noise**2) / signal**2)
        drift.append(expected * np.mean(dots) / signal)
    sigma, result = float(np.sqrt(np.mean(spread) + np.var(drift))), audit.result(delta=1e-5)
    print(
        f"| {name} | {sigma:.3f} | {np.std(drift):.3f} | {ndtr(0.5 / sigma):.1%} | "
        f"{result.metrics['attack_accuracy']:.1%} | {result['gaussian-shift'].epsilon:.2f} |",
        flush=True,
    )


def main() -> None:
    """Cost, then quality."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--noise", type=float, nargs="*", default=[0.6, 2.0])
    parser.add_argument("--settings", nargs="*", default=[], help="of the training, as key=value")
    given = parser.parse_args()
    if given.repeats:
        print("| audit | training, s | audit, s | within | against |\n|---|---|---|---|---|")
        cost("as by default", given.settings, given.repeats)
        cost("with long designs", [*given.settings, *LONG], given.repeats)
    if given.rounds:
        print("\n| audit | effective σ | of that, drift | accuracy | measured | Gaussian shift ε̂ᵣ |")
        print("|---|---|---|---|---|---|")
        for noise in given.noise:
            texts = [*given.settings, f"rounds={given.rounds}", f"noise_multiplier={noise}"]
            quality(f"as by default, noise {noise}", texts)
            quality(f"with long designs, noise {noise}", [*texts, *LONG])


if __name__ == "__main__":
    main()
