"""JointMechanism hands the same seed to each of its mechanisms, so that all of them add the same noise.

pfl draws one seed per round for `CentralContext`. With two Gaussian mechanisms, the difference of their parts has none.
"""

import numpy as np
from pfl.privacy import GaussianMechanism
from pfl.privacy.joint_mechanism import JointMechanism
from pfl.stats import MappedVectorStatistics

joint = JointMechanism({"first": (GaussianMechanism(1.0, 2.0), ["a"]), "second": (GaussianMechanism(1.0, 6.0), ["b"])})
total = MappedVectorStatistics({"a": np.array([0.1, 0.2, 0.3]), "b": np.zeros(3)})
noisy, _ = joint.add_noise(total, cohort_size=10, seed=12345)
print("released, first:       ", noisy["a"].round(3))
print("released, second:      ", noisy["b"].round(3))
print("first - second / 3:    ", (noisy["a"] - noisy["b"] / 3).round(3), "- the sums of the users, without noise")
