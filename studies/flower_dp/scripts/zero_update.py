"""A client whose update is exactly zero ends the training: `clipping_norm / 0.0`."""

import numpy as np
from common import record, released, reply

model = record(weight=np.ones(4))
try:
    released(model, [reply(record(weight=np.ones(4)))] * 2)
    print("a client without an update is taken for what it is")
except ZeroDivisionError as error:
    print(f"a client without an update ends the training: {error!r}")
