"""Noise is added after the server's optimizer, but at the scale of the average before it.

FedAdam takes a step of nearly the same size whatever it is given; FedAvgM and the others also keep sums without noise.
Accounted mode refuses strategies that aggregate differently from FedAvg.
"""

import numpy as np
from common import CLIP, record, released, reply, report
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedYogi

for kind in (FedAdam, FedYogi, FedAdagrad):
    model = record(weight=np.zeros(2))
    others = [reply(record(weight=np.array([0.0, 1e-3]))) for _ in range(99)]
    inner = [kind(fraction_evaluate=0.0, eta=1.0) for _ in range(2)]
    client = reply(record(weight=np.array([CLIP, 0.0])))
    with_client = released(model, [*others, client], inner[0])["weight"].numpy()
    without = released(model, [*others, reply(record(weight=np.array([0.0, 1e-3])))], inner[1])["weight"].numpy()
    report(kind.__name__, float(with_client[0] - without[0]), 100)
