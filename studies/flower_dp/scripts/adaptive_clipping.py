"""Adaptive clipping: the clip norm changes before the noise is drawn, and in the wrong direction.

Updates are clipped to the old norm, but the noise is scaled to the new one. And the norm falls if too many updates are
clipped, where Andrew et al. (2021) let it rise: from the recommended 0.1 it goes to zero, and the noise with it.
"""

import numpy as np
from common import record, reply
from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping, FedAvg

np.random.seed(0)
clients, dim = 100, 20_000
strategy = DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(fraction_evaluate=0.0), 1.0, clients)
model = record(weight=np.zeros(dim))
for number in range(1, 6):
    strategy.current_arrays, clip = model, strategy.clipping_norm
    before = model["weight"].numpy()
    update = np.full(dim, 10 / np.sqrt(dim))  # all clients send the same update, a hundred times the clip norm
    model, _ = strategy.aggregate_train(number, [reply(record(weight=before + update)) for _ in range(clients)])
    noise = model["weight"].numpy() - before - update * clip / 10
    claimed = 1.0 * clip / clients
    print(f"round {number}: clip norm {clip:.4f}, noise {noise.std() / claimed:.3f} of the claim")
