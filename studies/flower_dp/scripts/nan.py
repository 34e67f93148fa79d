"""An update with one NaN is not clipped at all: `min(1, clipping_norm / nan)` is 1."""

import numpy as np
from common import record, released, reply, report

model = record(weight=np.zeros(4))
others = [reply(record(weight=np.full(4, 1e-3))) for _ in range(9)]
odd = reply(record(weight=np.array([np.nan, 1000.0, 0.0, 0.0])))
with_client = released(model, [*others, odd])["weight"].numpy()
without = released(model, [*others, reply(record(weight=np.full(4, 1e-3)))])["weight"].numpy()
report("an update with a NaN", float(with_client[1] - without[1]), 10)
