"""Federated data: examples grouped by client, loaded from files or generated, under any partition. See docs/data.md."""

from coalmine.simulation.data.federated import Examples, FederatedData, Splits, Task
from coalmine.simulation.data.generated_text import generated_text
from coalmine.simulation.data.loading import from_datasets, load
from coalmine.simulation.data.named import NAMED
from coalmine.simulation.data.partition import Balanced, Dirichlet, Iid, Natural, Partition, repartition
from coalmine.simulation.data.partition import parse as parse_partition
from coalmine.simulation.data.splitting import SplitOptions, split_by_user
from coalmine.simulation.data.store import open_saved, save
from coalmine.simulation.data.vocabulary import Vocabulary

NAMES = tuple(NAMED)

__all__ = [
    "NAMES",
    "Balanced",
    "Dirichlet",
    "Examples",
    "FederatedData",
    "Iid",
    "Natural",
    "Partition",
    "SplitOptions",
    "Splits",
    "Task",
    "Vocabulary",
    "from_datasets",
    "generated_text",
    "load",
    "open_saved",
    "parse_partition",
    "repartition",
    "save",
    "split_by_user",
]
