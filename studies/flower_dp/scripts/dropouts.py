"""The noise is for num_sampled_clients, the average is over the replies. Accounted mode skips such rounds."""

import numpy as np
from common import CLIP, record, released, reply, report

model = record(weight=np.zeros(2))
other = reply(record(weight=np.array([1e-3, 0.0])))
with_client = released(model, [other, reply(record(weight=np.array([CLIP, 0.0])))], sampled=20)["weight"].numpy()
without = released(model, [other, reply(record(weight=np.array([1e-3, 0.0])))], sampled=20)["weight"].numpy()
report("2 of 20 clients replied", float(with_client[0] - without[0]), 20)
