"""A client whose update is exactly zero crashes the training: `clipping_norm / 0.0`."""

import numpy as np
from common import record, released, reply

model = record(weight=np.ones(4))
try:
    released(model, [reply(record(weight=np.ones(4)))] * 2)
    print("a zero update is averaged like any other")
except ZeroDivisionError as error:
    print(f"a zero update crashes the training: {error!r}")
