"""Was this user in the training? A score for each user from all of their own examples.

The secret-sharer paper leaves it as future work: phrases speak of records, and this of a user's whole data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn

from coalmine.accounting import Theory
from coalmine.arrays import Floats, Ints
from coalmine.errors import InputError
from coalmine.methods.estimates import first_judged, neighbors_apart
from coalmine.progress import track
from coalmine.results.result import AuditResult
from coalmine.simulation.client import ignored_index, tensors
from coalmine.simulation.data.federated import Examples, FederatedData, Task
from coalmine.stats import Scores, ceiling, estimate

_SPLIT_AT_RANDOM = "training and test users were split at random, and each is one person"


def user_attack(
    module: nn.Module,
    *,
    members: FederatedData,
    nonmembers: FederatedData,
    without: Ints | Sequence[int] = (),
    reference: nn.Module | None = None,
    delta: float = 1e-5,
    confidence: float = 0.95,
    theory: Theory | None = None,
    seed: int = 0,
) -> AuditResult:
    """ε from a score for each user: minus the mean loss of their examples, less that of a ``reference`` model.

    ``without`` are members to leave out, `Insertion.sharers`: a mean of the fewer examples that are still their own
    varies more than a non-member's, which tells the two apart whatever the model. They were picked by coins alone; to
    leave out who holds a copy would keep users with few examples, who are likelier to hold none.

    Of users that a partition cut into several clients ("name#0", "name#1", …) only the first is taken: the others would
    not be independent of it.
    Synthetic clients of shuffled examples have no identity to attack and are refused.

    Whoever is left out, another user is there in their place, with all of their clients: ε is divided by as many as one
    user has at most, and by twice as many where ``theory`` is for adding or removing a client.
    """
    scores = Scores(
        _scores(module, reference, members, np.setdiff1d(persons(members), without)),
        _scores(module, reference, nonmembers, persons(nonmembers)),
    )
    copies = neighbors_apart(max(_most_clients(members), _most_clients(nonmembers)), theory)
    found = estimate(scores.members, scores.nonmembers, delta=delta, confidence=confidence, copies=copies)
    found = first_judged(found, scores.members, scores.observed, copies=copies)
    count, others = len(scores.members), len(scores.observed)
    return AuditResult(
        audit="secret-sharer",
        view="users",
        seed=seed,
        estimates=[replace(e, assumes=f"{e.assumes}; {_SPLIT_AT_RANDOM}") if e.valid else e for e in found],
        scores=scores,
        theory=theory,
        ceiling=ceiling(count, others, delta=delta, confidence=confidence, copies=copies),
        metrics={"planted": float(count), "held_out": float(others)},
        config={"score": "loss of all examples" if reference is None else "calibrated loss of all examples"},
    )


def persons(data: FederatedData) -> Ints:
    """One client for each user."""
    if data.names[0].startswith("iid-"):
        raise InputError("clients of shuffled examples are nobody: attack natural or balanced users")
    return np.sort(np.unique(_owners(data), return_index=True)[1])


def _most_clients(data: FederatedData) -> int:
    """How many clients a user was cut into, at most."""
    return int(np.unique(_owners(data), return_counts=True)[1].max())


def _owners(data: FederatedData) -> npt.NDArray[np.str_]:
    return np.array([name.rpartition("#")[0] or name for name in data.names])


def _scores(module: nn.Module, reference: nn.Module | None, data: FederatedData, clients: Ints) -> Floats:
    found = []
    for client in track(clients.tolist(), "losses of users"):
        examples = data.client(client)
        if not len(examples):
            continue
        loss = _mean_loss(module, data.task, examples)
        calm = 0.0 if reference is None else _mean_loss(reference, data.task, examples)
        found.append(calm - loss)
    if not found:
        raise InputError("no user is without canaries, so there is nobody to attack: lower p_u")
    return np.array(found)


@torch.no_grad()
def _mean_loss(module: nn.Module, task: Task, examples: Examples) -> float:
    inputs, targets = tensors(examples, task)
    logits = module.eval()(inputs).flatten(0, -2)
    return float(F.cross_entropy(logits, targets.flatten(), ignore_index=ignored_index(task)))
