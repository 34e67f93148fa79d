"""PercentilePrivacy with a setting out of range sends the update as it is, and says so in a debug message only.

It returns None, which the base class DXOFilter takes for "nothing to filter".
"""

import numpy as np
from common import sent
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy

for settings in ({}, {"percentile": 110}, {"gamma": 0}, {"gamma": -0.01}):
    weights = sent(PercentilePrivacy(**settings), {"weights": np.array([-5.0, 0.001, 5.0])}).data["weights"]
    print(f"PercentilePrivacy({settings or ''}) sends {weights}")
