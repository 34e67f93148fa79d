"""Neither filter clips or noises a scalar (0-d) array, such as BatchNorm's num_batches_tracked.

SVTPrivacy documents this and flags it in the metadata; PercentilePrivacy does not.
"""

import numpy as np
from common import sent
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_common.filters.svt_privacy import SVTPrivacy

for privacy_filter in (SVTPrivacy(), PercentilePrivacy()):
    dxo = sent(privacy_filter, {"weight": np.ones(10), "num_batches_tracked": np.array(1234.0)})
    flag = dxo.meta.get("svt_privacy_budget", {}).get("has_scalar_passthrough")
    print(f"{type(privacy_filter).__name__} sends {dxo.data['num_batches_tracked']}; flagged: {flag}")
