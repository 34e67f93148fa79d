"""Adaptive clipping: the clip norm moves before the noise is drawn, and it moves the wrong way.

Updates are clipped to the old norm and the noise is scaled to the new one. The norm falls where more updates are
clipped than wanted, where Andrew et al. (2021) let it rise: from the recommended 0.1 it goes to zero, and the noise
with it.
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
    update = np.full(dim, 10 / np.sqrt(dim))  # all clients send the same, a hundred times too long
    model, _ = strategy.aggregate_train(number, [reply(record(weight=before + update)) for _ in range(clients)])
    noise = model["weight"].numpy() - before - update * clip / 10
    promised = 1.0 * clip / clients
    print(f"round {number}: clip norm {clip:.4f}, noise {noise.std() / promised:.3f} of what is promised")
