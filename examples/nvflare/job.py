"""Audit a federated training with NVFLARE in its simulator; the lines of the audit are marked.

    python examples/nvflare/job.py                      # a correct aggregator: its claim is not refuted
    python examples/nvflare/job.py --noise-factor 0.5   # half of the claimed noise: refuted

The result goes to runs/nvflare: coalmine report runs/nvflare.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from noisy_mean import NoisyMean
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import FrameworkType, ScriptRunner

from coalmine.integrations.nvflare import CanaryAggregator  # audit

CLIENTS, CLIP, NOISE = 10, 0.5, 1.0


def simulate(*, out: str, rounds: int, canaries: int, clients: int = CLIENTS, noise_factor: float = 1.0) -> None:
    """Run the job in NVFLARE's simulator, in processes of its own."""
    aggregator = NoisyMean(CLIP, noise_factor * NOISE)
    aggregator = CanaryAggregator(  # audit
        aggregator, rounds=rounds, clip_norm=CLIP, noise_multiplier=NOISE, canaries=canaries, out=out,
    )  # fmt: skip
    model = {"weight": np.zeros((64, 10)).tolist(), "bias": np.zeros(10).tolist()}  # plain lists, for the job's file
    job = FedJob(name="digits", min_clients=clients)
    job.to_server(FedAvg(num_clients=clients, num_rounds=rounds, model=model, aggregator=aggregator))
    job.to_clients(ScriptRunner(script=str(Path(__file__).with_name("client.py")), framework=FrameworkType.NUMPY))
    with tempfile.TemporaryDirectory() as workspace:
        job.simulator_run(workspace, n_clients=clients, threads=clients)


def main() -> None:
    """Train, and print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise-factor", type=float, default=1.0)
    parser.add_argument("--canaries", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", default="runs/nvflare")
    arguments = parser.parse_args()
    out = str(Path(arguments.out).resolve())  # the server has another working directory
    simulate(out=out, rounds=arguments.rounds, canaries=arguments.canaries, noise_factor=arguments.noise_factor)


if __name__ == "__main__":
    main()
