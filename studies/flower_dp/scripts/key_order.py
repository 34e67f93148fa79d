"""Replies are compared with the model by position: a client that reorders its arrays is clipped against the wrong ones.

FedAvg only checks that replies have the same *set* of keys. Client-side clipping checks the order too.
"""

import numpy as np
from common import record, released, reply, report

first, second = np.full(4, 5.0), np.full(4, -5.0)
model = record(first=first, second=second)
others = [reply(record(first=first + 1e-3, second=second)) for _ in range(9)]
honest, odd = reply(record(first=first + 1e-3, second=second)), reply(record(second=second, first=first))
with_client = released(model, [*others, odd])["first"].numpy()
without = released(model, [*others, honest])["first"].numpy()
report("the same model with its arrays in another order", float(np.linalg.norm(with_client - without)), 10)
