"""Measure what the one-shot audit costs, which bugs it detects, and which score shows most.

    python benchmarks/one_shot.py overhead           # share of a round of the word LSTM, 1,000 canaries
    python benchmarks/one_shot.py memory             # extra memory at d = 4,000,000, 1,000 canaries
    python benchmarks/one_shot.py bugs [--seeds 50]  # trainers with and without a bug (examples/own_loop.py)
    python benchmarks/one_shot.py scores             # bounds and estimates by score
    python benchmarks/one_shot.py power              # share of audits that detect half the noise as planned
    python benchmarks/one_shot.py accuracy           # what canaries cost in accuracy, by their number per client

Costs are shares of the same run, since absolute times vary between machines.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coalmine import OneShot, plan
from coalmine.claims import Claim, EveryRound
from coalmine.errors import CanaryWarning
from coalmine.methods.one_shot.canaries import PlantedCanaries
from coalmine.protocol import Release
from coalmine.simulation import SGD, LocalTraining, Mechanism, Training, models
from coalmine.simulation.data import FederatedData, Task
from coalmine.simulation.flat import parameter_vector
from coalmine.simulation.settings import TrainingSettings


def sentences(clients: int, per_client: int = 40, positions: int = 20, tokens: int = 10_000) -> FederatedData:
    """Return random sentences of full length: only their shape matters here."""
    ids = np.random.default_rng(0).integers(4, tokens, (clients * per_client, positions + 1))
    stops = np.arange(1, clients + 1) * per_client
    return FederatedData(
        inputs=ids[:, :-1],
        targets=ids[:, 1:],
        bounds=np.stack([stops - per_client, stops], axis=1),
        names=[f"user-{i}" for i in range(clients)],
        task=Task(input_shape=(positions,), classes=tokens, tokens=tokens, per_position=True, ignored=0),
    )


class TimedOneShot(OneShot):
    """An audit that adds up the seconds it takes."""

    seconds = 0.0

    def plant(self, *args: Any, **options: Any) -> PlantedCanaries | None:
        """Insert the canaries of a round."""
        start = time.perf_counter()
        planted = super().plant(*args, **options)
        self.seconds += time.perf_counter() - start
        return planted

    def record(self, release: Release) -> None:
        """Score a release."""
        start = time.perf_counter()
        super().record(release)
        self.seconds += time.perf_counter() - start


def overhead(clients: int = 20, rounds: int = 20) -> None:
    """Print the audit's share of the training time of the word LSTM with realistic clients, checks included."""
    data = sentences(clients)
    print(f"word-lstm, {clients} clients of 40 x 20 words per round, 1,000 canaries inserted and 1,000 held out")
    print(f"{'view':<14}{'score':<18}{'round':>10}{'audit per round':>17}{'share':>9}")
    for view in ("final", "updates"):
        model = models.build("word-lstm", data.task)
        audit = TimedOneShot(parameter_vector(model).numel(), rounds=rounds, canaries=1000, view=view)
        training = Training(
            model=model,
            data=data,
            rounds=rounds,
            sampling=EveryRound(),
            client=LocalTraining(optimizer=SGD(learning_rate=0.1)),
            mechanism=Mechanism(clip_norm=1.0, noise_multiplier=0.5),
            audits=[audit],
        )
        seconds = []
        for until in range(1, rounds + 1):
            start, audit_before = time.perf_counter(), audit.seconds
            training.run(until=until)
            seconds.append((time.perf_counter() - start, audit.seconds - audit_before))
        # Medians: the first rounds also draw the canaries and allocate memory, and a busy machine has outliers.
        whole, in_audit = np.median(seconds, axis=0)
        shares = f"{whole:>8.2f} s{1e3 * in_audit:>14.1f} ms{in_audit / whole:>9.2%}"
        print(f"{view:<14}{audit.score:<18}{shares}", flush=True)
    print("target: below 1.5%")


def memory(dim: int = 4_000_000) -> None:
    """Print the peak extra memory of planting and observing, including the canaries' sum but not the release."""
    release = np.random.default_rng(0).standard_normal(dim).astype(np.float32)
    print(f"peak extra memory at d = {dim:,}, 1,000 canaries inserted and 1,000 held out")
    for view in ("final", "updates"):
        audit = OneShot(dim, rounds=1, canaries=1000, view=view)
        tracemalloc.start()
        audit.plant(0, clip_norm=1.0)
        audit.observe(0, **{audit.views[0].kind: release}, divisor=100.0)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        print(f"{view:<14}{peak / 2**20:8.1f} MiB (target: below 64)")


def bugs(seeds: int) -> None:
    """Print how often the quoted bound refutes each trainer's claim."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    import own_loop

    def planted_sum(planted: PlantedCanaries, clipped: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Return the sum of all clipped canaries. They have equal norms, so clipping one of them tells the factor."""
        canary = next(planted.each(norm=10 * own_loop.CLIP))
        return planted.total * np.float32(np.linalg.norm(clipped(canary)) / own_loop.CLIP)

    own_loop.planted_sum = planted_sum
    print(f"{'trainer':<18}{'claimed':>9}{'refuted':>12}{'bound: min':>14}{'median':>9}{'max':>9}")
    for bug in (None, *own_loop.BUGS):
        results = [own_loop.audited_training(seed, bug) for seed in range(seeds)]
        bounds = [result.bound.epsilon for result in results if result.bound is not None]
        refuted = sum(result.refuted for result in results)
        claimed = results[0].claim.epsilon if results[0].claim is not None else np.inf
        print(
            f"{bug or 'correct':<18}{claimed:>9.2f}{f'{refuted} of {seeds}':>12}{min(bounds):>14.2f}"
            f"{np.median(bounds):>9.2f}{max(bounds):>9.2f}",
            flush=True,
        )


def scores(seeds: int = 20, dim: int = 20_000, rounds: int = 20) -> None:
    """Print the mean ε of each score on simulated DP-FedAvg: Gaussian noise plus a constant client update."""
    print(
        f"{rounds} rounds, {dim:,} parameters, 500 canaries inserted and 500 held out, noise multiplier 2, "
        f"mean of {seeds} runs, δ = 1e-5"
    )
    print(f"{'participation':<15}{'view':<14}{'score':<18}{'claimed':>9}{'shift':>9}{'exact-null':>12}{'one-run':>9}")
    for participation in ("epochs:1", "epochs:4", "poisson:0.2", "every-round"):
        for view, score in (
            ("final-change", None), ("every:5", "max"), ("every:5", "sum"), ("updates", "max"), ("updates", "sum"),
            ("updates", "likelihood-ratio"),
        ):  # fmt: skip
            epsilons: dict[str, list[float]] = {}
            audits = [_simulated(participation, view, score, seed, dim, rounds) for seed in range(seeds)]
            claimed = audits[0].claim(noise_multiplier=2.0, delta=1e-5).epsilon
            for audit in audits:
                for e in audit.result(delta=1e-5).estimates:
                    epsilons.setdefault(e.method, []).append(e.epsilon)
            means = [
                f"{np.mean(epsilons[m]):.2f}" if m in epsilons else "-"
                for m in ("gaussian-shift", "exact-null", "one-run")
            ]
            print(
                f"{participation:<15}{view:<14}{audits[0].score:<18}{claimed:>9.2f}{means[0]:>9}{means[1]:>12}{means[2]:>9}",
                flush=True,
            )


def _simulated(participation: str, view: str, score: str | None, seed: int, dim: int, rounds: int) -> OneShot:
    """Return an audit that has observed one simulated training."""
    rng = np.random.default_rng(seed)
    needs_initial = view.startswith(("every", "final-"))
    audit = OneShot(
        dim, rounds=rounds, canaries=500, view=view, score=score, participation=participation, seed=seed,
        initial=np.zeros(dim) if needs_initial else None,
    )  # fmt: skip
    drift = rng.standard_normal(dim).astype(np.float32)
    drift *= 20 / np.linalg.norm(drift)
    model = np.zeros(dim, dtype=np.float32)
    for t in range(rounds):
        planted = audit.plant(t, clip_norm=1.0)
        assert planted is not None
        total = planted.total + drift + rng.normal(0, 2.0, dim)
        divisor = 50 + planted.clients
        update = (total / divisor).astype(np.float32)
        model = model + update
        released = audit.views[0]
        if released.shows(t, rounds):
            audit.observe(t, **{released.kind: update if released.kind == "update" else model}, divisor=divisor)
    return audit


def power(audits: int, dim: int = 8192) -> None:
    """Print how many audits refute a claim of twice the noise, with as many canaries as planned for 80% power."""
    print(f"{'view':<14}{'participation':<15}{'canaries':>9}{'refuted':>9}")
    for view, participation, noise, rounds in (
        ("updates", "every-round", 3.0, 10),
        ("final-change", "poisson:0.5", 2.0, 40),
        ("updates", "poisson:0.2", 1.0, 20),
    ):
        planned = plan(noise_multiplier=noise, sampling=participation, rounds=rounds, view=view)
        (canaries,) = [row.canaries for row in planned.rows if (row.noise, row.power) == (0.5, 0.8)]
        refuted = [
            _half_the_noise(canaries or 0, view, participation, noise, rounds, dim, seed) for seed in range(audits)
        ]
        print(f"{view:<14}{participation:<15}{canaries:>9}{np.mean(refuted):>9.0%}", flush=True)


def _half_the_noise(
    canaries: int, view: str, participation: str, noise: float, rounds: int, dim: int, seed: int
) -> bool:
    """Return whether an audit of half the claimed noise, without any client, refutes the claim."""
    rng = np.random.default_rng(seed)
    audit = OneShot(
        dim, rounds=rounds, canaries=canaries, view=view, participation=participation, seed=seed, design="fixed",
        initial=np.zeros(dim) if view == "final-change" else None,
    )  # fmt: skip
    model = np.zeros(dim, dtype=np.float32)
    for t in range(rounds):
        planted = audit.plant(t, clip_norm=1.0)
        assert planted is not None
        divisor = 50 + planted.clients
        update = ((planted.total + rng.normal(0, noise / 2, dim)) / divisor).astype(np.float32)
        model = model + update
        if view == "updates":
            audit.observe(t, update=update, divisor=divisor)
        elif t == rounds - 1:
            audit.observe(t, model=model)
    test = audit.result(claim=Claim(sampling=audit.participation, noise_multiplier=noise, delta=1e-5)).claim_test
    return test is not None and test.refuted


def accuracy(seeds: int) -> None:
    """Print the quality of the bundled digits training by its number of canaries, with and without longer steps."""
    warnings.simplefilter("ignore", CanaryWarning)
    settings = [TrainingSettings(seed=seed) for seed in range(seeds)]
    print(
        f"digits, {settings[0].rounds} rounds, noise multiplier {settings[0].noise_multiplier}, mean of {seeds} seeds"
    )
    print(f"{'canaries':>8}{'per round':>11}{'clients':>9}{'accuracy':>10}{'loss':>7}   with a scaled learning rate")
    for canaries in (0, 6, 12, 25, 50, 100, 250, 1000):
        as_set, scaled = ([_digits(each, canaries, make_up=make_up) for each in settings] for make_up in (False, True))
        clients, due = as_set[0]["expected_clients"], as_set[0]["expected_canaries"]
        means = [np.mean([run[name] for run in runs]) for runs in (as_set, scaled) for name in ("accuracy", "loss")]
        print(
            f"{canaries:>8}{due:>11.1f}{clients:>9.1f}{means[0]:>10.3f}{means[1]:>7.2f}{means[2]:>13.3f}{means[3]:>7.2f}",
            flush=True,
        )


def _digits(settings: TrainingSettings, canaries: int, *, make_up: bool) -> dict[str, float]:
    """Return the final metrics of a training whose server may make up for the shorter steps beside canaries."""
    splits = settings.splits()
    module = settings.module(splits)
    start = parameter_vector(module).numpy()
    clients = settings.cohorts().expected(len(splits.train), 0)
    rate = clients / len(splits.train)
    if make_up:
        server = settings.server
        longer = server.learning_rate * (clients + rate * canaries) / clients
        settings = settings.model_copy(update={"server": server.model_copy(update={"learning_rate": longer})})
    audits = []
    if canaries:
        audits = [
            OneShot(
                start.size, rounds=settings.rounds, canaries=canaries, view="final-change",
                participation=f"poisson:{rate}", initial=start, seed=settings.seed,
            )
        ]  # fmt: skip
    training = settings.training(splits, module, audits)
    training.run()
    return {**training.state.history[-1], "expected_clients": clients, "expected_canaries": rate * canaries}


def main() -> None:
    """Run the measurement named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("overhead", "memory", "bugs", "scores", "accuracy", "power"))
    parser.add_argument("--seeds", type=int, default=50)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    match arguments.what:
        case "overhead":
            overhead()
        case "memory":
            memory()
        case "bugs":
            bugs(arguments.seeds)
        case "power":
            power(60)
        case "accuracy":
            accuracy(min(arguments.seeds, 3))
        case _:
            scores(min(arguments.seeds, 20))


if __name__ == "__main__":
    main()
