"""Benchmark of the LDP audit: speed of Figure 2's sweep, tightness and validity of bounds, bugs. Prints Markdown.

python benchmarks/ldp.py [--data mnist] [--measurements 10] [--seeds 1000]
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from scipy import special
from torch import nn

from coalmine.methods.ldp.audit import Ldp
from coalmine.methods.ldp.crafters import CRAFTERS, Collusion, Pair, crafter_named, rule_of
from coalmine.methods.ldp.distinguishers import BlackBox, Crafted, play, white_box
from coalmine.methods.ldp.lower_bounds import estimates
from coalmine.simulation import models
from coalmine.simulation.client import tensors
from coalmine.simulation.data import load
from coalmine.simulation.data.federated import FederatedData, Task
from coalmine.simulation.flat import parameter_vector
from coalmine.simulation.mechanisms.local import LDPSGD, LDPServer, LocalGaussian

EPSILONS = (0.5, 1.0, 2.0, 4.0)
TRIALS = 10_000


class PlainLoop:
    """Algorithms 1 to 4 written out in PyTorch, one trial at a time."""

    def __init__(self, crafter: str, model: nn.Module, pair: Pair, epsilon: float, step: float) -> None:
        self.craft, self.rule = crafter_named(crafter), rule_of(crafter_named(crafter))
        self.model, self.pair, self.step = model, pair, step
        self.moved = copy.deepcopy(model)
        self.theta = parameter_vector(model)
        self.truth = math.exp(epsilon) / (1 + math.exp(epsilon))
        self.crafted = self.make()
        with torch.no_grad():
            self.before = self.losses(model)

    def make(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return g₁ and g₂."""
        first, second = self.craft(self.model, self.pair)
        return torch.from_numpy(first), torch.from_numpy(second)

    def losses(self, model: nn.Module) -> torch.Tensor:
        """Return the losses of the examples that the test compares."""
        needed = 2 if self.rule == "larger-change" else 1
        return F.cross_entropy(model(self.pair.inputs[:needed]), self.pair.targets[:needed], reduction="none")

    def client(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return a report (Algorithm 1)."""
        norm = float(gradient.norm())
        x = gradient * min(1.0, 1.0 / norm)
        norm = min(norm, 1.0)
        z = x / norm if torch.rand(()) < 0.5 + norm / 2 else -x / norm
        v = torch.randn(len(x))
        v /= v.norm()
        side = torch.sign(z @ v)
        return side * v if torch.rand(()) < self.truth else -side * v

    def white(self, crafting: bool) -> bool:
        """Play a trial of Algorithm 4 and return whether the guess is right."""
        first, second = self.make() if crafting else self.crafted
        sent_first = bool(torch.rand(()) < 0.5)
        report = self.client(first if sent_first else second)
        to_first = F.cosine_similarity(report, first, dim=0)
        return bool(to_first >= F.cosine_similarity(report, second, dim=0)) == sent_first

    def black(self, crafting: bool) -> bool:
        """Play a trial of Algorithm 3 and return whether the guess is right."""
        first, second = self.make() if crafting else self.crafted
        sent_first = bool(torch.rand(()) < 0.5)
        theta = self.theta - self.step * self.client(first if sent_first else second)
        if self.rule == "signs":
            return bool(torch.sign(self.theta - theta).sum() >= 0) == sent_first
        with torch.no_grad():
            nn.utils.vector_to_parameters(theta, self.moved.parameters())
            change = self.losses(self.moved) - self.before
        guess = change[0].abs() >= change[1].abs() if self.rule == "larger-change" else change[0] <= 0
        return bool(guess) == sent_first


def seconds_per_trial(trial: Callable[[bool], bool], crafting: bool, trials: int) -> float:
    """Return the processor time of the fastest of three repetitions; other work on the machine does not count."""
    repetitions = []
    for _ in range(3):
        began = time.process_time()
        for _ in range(trials):
            trial(crafting)
        repetitions.append((time.process_time() - began) / trials)
    return min(repetitions)


def speed(data: FederatedData, measurements: int) -> None:
    """Time our sweep of Figure 2 against the mean time of a trial in a plain loop, over all its cells."""
    task, examples = data.task, data.pooled()
    name = models.default_model(task)
    model = models.build(name, task)
    pair = Pair(*tensors(examples[np.arange(2)], task), task)
    malicious = Collusion().prepare(model, examples, pair, np.random.default_rng(0))
    loops: dict[bool, list[float]] = {False: [], True: []}
    for crafter in CRAFTERS:
        sent = malicious if crafter == "collusion" else model
        loop = PlainLoop(crafter, sent, pair, 4.0, 1.0)
        for crafting, seconds in loops.items():
            trials = 40 if crafting else 120
            seconds += [seconds_per_trial(trial, crafting, trials) for trial in (loop.white, loop.black)]
    audit = Ldp(
        data=data,
        model=lambda seed: models.build(name, task, seed=seed),
        crafters=[crafter_named(crafter) for crafter in CRAFTERS],
        mechanisms=[LDPSGD(epsilon=epsilon) for epsilon in EPSILONS],
        views=["white-box", "black-box"],
        trials=TRIALS,
        measurements=measurements,
        server=LDPServer(),
    )
    began, clock = time.process_time(), time.perf_counter()
    audit.run()
    ours, clock = time.process_time() - began, time.perf_counter() - clock
    count = 2 * len(CRAFTERS) * len(EPSILONS) * measurements * TRIALS
    size = parameter_vector(model).numel()
    print(f"{count:,} trials ({name}, {size:,} parameters), estimates included: {ours:.1f} s of processor time,")
    print(f"{clock:.1f} s of wall-clock time.\n")
    print("| compared with | time per trial | ours | speedup |\n|---|---|---|---|")
    for crafting, seconds in loops.items():
        label = "Algorithms 3 and 4 as printed: crafting in every trial" if crafting else "the same, crafting once"
        theirs = float(np.mean(seconds))
        print(f"| {label} | {1e6 * theirs:.0f} µs | {1e6 * ours / count:.1f} µs | {theirs * count / ours:.1f}× |")


def black_box_ways(data: FederatedData, trials: int = 2000) -> None:
    """Time black-box trials on lines against the plain way, with the crafters that compare losses."""
    task, examples = data.task, data.pooled()
    pair = Pair(*tensors(examples[np.arange(2)], task), task)
    print("\n| model | plain, µs per trial | on lines, µs per trial | speedup |\n|---|---|---|---|")
    for name in (models.default_model(task), "mlp"):
        model = models.build(name, task)
        crafters = [crafter_named(crafter) for crafter in CRAFTERS if crafter not in ("collusion", "dummy-gradient")]
        others = np.empty((0, parameter_vector(model).numel()), np.float32)
        crafted = [Crafted(*c(model, pair), model, pair, rule_of(c), others) for c in crafters]
        seconds = {}
        for plain in (True, False):
            games = [
                BlackBox(gradients, LDPSGD(epsilon=epsilon), LDPServer(), np.random.default_rng(0))
                for gradients in crafted
                for epsilon in EPSILONS
            ]
            began = time.process_time()
            play(games, trials, 0, plain=plain)
            seconds[plain] = (time.process_time() - began) / (trials * len(games))
        slow, fast = (1e6 * seconds[plain] for plain in (True, False))
        print(f"| {name} | {slow:.1f} | {fast:.1f} | {slow / fast:.1f}× |")


def dummy(dim: int, norm: float = 1.0) -> Crafted:
    """Return the dummy gradient and its negative."""
    task = Task(input_shape=(1,), classes=2)
    pair = Pair(torch.zeros(2, 1), torch.zeros(2, dtype=torch.long), task)
    vector = np.full(dim, norm / math.sqrt(dim), dtype=np.float32)
    return Crafted(vector, -vector, nn.Linear(1, 1), pair, "signs", np.empty((0, dim), np.float32))


def tightness(seeds: int, trials: int = 100_000) -> None:
    """Print the quoted bound in the worst case, over many audits."""
    print(f"\n| ε | mean bound | mean over ε | least | above 0.95 ε | above ε | ({seeds} audits of {trials:,} trials)")
    print("|---" * 6 + "|---|")
    gradients = dummy(10_650)
    for epsilon in EPSILONS:
        bounds = np.empty(seeds)
        for seed in range(seeds):
            rng = np.random.default_rng([seed, round(10 * epsilon)])
            played = white_box(gradients, LDPSGD(epsilon=epsilon), trials, rng)["white-box"]
            bounds[seed] = estimates([played], delta=0.0, confidence=0.95)[0].epsilon
        print(
            f"| {epsilon:g} | {bounds.mean():.4f} | {bounds.mean() / epsilon:.4f} | {bounds.min():.4f} | "
            f"{100 * np.mean(bounds > 0.95 * epsilon):.1f}% | {100 * np.mean(bounds > epsilon):.1f}% | |",
            flush=True,
        )


class Doubled(LDPSGD):
    """A bug: e^2ε where e^ε is claimed."""

    @property
    def chance(self) -> float:
        """Return the wrong probability."""
        return float(special.expit(2 * self.epsilon))


class Unclipped(LocalGaussian):
    """A bug: gradients are not clipped to the norm that the noise is made for."""

    def clipped(self, gradient: object) -> np.ndarray:
        """Return the gradient unclipped."""
        return np.asarray(gradient, dtype=np.float64)


class WithoutNormProjection(LDPSGD):
    """Line 2 of Algorithm 1 left out."""

    def _direction(self, gradient: npt.ArrayLike) -> tuple[np.ndarray, float]:
        """Return full length for short gradients too."""
        return super()._direction(gradient)[0], 1.0


def bugs(trials: int = TRIALS) -> None:
    """Print the claim, the bound and the verdict for mechanisms with bugs."""
    print(f"\n| bug | claimed ε | lower bound ({trials:,} trials) | |\n|---|---|---|---|")
    cases = [
        *[("LDP-SGD with e^2ε", Doubled(epsilon=epsilon), 1.0) for epsilon in EPSILONS],
        *[("Gaussian, clipping skipped, gradient of norm 8L", Unclipped(epsilon=e), 8.0) for e in EPSILONS],
        (
            "LDP-SGD, line 2 skipped, gradient of norm L/2 (the claim still holds)",
            WithoutNormProjection(epsilon=2.0),
            0.5,
        ),
    ]
    for label, mechanism, norm in cases:
        played = white_box(dummy(10_650, norm), mechanism, trials, np.random.default_rng(0))["likelihood-ratio"]
        bound = estimates([played], delta=mechanism.delta, confidence=0.95)[0].epsilon
        verdict = "refuted" if bound > mechanism.epsilon else "not refuted"
        print(f"| {label} | {mechanism.epsilon:g} | {bound:.3f} | {verdict} |")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--measurements", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=1000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = load(options.data).train
    speed(data, options.measurements)
    black_box_ways(data)
    tightness(options.seeds)
    bugs()


if __name__ == "__main__":
    main()
