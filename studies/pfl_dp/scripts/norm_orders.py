"""NormClipping accepts any whole order and ∞, but takes absolute values for order 1 only (with PyTorch also for ∞).

So a negative entry does not count for the maximum, and its odd powers cancel others.
"""

import numpy as np
from pfl.privacy import NormClippingOnly
from pfl.stats import MappedVectorStatistics

for order in (1, 2, 3, np.inf):
    update = MappedVectorStatistics({"weights": np.array([-10.0, 0.1])})
    clipped = NormClippingOnly(order, clipping_bound=1.0).constrain_sensitivity(update)[0]["weights"]
    print(f"order {order}: {clipped.round(3)} has norm {np.linalg.norm(clipped, ord=order):.3f}; the bound is 1")
