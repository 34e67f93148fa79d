"""The ServerApp: DP-FedAvg with Flower's accountant, in which the lines of the audit are marked."""

import random
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.supercore.privacy_accounting import NeighboringRelation, PrivacyConfig, SamplingMethod
from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant

from coalmine import OneShot  # audit
from coalmine.claims import Claim
from coalmine.integrations.flower import CanaryGrid  # audit
from digits_app.task import accuracy, build

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and print what the audit shows."""
    config = context.run_config
    rounds, clip, canaries = int(config["num-server-rounds"]), float(config["clip-norm"]), int(config["canaries"])
    random.seed(int(config["seed"]))
    np.random.seed(int(config["seed"]))
    first = ArrayRecord(build().state_dict())
    clients = int(config["clients"])
    while len(list(grid.get_node_ids())) < max(2, clients):  # FedAvg counts nodes before it waits for them
        time.sleep(0.5)
    clients = clients or len(list(grid.get_node_ids()))
    nodes = clients + 2 * canaries  # audit: canaries are nodes, inserted and held out

    audit = OneShot(  # audit
        build().state_dict(), rounds=rounds, canaries=canaries, view="updates", participation="every-round",
    )  # fmt: skip
    grid = CanaryGrid(grid, audit, clip_norm=clip, length=5.0)  # audit: 5 clip norms long, to test clipping

    spent = RdpAccountant(
        PrivacyConfig(1e-5, nodes, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION)
    )
    noise = float(config["noise-multiplier"])
    strategy = DifferentialPrivacyServerSideFixedClipping(
        FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=nodes),
        noise_multiplier=noise,
        clipping_norm=clip,
        num_sampled_clients=nodes,
        accountant=spent,
    )

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model = build()
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": accuracy(model)})

    trained = strategy.start(
        grid=grid, initial_arrays=first, num_rounds=rounds, evaluate_fn=grid.recorder(evaluate)  # audit
    )  # fmt: skip
    claim = Claim(noise_multiplier=noise, delta=1e-5)  # audit: the noise multiplier allows more checks than ε
    last = float(trained.evaluate_metrics_serverapp[rounds]["accuracy"])
    result = audit.result(claim=claim, metrics={"accuracy": last})  # audit
    for e in result.estimates:
        print(f"{e.method:<22} {e.epsilon:8.3f}  {'lower bound' if e.valid else 'estimate'}")
    print(f"\naccuracy {last:.3f}, ε = {spent.get_epsilon(1e-5):.2f} by Flower; {result.summary}")
    for warning in result.warnings:
        print(f"warning: {warning}")
    out = Path(str(config["out"])).expanduser()
    result.save(out, overwrite=True)  # audit
    print(f"\nresult in {out.resolve()}: coalmine report {out}")
