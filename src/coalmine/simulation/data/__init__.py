"""Federated data, grouped by client: loaded from files or generated, under any partition (docs/simulation.md).

`load` reads columns (`loading`) or generates text, splits users into train, test and pool (`splitting`), turns texts
into tokens (`text`), and regroups examples into clients. The result is `FederatedData`.
"""

from coalmine.simulation.data.federated import Examples, FederatedData, Splits, Task
from coalmine.simulation.data.loading import NAMES, load
from coalmine.simulation.data.splitting import SplitOptions, parse_partition, repartition, split_by_user
from coalmine.simulation.data.text import Vocabulary, generated_text

__all__ = [
    "NAMES",
    "Examples",
    "FederatedData",
    "SplitOptions",
    "Splits",
    "Task",
    "Vocabulary",
    "generated_text",
    "load",
    "parse_partition",
    "repartition",
    "split_by_user",
]
