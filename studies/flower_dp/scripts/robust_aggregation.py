"""Median and Krum do not divide a client's influence by the number of clients, but the noise is divided by it."""

import numpy as np
from common import CLIP, record, released, reply, report
from flwr.serverapp.strategy import FedMedian, FedTrimmedAvg, Krum

for kind, settings in ((FedMedian, {}), (Krum, {"num_malicious_nodes": 1}), (FedTrimmedAvg, {"beta": 0.4})):
    model = record(weight=np.zeros(2))
    releases = []
    for last in ([CLIP, 0.0], [0.0, 1e-6]):
        sides = [[side * CLIP, 0.0] for side in [1] * 6 + [-1] * 6]
        replies = [reply(record(weight=np.array(update))) for update in [*sides, last]]
        releases.append(released(model, replies, kind(fraction_evaluate=0.0, **settings))["weight"].numpy())
    report(kind.__name__, float(releases[0][0] - releases[1][0]), 13)
