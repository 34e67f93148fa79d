"""The argument epsilon of SVTPrivacy is the budget of selecting coordinates; sending their values costs much more.

At default settings the accountant of the filter reports ε = 0.1 for each value that is sent, also in the metadata.
"""

import numpy as np
from common import sent
from nvflare.app_common.filters.svt_privacy import SVTPrivacy

for settings in ({}, {"epsilon_release": 0.1}):
    for size in (1_000, 1_000_000):
        privacy_filter = SVTPrivacy(**settings)
        sent(privacy_filter, {"weights": np.zeros(size, dtype=np.float32)})
        print(
            f"SVTPrivacy({settings or ''}), {size:,} parameters: ε = {privacy_filter.get_privacy_spent():,.1f} a round"
        )
