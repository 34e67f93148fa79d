"""Integer arrays: with a dimension they end the training, without one (BatchNorm's counter) they are not clipped."""

import numpy as np
from common import record, released, reply, report

model = record(weight=np.zeros(2), counts=np.array([1, 2]))
try:
    released(model, [reply(record(weight=np.ones(2), counts=np.array([5, 6])))] * 2)
    print("an array of integers is averaged like any other")
except TypeError as error:
    print(f"an array of integers ends the training: {type(error).__name__}: {error}")

model = record(weight=np.zeros(2), batches=0)
found = []
for batches in (137, 0):
    others = [reply(record(weight=np.full(2, 1e-3), batches=0)) for _ in range(9)]
    replies = [*others, reply(record(weight=np.full(2, 1e-3), batches=batches))]
    found.append(float(released(model, replies)["batches"].numpy()))
report("a client of 137 batches", found[0] - found[1], 10)
