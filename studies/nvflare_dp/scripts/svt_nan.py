"""SVTPrivacy never ends on an update with too many NaNs: they are never accepted, and it waits for enough that are.

With fraction=1 one NaN is enough; with the default of 0.1, a training that has diverged.
"""

import multiprocessing

import numpy as np
from common import sent
from nvflare.app_common.filters.svt_privacy import SVTPrivacy


def send_update(fraction, update):
    """Filter an update."""
    sent(SVTPrivacy(fraction=fraction), {"weights": np.array(update)})


for fraction, update in ((1.0, [0.1, 0.2, np.nan]), (0.1, [np.nan] * 3), (1.0, [0.1, 0.2, 0.3])):
    process = multiprocessing.get_context("fork").Process(target=send_update, args=(fraction, update), daemon=True)
    process.start()
    process.join(3)
    print(f"fraction={fraction}, update {update}:", "still running after 3 s" if process.is_alive() else "done")
    process.kill()
