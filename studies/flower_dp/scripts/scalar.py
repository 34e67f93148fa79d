"""Scalar parameters (BatchNorm's num_batches_tracked, a learned temperature) are not clipped.

`np.subtract` of two 0-d arrays returns a NumPy scalar, and `array *= scaling_factor` only rebinds the loop variable.
"""

from common import record, released, reply, report

model = record(scale=0.0)
others = [reply(record(scale=1e-3)) for _ in range(9)]
with_client = released(model, [*others, reply(record(scale=1000.0))])["scale"].numpy()
without = released(model, [*others, reply(record(scale=1e-3))])["scale"].numpy()
report("a scalar parameter", float(with_client - without), 10)
