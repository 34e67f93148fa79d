"""AddNoiseToMinMax multiplies by a factor within known limits, so the server knows the maximum within those limits.

A maximum of 100 is sent as 110 to 130, one of 150 as 165 to 195: which record is the largest is certain.
"""

import numpy as np
from nvflare.app_common.statistics.min_max_cleanser import AddNoiseToMinMax

cleanser = AddNoiseToMinMax(min_noise_level=0.1, max_noise_level=0.3)
for largest in (100.0, 150.0, 0.0):
    messages = [{"max": {"train": {"age": largest}}} for _ in range(1000)]
    sent = [cleanser.apply(message, "site-1")[0]["max"]["train"]["age"] for message in messages]
    print(f"maximum {largest}: sends {np.min(sent):.3g} to {np.max(sent):.3g}")
