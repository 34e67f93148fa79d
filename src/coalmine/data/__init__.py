"""Federated data: examples grouped by client, loaded from files or made up, under any partition."""

from coalmine.data.federated import Examples, FederatedData, Splits, Task
from coalmine.data.generated_text import generated_text
from coalmine.data.loading import from_datasets, load
from coalmine.data.named import NAMED
from coalmine.data.partition import Balanced, Dirichlet, Iid, Natural, Partition, repartition
from coalmine.data.partition import parse as parse_partition
from coalmine.data.splitting import Cut, split_by_user
from coalmine.data.store import open_saved, save
from coalmine.data.vocabulary import Vocabulary

NAMES = tuple(NAMED)

__all__ = [
    "NAMES",
    "Balanced",
    "Cut",
    "Dirichlet",
    "Examples",
    "FederatedData",
    "Iid",
    "Natural",
    "Partition",
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
