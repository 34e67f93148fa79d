"""The noise is for equal weights, but FedAvg weights by num-examples by default. Accounted mode refuses this."""

import numpy as np
from common import CLIP, record, released, reply, report

model = record(weight=np.zeros(2))
others = [reply(record(weight=np.array([1e-3, 0.0]))) for _ in range(9)]
with_client = released(model, [*others, reply(record(weight=np.array([CLIP, 0.0])), weight=1000)])["weight"].numpy()
without = released(model, [*others, reply(record(weight=np.array([1e-3, 0.0])), weight=1000)])["weight"].numpy()
report("a client with a thousand times the examples", float(with_client[0] - without[0]), 10)
