"""One NaN turns off PercentilePrivacy's selection: the percentile is NaN, and nothing is smaller than that."""

import numpy as np
from common import sent
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy

update = np.array([0.001, 0.002, 0.003, 0.004, 0.005, 0.006])
for last in (0.007, np.nan):
    weights = sent(PercentilePrivacy(percentile=50), {"weights": np.append(update, last)}).data["weights"]
    print(f"percentile=50, last number {last}: sends {weights}")
