"""What an audit and its checks cost: shares of the CPU time of a simulated training.

    python benchmarks/checks.py

The model has about 100,000 parameters, 50 clients take part in each round. The bar is 3% of the training's CPU time.
The claim test and the bounds, which come once after the training, are not part of it.
"""

from __future__ import annotations

import time
import warnings
from unittest import mock

from torch import nn

from coalmine import OneShot
from coalmine.claims import Claim, Poisson
from coalmine.methods.one_shot.inspection import Inspection
from coalmine.methods.one_shot.strata import StrataEvidence
from coalmine.simulation import FixedClipping, LocalTraining, Mechanism, Training
from coalmine.simulation.data import load

ROUNDS, RATE, BAR = 20, 1.0, 0.03


class Stopwatch:
    """CPU time spent in some methods."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, method):  # type: ignore[no-untyped-def]
        """Return the method with its time added up."""

        def call(*args, **settings):  # type: ignore[no-untyped-def]
            start = time.process_time()
            try:
                return method(*args, **settings)
            finally:
                self.seconds += time.process_time() - start

        return call


def main() -> None:
    """Print the share of the checks for clients that take five epochs, and for clients that take a single step."""
    warnings.simplefilter("ignore")
    measure(LocalTraining(epochs=5, batch_size=10))
    measure(LocalTraining())


def measure(client: LocalTraining) -> None:
    """Print the share of the checks."""
    data = load("digits").train
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 320), nn.ReLU(), nn.Linear(320, 10)
    )
    dim = sum(p.numel() for p in model.parameters())
    audit = OneShot(dim, rounds=ROUNDS, canaries=50, view="updates", participation="every-round")
    mechanism = Mechanism(clipping=FixedClipping(1.0), noise_multiplier=1.0)
    training = Training(
        model=model, data=data, rounds=ROUNDS, sampling=Poisson(RATE), mechanism=mechanism, audits=[audit],
        client=client,
    )  # fmt: skip
    checks, whole_audit = Stopwatch(), Stopwatch()
    with (
        mock.patch.object(OneShot, "plant", whole_audit.timed(OneShot.plant)),
        mock.patch.object(OneShot, "observe", whole_audit.timed(OneShot.observe)),
        mock.patch.object(OneShot, "cohort", whole_audit.timed(OneShot.cohort)),
        mock.patch.object(Inspection, "record", checks.timed(Inspection.record)),
        mock.patch.object(Inspection, "cohort", checks.timed(Inspection.cohort)),
        mock.patch.object(Inspection, "findings", checks.timed(Inspection.findings)),
        mock.patch.object(StrataEvidence, "add", checks.timed(StrataEvidence.add)),
    ):
        start = time.process_time()
        training.run()
        seconds = time.process_time() - start
        result = audit.result(claim=Claim(sampling=audit.participation, noise_multiplier=1.0, delta=1e-5))
    print(f"{dim:,} parameters, {len(data)} clients, {ROUNDS} rounds, {client}: {seconds:.2f} s of CPU time")
    for name, clock in (("checks", checks), ("whole audit", whole_audit)):
        print(f"{name}: {clock.seconds:.3f} s, {clock.seconds / seconds:.1%} (bar {BAR:.0%})")
    print(f"findings: {list(map(str, result.findings))}")


if __name__ == "__main__":
    main()
