"""From the scores of phrases and users to ε, for the audit and to compute it again from stored scores.

`user_attack` asks whether a user was in the training. The paper leaves attacks on whole users to future work (Section
5): its phrases are single records. A partition may cut one user into several clients, named ``name#0``, ``name#1``, ….
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn

from coalmine.arrays import Floats, Ints
from coalmine.claims import Claim
from coalmine.errors import InputError
from coalmine.methods.estimates import (
    CanaryEvidence,
    bounds_per_copy,
    canary_evidence,
    claim_test,
    neighbors_apart,
    with_stricter_bound,
)
from coalmine.progress import track
from coalmine.results.result import Result
from coalmine.results.verdict import USER
from coalmine.seeds import generator
from coalmine.simulation.client import tensors
from coalmine.simulation.data.federated import FederatedData
from coalmine.simulation.flat import device_of
from coalmine.stats import Design, Estimate, Scores, ceiling, estimate
from coalmine.stats.exposure import epsilon_from_exposure

USERS = "users"
"""View of the attack on users."""

_SCOPE = "ε is that of all users who share a phrase together"
_SPLIT = "training and test users were split at random, and each is one person"


def phrase_evidence(scores: Scores, *, delta: float, confidence: float, design: Design) -> CanaryEvidence:
    """Return the evidence about all users who share a phrase together."""
    # Phrases are exchangeable, and nothing is known of their scores' distribution: no null, no claim.
    evidence = canary_evidence(
        scores.members,
        scores.observed,
        null=None,
        signs=False,
        design=design,
        delta=delta,
        confidence=confidence,
        claim=None,
    )
    estimates = [replace(e, assumes=f"{e.assumes}; {_SCOPE}") if e.valid else e for e in evidence.estimates]
    return replace(evidence, estimates=estimates, recipe={"delta": delta, "confidence": confidence, "design": design})


def user_evidence(
    scores: Scores,
    median_exposure: float,
    claim: Claim | None,
    *,
    delta: float,
    confidence: float,
    design: Design,
    most_users: int,
) -> CanaryEvidence:
    """Return the evidence about one user.

    Args:
        scores: Scores of inserted and held-out phrases.
        median_exposure: Median exposure of the inserted phrases, in bits.
        claim: The claim for one user, or None.
        delta: δ at which ε is stated.
        confidence: Confidence of the bounds.
        design: How members were chosen.
        most_users: Largest number of users that could hold a phrase.
    """
    # Data sets with and without the most widespread canary are this many neighbors apart.
    copies = neighbors_apart(max(1, most_users), claim)
    bounds = bounds_per_copy(scores, delta=delta, confidence=confidence, design=design, copies=copies)
    limit = f"no phrase could be shared by more than {most_users} users"
    # Jagielski (2023): ε ≥ ln 2 · (exposure - 1) for the median exposure; an estimate, since its rates are counted.
    estimates = [
        *(replace(bound, assumes=f"{bound.assumes}; {limit}") for bound in bounds),
        Estimate("median-exposure", epsilon_from_exposure(median_exposure) / copies),
    ]
    members, nonmembers = scores.members, scores.observed
    counts = members.size, nonmembers.size
    independent = design == "fixed"  # without coin flips there is no test that does not assume it
    return CanaryEvidence(
        estimates=estimates,
        scores=scores,
        ceiling=ceiling(*counts, delta=delta, confidence=confidence, design=design, copies=copies),
        claim_test=claim_test(
            claim, estimates, members, nonmembers, design=design, copies=copies, independent=independent
        ),
        recipe={"delta": delta, "confidence": confidence, "design": design, "most_users": most_users},
    )


def attack_evidence(
    scores: Scores, claim: Claim | None, *, delta: float, confidence: float, copies: int
) -> CanaryEvidence:
    """Return the evidence of the attack on users, each of whom counts as ``copies`` neighboring steps."""
    estimates = estimate(scores.members, scores.nonmembers, delta=delta, confidence=confidence, copies=copies)
    estimates = with_stricter_bound(estimates, scores.members, scores.observed, copies=copies)
    counts = scores.members.size, scores.observed.size
    # Users were not drawn by coins, so the bounds assume a random split instead.
    return CanaryEvidence(
        estimates=[replace(e, assumes=f"{e.assumes}; {_SPLIT}") if e.valid else e for e in estimates],
        scores=scores,
        ceiling=ceiling(*counts, delta=delta, confidence=confidence, copies=copies),
        claim_test=claim_test(claim, estimates, scores.members, scores.observed, copies=copies),
        recipe={"delta": delta, "confidence": confidence, "copies": copies},
    )


def recomputed(result: Result, siblings: Sequence[Result]) -> Result:
    """Return a result with its estimates and claim test computed again from its scores."""
    scores = result.scores
    assert scores is not None
    # The same three functions as in the audit, on stored scores and the terms that the result kept.
    if result.view == USERS:
        evidence = attack_evidence(scores, result.claim, **result.recipe)
    elif result.unit is USER:
        # From the stored exposures; a result that was saved alone has only their median.
        exposures = [other.scores.members for other in siblings if other.view == "exposure:user" and other.scores]
        median = float(np.median(exposures[0])) if exposures else result.metrics["median exposure"]
        evidence = user_evidence(scores, median, result.claim, **result.recipe)
    else:
        evidence = phrase_evidence(scores, **result.recipe)
    return replace(result, estimates=evidence.estimates, claim_test=evidence.claim_test, ceiling=evidence.ceiling)


def user_attack(
    module: nn.Module,
    *,
    members: FederatedData,
    nonmembers: FederatedData,
    without: Ints | Sequence[int] = (),
    reference: nn.Module | None = None,
    delta: float = 1e-5,
    confidence: float = 0.95,
    claim: Claim | None = None,
    seed: int = 0,
) -> Result:
    """Attack users: the score is minus the mean loss of a user's examples, calibrated by a reference model if given.

    The bound is valid if training and test users were split at random. Leaving one user out of the training means
    that another user takes their place, with all of their clients. By group privacy, ε is divided by the largest number
    of clients of a user, and by twice that if ``claim`` is about adding or removing a client.

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
        claim: The claimed guarantee.
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
    members_left = users_left(members, without)
    if not members_left.size:
        raise InputError(
            "no member is left to attack: every training user shares a canary (lower p_u), or clients are synthetic"
        )
    scores = Scores(
        _scores(module, reference, members, members_left),
        _scores(module, reference, nonmembers, users_left(nonmembers)),
    )
    # Another user takes the place of the one left out, with all the clients of either.
    most = max(int(np.unique(_owners(data), return_counts=True)[1].max()) for data in (members, nonmembers))
    copies = neighbors_apart(most, claim)
    evidence = attack_evidence(scores, claim, delta=delta, confidence=confidence, copies=copies)
    inserted, held_out = len(scores.members), len(scores.observed)
    calibrated = reference is not None  # then the reference model's loss is subtracted
    return Result(
        method="secret-sharer",
        view=USERS,
        unit=USER,
        adversary="queries the final model with a user's texts" + calibrated * " and compares with a reference model",
        score_name="minus the mean loss" + calibrated * ", calibrated",
        side_names=("trained on", "not trained on"),
        seed=seed,
        **vars(evidence),
        claim=claim,
        metrics={"inserted": float(inserted), "held_out": float(held_out)},
        config={"score": "calibrated loss of all examples" if calibrated else "loss of all examples"},
    )


@torch.no_grad()
def _scores(module: nn.Module, reference: nn.Module | None, data: FederatedData, clients: Ints) -> Floats:
    """Return minus the mean loss per token of each client, in nats, calibrated by a reference model if there is one."""
    scores = []
    for client in track(clients.tolist(), "losses of users"):
        losses = []
        for model in (module,) if reference is None else (module, reference):
            inputs, targets = tensors(data.client(client), data.task, device=device_of(model))
            logits = model.eval()(inputs).flatten(0, -2)
            # Per token, so that users with long and with short texts are comparable.
            losses.append(float(F.cross_entropy(logits, targets.flatten(), ignore_index=data.task.ignored)))
        scores.append(sum(losses[1:]) - losses[0])
    return np.array(scores)


def _owners(data: FederatedData) -> npt.NDArray[np.str_]:
    """Return the user that each client belongs to, shape (clients,)."""
    return np.array([name.rpartition("#")[0] or name for name in data.names])


def users_left(data: FederatedData, without: Ints | Sequence[int] = ()) -> Ints:
    """Return the first client of each user, but for some clients; none if clients are synthetic and belong to nobody.

    A user's other clients are not independent of the first.
    """
    if data.names[0].startswith("iid-"):
        return np.zeros(0, dtype=np.int64)
    return np.setdiff1d(np.unique(_owners(data), return_index=True)[1], np.asarray(without, dtype=np.int64))


def set_aside(data: FederatedData, share: float, *, seed: int = 0) -> tuple[FederatedData, FederatedData | None]:
    """Split off the clients of a random share of the users, for a reference model that never sees a canary.

    Users are chosen at random because their order may mean something, and the users who remain must be exchangeable
    with the test users.

    Args:
        data: The training clients.
        share: Share of the users to set aside, in [0, 1).
        seed: Seed for the choice.

    Returns:
        The clients to train on, and those set aside (None if there are none). No user is in both.

    Raises:
        InputError: If the share leaves no user to train on.
    """
    # A user may be cut into several clients, which belong together.
    user_of = np.unique(_owners(data), return_inverse=True)[1]
    users = int(user_of.max()) + 1
    count = round(share * users)
    if not count:
        return data, None
    if count == users:
        raise InputError(f"reference_share = {share} leaves none of {users} users to train on: lower it")
    aside = np.isin(user_of, generator(seed, "aside").permutation(users)[:count])
    return data.subset(np.flatnonzero(~aside)), data.subset(np.flatnonzero(aside))
