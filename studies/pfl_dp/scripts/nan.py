"""An update with one NaN is not clipped at all: its norm is NaN, which is not above the bound."""

import numpy as np
from pfl.privacy import GaussianMechanism
from pfl.stats import MappedVectorStatistics

update = MappedVectorStatistics({"weights": np.array([np.nan, 1000.0, -1000.0])})
clipped, _ = GaussianMechanism(clipping_bound=1.0, relative_noise_stddev=2.0).constrain_sensitivity(update)
print("sent:", update["weights"], " counted:", clipped["weights"], " clipping bound: 1")
