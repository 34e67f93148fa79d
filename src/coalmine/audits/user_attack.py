"""Was this user in the training? A score for each user from all of their own examples.

The secret-sharer paper leaves it as future work: phrases speak of records, and this of a user's whole data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from coalmine.accounting import Theory
from coalmine.audits.result import AuditResult
from coalmine.data.federated import Array, FederatedData, Task
from coalmine.errors import InputError
from coalmine.fl.client import ignored_index, input_tensor
from coalmine.stats import Scores, ceiling, estimate
from coalmine.stats.arrays import Floats, Ints

_SPLIT_AT_RANDOM = "training and test users were split at random, and each is one person"


def user_attack(
    module: nn.Module,
    *,
    members: FederatedData,
    nonmembers: FederatedData,
    own: Mapping[int, Ints] | None = None,
    reference: nn.Module | None = None,
    delta: float = 1e-5,
    confidence: float = 0.95,
    theory: Theory | None = None,
    seed: int = 0,
) -> AuditResult:
    """ε from a score for each user: minus the mean loss of their examples, less that of a ``reference`` model.

    ``own`` gives for some members the rows that are theirs, without canaries. Of users that a partition cut into
    several clients ("name#0", "name#1", …) only the first is taken: the others would not be independent of it. Synthetic
    clients of shuffled examples have no identity to attack and are refused.
    """
    scores = Scores(
        *(
            _scores(module, reference, data, _persons(data), rows)
            for data, rows in ((members, own or {}), (nonmembers, {}))
        )
    )
    found = estimate(scores.members, scores.nonmembers, delta=delta, confidence=confidence)
    count, others = len(scores.members), len(scores.observed)
    return AuditResult(
        audit="secret-sharer",
        view="users",
        seed=seed,
        estimates=[replace(e, assumes=f"{e.assumes}; {_SPLIT_AT_RANDOM}") if e.valid else e for e in found],
        scores=scores,
        theory=theory,
        ceiling=ceiling(count, others, delta=delta, confidence=confidence),
        metrics={"planted": float(count), "held_out": float(others)},
        config={"score": "loss of all examples" if reference is None else "calibrated loss of all examples"},
    )


def _persons(data: FederatedData) -> Ints:
    """One client for each user."""
    if data.names[0].startswith("iid-"):
        raise InputError(
            "clients of shuffled examples are nobody: attack users under the partition natural or balanced"
        )
    owners = [name.rpartition("#")[0] or name for name in data.names]
    return np.sort(np.unique(np.array(owners), return_index=True)[1])


def _scores(
    module: nn.Module, reference: nn.Module | None, data: FederatedData, clients: Ints, own: Mapping[int, Ints]
) -> Floats:
    found = []
    for client in clients.tolist():
        rows = own.get(client)
        examples = data.client(client)
        inputs, targets = (
            (examples.inputs, examples.targets) if rows is None else (data.inputs[rows], data.targets[rows])
        )
        if not len(inputs):
            continue
        loss = _mean_loss(module, data.task, inputs, targets)
        calm = 0.0 if reference is None else _mean_loss(reference, data.task, inputs, targets)
        found.append(calm - loss)
    return np.array(found)


@torch.no_grad()
def _mean_loss(module: nn.Module, task: Task, inputs: Array, targets: Array) -> float:
    logits = module.eval()(input_tensor(inputs, task)).flatten(0, -2)
    labels = torch.from_numpy(targets.astype(np.int64)).flatten()
    return float(F.cross_entropy(logits, labels, ignore_index=ignored_index(task)))
