"""User-level membership inference: was this user in the training? One score per user, from all of their examples.

The secret-sharer paper leaves attacks on whole users to future work (Section 5): its phrases are single records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from coalmine.accounting import Theory
from coalmine.arrays import Floats, Ints
from coalmine.errors import InputError
from coalmine.methods.estimates import neighbors_apart, with_stricter_bound
from coalmine.methods.secret_sharer.users import first_clients, most_clients
from coalmine.progress import track
from coalmine.results.result import AuditResult
from coalmine.results.units import USER
from coalmine.simulation.client import ignored_index, tensors
from coalmine.simulation.data.federated import Examples, FederatedData, Task
from coalmine.stats import Scores, ceiling, estimate

_ASSUMPTION = "training and test users were split at random, and each is one person"


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
    """Attack users: the score is minus the mean loss of a user's examples, calibrated by a reference model if given.

    The bound is valid if training and test users were split at random. Leaving one user out of the training means
    that another user takes their place, with all of their clients. By group privacy, ε is divided by the largest number
    of clients of a user, and by twice that if ``theory`` is about adding or removing a client.

    Args:
        module: The trained model.
        members: Clients that were trained on. Of a user cut into several clients, only the first is scored.
        nonmembers: Clients that were not trained on.
        without: Positions of members to leave out, `Insertion.sharers` as a rule: a mean over the few examples that
            canaries leave a sharer varies more than a non-member's, which separates the two whatever the model. They
            were selected by coins alone. Leaving out the holders of a copy instead would favor users with few examples,
            who are less likely to hold one.
        reference: Model that saw none of these users; its loss is subtracted.
        delta: δ at which ε is stated.
        confidence: Confidence of bounds and intervals.
        theory: The claimed guarantee.
        seed: Seed to record in the result.

    Returns:
        The result, with view ``"users"``.

    Raises:
        InputError: If clients are synthetic (shuffled examples belong to nobody), or no member is left.

    Example:
        >>> from coalmine.simulation import models
        >>> from coalmine.simulation.data import generated_text
        >>> splits = generated_text(users=20, sentences=10, vocabulary_size=100, positions=8)
        >>> untrained = models.build("word-lstm", splits.train.task, embedding=4, units=4)
        >>> user_attack(untrained, members=splits.train, nonmembers=splits.test).bound.epsilon
        0.0
    """
    scores = Scores(
        _scores(module, reference, members, np.setdiff1d(first_clients(members), without)),
        _scores(module, reference, nonmembers, first_clients(nonmembers)),
    )
    copies = neighbors_apart(max(most_clients(members), most_clients(nonmembers)), theory)
    estimates = estimate(scores.members, scores.nonmembers, delta=delta, confidence=confidence, copies=copies)
    estimates = with_stricter_bound(estimates, scores.members, scores.observed, copies=copies)
    inserted, held_out = len(scores.members), len(scores.observed)
    calibrated = reference is not None
    return AuditResult(
        method="secret-sharer",
        view="users",
        unit=USER,
        adversary="queries the final model with a user's texts" + calibrated * " and compares with a reference model",
        score_name="minus the mean loss" + calibrated * ", calibrated",
        side_names=("trained on", "not trained on"),
        seed=seed,
        estimates=[replace(e, assumes=f"{e.assumes}; {_ASSUMPTION}") if e.valid else e for e in estimates],
        scores=scores,
        theory=theory,
        ceiling=ceiling(inserted, held_out, delta=delta, confidence=confidence, copies=copies),
        metrics={"inserted": float(inserted), "held_out": float(held_out)},
        config={"score": "calibrated loss of all examples" if calibrated else "loss of all examples"},
    )


def _scores(module: nn.Module, reference: nn.Module | None, data: FederatedData, clients: Ints) -> Floats:
    """Return one score per client that has examples."""
    scores = []
    for client in track(clients.tolist(), "losses of users"):
        examples = data.client(client)
        if not len(examples):
            continue
        loss = _mean_loss(module, data.task, examples)
        reference_loss = 0.0 if reference is None else _mean_loss(reference, data.task, examples)
        scores.append(reference_loss - loss)
    if not scores:
        raise InputError("every training user shares a canary, so no member is left to attack: lower p_u")
    return np.array(scores)


@torch.no_grad()
def _mean_loss(module: nn.Module, task: Task, examples: Examples) -> float:
    """Return the mean cross-entropy per token in nats."""
    inputs, targets = tensors(examples, task)
    logits = module.eval()(inputs).flatten(0, -2)
    return float(F.cross_entropy(logits, targets.flatten(), ignore_index=ignored_index(task)))
