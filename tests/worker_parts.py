"""Parts for workers, which have to be importable there."""

import os
import time
from pathlib import Path


def wait(file):
    """Say who works, and go on for ten minutes."""
    Path(file).write_text(str(os.getpid()))
    time.sleep(600)


def threads(_):
    """The number of threads of torch, and of every library of linear algebra."""
    import threadpoolctl
    import torch

    return {torch.get_num_threads(), *(pool["num_threads"] for pool in threadpoolctl.threadpool_info())}
