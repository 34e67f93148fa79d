"""Cost of Flower compared with coalmine's simulator, cost of the audit on Flower, and agreement of their scores.

    python benchmarks/flower.py cost                # CPU time per round: simulator, plain loop, LocalGrid
    python benchmarks/flower.py overhead            # the audit's share of a LocalGrid training
    python benchmarks/flower.py same [SCORES.npz]   # scores of the simulator against LocalGrid and a run's file

The app is examples/flower. To make a file for `same`, run the app with hardly any noise:
python examples/flower/demo.py --engine simulation --nodes 10 --rounds 3 --noise 1e-6 --out DIR
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import contextlib
import io
import logging
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from coalmine import OneShot
from coalmine.claims import FixedSize
from coalmine.integrations.flower import CanaryGrid, Layout, LocalGrid
from coalmine.simulation import SGD, FixedClipping, LocalTraining, Mechanism, Training
from coalmine.simulation.data import FederatedData, Task

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "flower"))
from digits_app import task
from digits_app.client_app import app

CLIP = 0.5


def federation(clients: int) -> FederatedData:
    """Return the app's partitions as federated data."""
    parts = [task.partition(i, clients) for i in range(clients)]
    stops = np.cumsum([len(x) for x, _ in parts])
    return FederatedData(
        inputs=np.concatenate([x.numpy() for x, _ in parts]),
        targets=np.concatenate([y.numpy() for _, y in parts]),
        bounds=np.stack([np.concatenate([[0], stops[:-1]]), stops], axis=1),
        names=[str(i) for i in range(clients)],
        task=Task(input_shape=(64,), classes=10),
    )


def audit_of(rounds: int, canaries: int, participation: str = "every-round") -> OneShot:
    """Return the audit of the app."""
    dim = Layout.of(ArrayRecord(task.build().state_dict())).dim
    return OneShot(dim, rounds=rounds, canaries=canaries, view="updates", participation=participation)


def simulator(clients: int, rounds: int, audit: OneShot | None = None, data: FederatedData | None = None) -> Training:
    """Return the same training in the simulator.

    Flower's divisor counts held-out canaries too, which the server's learning rate makes up for.
    """
    rate = 1.0 if audit is None else (clients + audit.canaries) / (clients + 2 * audit.canaries)
    return Training(
        model=task.build(),
        data=data or federation(clients),
        rounds=rounds,
        sampling=FixedSize(clients),
        client=LocalTraining(optimizer=SGD(learning_rate=0.5), epochs=5, batch_size=None),
        mechanism=Mechanism(clipping=FixedClipping(CLIP), noise_multiplier=0.0),
        server=SGD(learning_rate=rate),
        audits=[] if audit is None else [audit],
    )


def flower(clients: int, rounds: int, audit: OneShot | None = None, seats: int = 0) -> Callable[[], None]:
    """Return a function that runs the same training on a LocalGrid."""
    strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(fraction_evaluate=0.0), 0.0, CLIP, clients + seats)
    inner = LocalGrid(app, nodes=clients)
    grid = inner if audit is None else CanaryGrid(inner, audit, clip_norm=CLIP, length=5.0)
    record = None if audit is None else grid.recorder()
    first = ArrayRecord(task.build().state_dict())
    return lambda: strategy.start(grid=grid, initial_arrays=first, num_rounds=rounds, evaluate_fn=record)


def plain_loop(clients: int, rounds: int) -> None:
    """Run FedAvg with clipping in plain PyTorch."""
    from torch.nn.utils import parameters_to_vector, vector_to_parameters

    model = task.build()
    for _ in range(rounds):
        start = parameters_to_vector(model.parameters()).detach().clone()
        total = start * 0
        for i in range(clients):
            vector_to_parameters(start.clone(), model.parameters())
            task.fit(model, *task.partition(i, clients))
            update = parameters_to_vector(model.parameters()).detach() - start
            total += update * min(1.0, CLIP / float(update.norm()))
        vector_to_parameters(start + total / clients, model.parameters())


def seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """Return CPU seconds, the best of a few runs, since the machine may be busy."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        with quiet():
            work()
        times.append(time.process_time() - start)
    return min(times)


@contextmanager
def quiet() -> Iterator[None]:
    """Seed Flower's global generators and silence its output."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def cost(clients: int = 50, rounds: int = 4) -> None:
    """Print the CPU time per round."""
    data = federation(clients)
    training = seconds(lambda: simulator(clients, rounds, data=data).run())
    loop = seconds(lambda: plain_loop(clients, rounds))
    local = seconds(flower(clients, rounds))
    print(f"digits, {clients} clients per round, CPU time per round")
    for name, cpu in (("simulator", training), ("plain PyTorch loop", loop), ("LocalGrid", local)):
        print(f"{name:<22}{1e3 * cpu / rounds:>9.1f} ms{cpu / training:>8.1f} x simulator{cpu / loop:>8.1f} x loop")


def overhead(clients: int = 50, rounds: int = 10, canaries: int = 25) -> None:
    """Print what the audit adds to a training on Flower, compared with the same number of real nodes."""
    audit = audit_of(rounds, canaries, "epochs:1")
    seats = 2 * canaries // rounds
    plain = seconds(flower(clients + seats, rounds))
    start = time.process_time()
    with quiet():
        flower(clients, rounds, audit, seats)()
    audited = time.process_time() - start
    audit_seconds = audit.result().timing["audit_s"]
    print(f"{clients} clients and {seats} canaries per round: {1e3 * audited / rounds:.1f} ms CPU per round")
    print(f"the same with {clients + seats} clients: {1e3 * plain / rounds:.1f} ms, so {audited / plain - 1:+.1%}")
    print(f"in the audit itself (inserting and scoring, wall time): {1e3 * audit_seconds / rounds:.1f} ms per round")


def same(path: str | None, clients: int = 10, rounds: int = 3, canaries: int = 20) -> None:
    """Print the largest difference between canary scores."""
    ours, theirs = audit_of(rounds, canaries), audit_of(rounds, canaries)
    with quiet():
        simulator(clients, rounds, ours).run()
        flower(clients, rounds, theirs, 2 * canaries)()
    pairs = {"LocalGrid": np.concatenate(theirs.scores())}
    if path is not None:
        stored = np.load(path)
        pairs[path] = np.concatenate([stored["members"], stored["nonmembers"]])
    expected = np.concatenate(ours.scores())
    for name, scores in pairs.items():
        # Files hold sorted scores.
        gap = np.abs(np.sort(expected) - np.sort(scores)).max()
        print(f"{name}: {len(scores)} scores up to {expected.max():.2f}, at most {gap:.1e} from the simulator's")


def main() -> None:
    """Run the chosen benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cost", "overhead", "same"))
    parser.add_argument("scores", nargs="?")
    parser.add_argument("--nodes", type=int, default=10)
    arguments = parser.parse_args()
    if arguments.what == "same":
        same(arguments.scores, clients=arguments.nodes)
    else:
        {"cost": cost, "overhead": overhead}[arguments.what]()


if __name__ == "__main__":
    main()
