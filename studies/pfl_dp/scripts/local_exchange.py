"""ε of a local mechanism is about leaving out one's data; exchanging it for someone else's costs twice as much.

Two users at opposite ends of the clipping bound are 2 C apart, and the noise is for C.
"""

import numpy as np
from pfl.privacy import LaplaceMechanism
from pfl.stats import MappedVectorStatistics

mechanism, reports = LaplaceMechanism(clipping_bound=1.0, epsilon=1.0), {}
for value in (-1.0, 1.0):
    user = MappedVectorStatistics({"value": np.array([value])})
    reports[value] = np.array([mechanism.privatize(user, seed=seed)[0]["value"][0] for seed in range(3_000)])
likelier = np.mean(reports[1.0] > 1) / np.mean(reports[-1.0] > 1)
print(f"a report above 1 is {likelier:.1f} times as likely from one user as from the other: ε = {np.log(likelier):.2f}")
