"""pfl's central and local mechanisms and its accountants, each with a check that it keeps its claim."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pfl.common_types import Population
from pfl.context import CentralContext, UserContext
from pfl.internal.ops import numpy_ops, pytorch_ops
from pfl.internal.ops.selector import get_default_framework_module, set_framework_module
from pfl.metrics import Metrics
from pfl.privacy import (
    GaussianMechanism,
    LaplaceMechanism,
    NormClippingOnly,
    PLDPrivacyAccountant,
    PRVPrivacyAccountant,
)
from pfl.privacy.adaptive_clipping import AdaptiveClippingGaussianMechanism
from pfl.privacy.ftrl_mechanism import BandedMatrixFactorizationMechanism
from pfl.privacy.joint_mechanism import JointMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from pfl.stats import MappedVectorStatistics
from table import REFUTED, Outcome, Path, claim_scores, compared, private, private_reports, private_scores, replayed

from coalmine.stats import sigma_gaussian

CLIP, NOISE, DIM = 1.0, 2.0, 2000


def _statistics(*parts: Any) -> MappedVectorStatistics:
    tensor = get_default_framework_module().to_tensor
    return MappedVectorStatistics({f"part {i}": tensor(np.asarray(part)) for i, part in enumerate(parts)})


def _vector(statistics: Any) -> Any:
    to_numpy = get_default_framework_module().to_numpy
    return np.concatenate([np.ravel(to_numpy(part)) for part in statistics.values()]).astype(np.float64)


def _with(ops: Any, check: Callable[[], Outcome]) -> Callable[[], Outcome]:
    """Run a check with NumPy or PyTorch behind pfl."""

    def run() -> Outcome:
        set_framework_module(ops, old_module=get_default_framework_module())
        try:
            return check()
        finally:
            set_framework_module(numpy_ops, old_module=ops)

    return run


def _noisy(mechanism: Any, parts: int = 1, seeded: bool = True) -> Callable[[Any], Any]:
    """Return a mechanism's noise as a function of the sum. pfl draws a new seed for each round, as done here."""

    def noisy_sum(total: Any) -> Any:
        seed = int(np.random.randint(1, 2**31 - 1)) if seeded else None
        return _vector(mechanism.add_noise(_statistics(*np.split(total, parts)), cohort_size=10, seed=seed)[0])

    return noisy_sum


def _round(mechanism: Any, shown: Callable[[int], float] | None = None) -> Callable[[Sequence[Any]], Any]:
    """Return a round of central DP: every user's statistics are constrained, and their sum gets noise."""

    def release(clients: Sequence[Any], seed: int) -> Any:
        total = None
        for update in clients:
            user = UserContext(num_datapoints=1, seed=None)
            clipped, _ = mechanism.postprocess_one_user(stats=_statistics(*np.split(update, 2)), user_context=user)
            total = clipped if total is None else total + clipped
        context = CentralContext(
            current_central_iteration=0, do_evaluation=False, cohort_size=len(clients), population=Population.TRAIN,
            seed=seed, model_train_params=None, algorithm_params=None,
        )  # fmt: skip
        total, _ = mechanism.postprocess_server(stats=total, central_context=context, aggregate_metrics=Metrics())
        return (
            _vector(total) if shown is None else {"sum": _vector(total), "clip norm": np.array([shown(len(clients))])}
        )

    return release


def _users(dim: int = 200) -> list[Any]:
    rng = np.random.default_rng(1)
    return [update / np.linalg.norm(update) for update in rng.normal(size=(5, dim))]


def _central(hostile: bool = False) -> Outcome:
    mechanism = CentrallyAppliedPrivacyMechanism(GaussianMechanism(CLIP, NOISE))
    settings = {"clip_norm": CLIP, "noise_multiplier": NOISE, "adjacency": "add-remove", "hostile": hostile}
    return replayed(_round(mechanism), _users(), who="user", **settings)


def _adaptive() -> Outcome:
    mechanism = AdaptiveClippingGaussianMechanism(
        lambda clip: GaussianMechanism(clip, 1.0), CLIP, clipping_indicator_noise_stddev=1.2,
        adaptive_clipping_norm_quantile=0.5, log_space_step_size=0.2,
    )  # fmt: skip
    # From log C and the cohort size, which is public, follows the noisy sum of indicators: a quantile of ½ makes them
    # proportional.
    release = _round(mechanism, shown=lambda cohort: cohort * np.log(mechanism.mutable_clipping_bound.value()))
    settings = {"clip_norm": CLIP, "noise_multiplier": 1.0, "adjacency": "add-remove", "dropouts": False, "rounds": 1}
    return replayed(release, _users(), who="user", **settings)


def _joint(seeded: bool) -> Outcome:
    both = {str(i): (GaussianMechanism(CLIP, NOISE), [f"part {i}"]) for i in range(2)}
    half = DIM // 2
    layers = {"part 0": half, "part 1": half}
    return private(_noisy(JointMechanism(both), 2, seeded), noise_multiplier=NOISE, dim=DIM, layers=layers)


def _single_iteration() -> Outcome:
    """Compare pfl's σ for (ε, δ) with the exact one."""
    claims = [(epsilon, delta) for epsilon in (0.1, 1.0, 8.0) for delta in (1e-3, 1e-6, 1e-9)]
    ours = np.array([sigma_gaussian(*claim) for claim in claims])
    theirs = [GaussianMechanism.construct_single_iteration(1.0, *claim).relative_noise_stddev for claim in claims]
    worst = float(np.max(ours / theirs))
    return compared("exact σ", worst, 1.0, f"exact σ over pfl's: at most {worst:.5f}")


def _laplace_coordinates(scale: float, claim: float) -> Outcome:
    """Release 4,000 numbers one at a time, half of which are 1 and half 0, and compare them with the claimed ε."""
    mechanism = LaplaceMechanism(CLIP, CLIP / scale)  # each number is another person's, so ε counts for each alone
    noisy = _noisy(mechanism)(np.repeat([1.0, 0.0], DIM))
    return private_scores(noisy[:DIM], noisy[DIM:], epsilon=claim, delta=1e-5)


def _laplace_accounted(accountant: Any, scale: float = 0.3) -> Outcome:
    settings = {"num_compositions": 1, "sampling_probability": 1.0, "mechanism": "laplace", "delta": 1e-5}
    claim = float(accountant(**settings, noise_parameter=scale).epsilon)
    outcome = _laplace_coordinates(scale, claim)
    return Outcome(
        outcome.check, outcome.refuted, f"claims ε = {claim:.3f} for noise of scale {scale}: {outcome.sentence}"
    )


def _banded(rounds: int, separation: int) -> Outcome:
    """Train once with one user per coordinate, who takes part in the first round only or not at all."""
    settings = {"sampling_probability": 1.0, "mechanism": "gaussian", "delta": 1e-5, "noise_parameter": NOISE}
    with tempfile.TemporaryDirectory() as folder:
        here = os.getcwd()
        os.chdir(folder)  # pfl writes its matrix to a file
        try:
            mechanism = BandedMatrixFactorizationMechanism(
                CLIP, rounds, separation, lambda k: PLDPrivacyAccountant(num_compositions=k, **settings)
            )
        finally:
            os.chdir(here)
    sums = np.zeros((rounds, 2 * DIM), dtype=np.float32)
    sums[0, :DIM] = CLIP
    releases = np.array([_noisy(mechanism)(total) for total in sums])
    scores = mechanism.query_matrix[:, 0] @ (
        mechanism.query_matrix @ releases
    )  # the likelihood ratio: C X + Z is white
    outcome = claim_scores(scores[:DIM], scores[DIM:], noise_multiplier=NOISE)
    column = np.linalg.norm(mechanism.query_matrix[:, 0])
    return Outcome(outcome.check, outcome.refuted, f"first column of C has norm {column:.2f}: {outcome.sentence}")


def _norm_clipping(order: float) -> Outcome:
    """Clip one number, for which all norms are the same."""
    mechanism = NormClippingOnly(order, CLIP)

    def release(clients: Sequence[Any]) -> Any:
        return sum(_vector(mechanism.constrain_sensitivity(_statistics(update))[0]) for update in clients)

    return replayed(release, [np.array([0.5])] * 3, who="user", clip_norm=CLIP, noise_multiplier=None)


def _local(epsilon: float, claim: float) -> Outcome:
    mechanism = LaplaceMechanism(CLIP, epsilon)

    def report(gradient: Any) -> Any:
        return _vector(mechanism.privatize(_statistics(gradient), seed=int(np.random.randint(1, 2**31 - 1)))[0])

    return private_reports(report, epsilon=claim, dim=1, norm=CLIP, trials=4000)


PATHS = {
    "gaussian": Path(
        "GaussianMechanism, noise (NumPy)",
        lambda: private(_noisy(GaussianMechanism(CLIP, NOISE)), noise_multiplier=NOISE, dim=DIM),
    ),
    "gaussian-torch": Path(
        "GaussianMechanism, noise (PyTorch)",
        _with(
            pytorch_ops, lambda: private(_noisy(GaussianMechanism(CLIP, NOISE)), noise_multiplier=NOISE, dim=DIM)
        ),
    ),
    "single": Path("GaussianMechanism.construct_single_iteration", _single_iteration),
    "central": Path("CentrallyAppliedPrivacyMechanism(GaussianMechanism)", _central),
    "nan": Path("the same, a user who sends a NaN", lambda: _central(hostile=True), found=REFUTED),
    "adaptive": Path("AdaptiveClippingGaussianMechanism, with the clip norm that users receive", _adaptive),
    "laplace": Path("LaplaceMechanism, noise", lambda: _laplace_coordinates(1.0, 1.0)),
    "local": Path("LaplaceMechanism as local DP, 2 ε for exchanging one's data", lambda: _local(1.0, 2.0)),
    "local-replace": Path("the same, ε for exchanging one's data", lambda: _local(1.0, 1.0), found="not claimed"),
    "joint": Path("JointMechanism of two GaussianMechanisms", lambda: _joint(seeded=True), found=REFUTED),
    "joint-unseeded": Path("the same without a seed", lambda: _joint(seeded=False)),
    "banded": Path(
        "BandedMatrixFactorizationMechanism, 16 rounds, each user in one of them (PyTorch)",
        _with(pytorch_ops, lambda: _banded(16, 16)),
        found=REFUTED,
    ),
    "pld-laplace": Path(
        "PLDPrivacyAccountant for Laplace noise", lambda: _laplace_accounted(PLDPrivacyAccountant)
    ),
    "prv-laplace": Path(
        "PRVPrivacyAccountant for Laplace noise", lambda: _laplace_accounted(PRVPrivacyAccountant), found=REFUTED
    ),
    "order-1": Path("NormClipping, order 1", lambda: _norm_clipping(1.0)),
    "order-2": Path("NormClipping, order 2", lambda: _norm_clipping(2.0)),
    "order-3": Path("NormClipping, order 3", lambda: _norm_clipping(3.0), found=REFUTED),
    "order-inf": Path("NormClipping, order ∞ (NumPy)", lambda: _norm_clipping(np.inf), found=REFUTED),
    "order-inf-torch": Path(
        "NormClipping, order ∞ (PyTorch)", _with(pytorch_ops, lambda: _norm_clipping(np.inf))
    ),
}  # fmt: skip
"""What is tested, by a short name."""
