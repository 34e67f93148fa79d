"""Integer arrays crash the training; integer scalars (BatchNorm's counter) are not clipped."""

import numpy as np
from common import record, released, reply, report

model = record(weight=np.zeros(2), counts=np.array([1, 2]))
try:
    released(model, [reply(record(weight=np.ones(2), counts=np.array([5, 6])))] * 2)
    print("an array of integers is averaged like any other array")
except TypeError as error:
    print(f"an array of integers crashes the training: {type(error).__name__}: {error}")

model = record(weight=np.zeros(2), batches=0)
counters = []
for batches in (137, 0):
    others = [reply(record(weight=np.full(2, 1e-3), batches=0)) for _ in range(9)]
    replies = [*others, reply(record(weight=np.full(2, 1e-3), batches=batches))]
    counters.append(float(released(model, replies)["batches"].numpy()))
report("a client with 137 batches", counters[0] - counters[1], 10)
