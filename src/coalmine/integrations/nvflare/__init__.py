"""Audits of NVFLARE trainings: an aggregator around yours adds canaries and looks at what comes out.

    FedAvg(num_clients=20, num_rounds=20, aggregator=CanaryAggregator(MyAggregator(...), rounds=20, ...))

docs/nvflare.md explains it, and examples/nvflare is a complete job.
"""

try:
    import nvflare  # noqa: F401
except ImportError:
    raise ImportError(
        "this integration needs NVFLARE, which is not installed: pip install 'coalmine[nvflare]'"
    ) from None

from coalmine.integrations.nvflare.aggregator import CanaryAggregator

__all__ = ["CanaryAggregator"]
