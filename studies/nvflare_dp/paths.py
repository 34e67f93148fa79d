"""NVFLARE's privacy filters, each with a check of what its documentation says."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_common.filters.svt_privacy import SVTPrivacy
from nvflare.app_common.statistics.min_max_cleanser import AddNoiseToMinMax
from table import AS_DOCUMENTED, REFUTED, Outcome, Path, compared, private_reports, private_scores

TRIALS, SECONDS = 2000, 5.0


def sent(privacy_filter: Any, arrays: Mapping[str, Any], **meta: Any) -> Any:
    """Return the DXO that leaves a client with a filter."""
    dxo = DXO(DataKind.WEIGHT_DIFF, data=dict(arrays), meta=meta)
    return from_shareable(privacy_filter.process(dxo.to_shareable(), FLContext()))


def _svt(dim: int, **settings: Any) -> SVTPrivacy:
    """Return a filter that clips no coordinate of a dense unit vector, with a budget that an audit can test."""
    return SVTPrivacy(**{"gamma": dim**-0.5, "tau": 0.0, "epsilon": 1.0, "epsilon_release": 1.0, **settings})


def _spent(privacy_filter: SVTPrivacy, dim: int) -> float:
    """Return what the filter's accountant reports for one call."""
    sent(privacy_filter, {"weights": np.zeros(dim, dtype=np.float32)})
    return float(privacy_filter.get_privacy_ledger()[-1]["epsilon_total"])


def _reports(dim: int, array: Callable[[Any], Any] = np.asarray, **settings: Any) -> Outcome:
    """Compare the reports about two opposite updates with what the accountant reports."""
    privacy_filter = _svt(dim, **settings)
    claim = _spent(privacy_filter, dim)

    def report(update: Any) -> Any:
        return np.ravel(np.asarray(sent(privacy_filter, {"weights": array(update)}).data["weights"], dtype=float))

    outcome = private_reports(report, epsilon=claim, dim=dim, trials=TRIALS)
    return Outcome(outcome.check, outcome.refuted, f"claims ε = {claim:.1f}: {outcome.sentence}")


def _selection() -> Outcome:
    """Look at which coordinate is sent, for two updates whose largest coordinate is another one."""
    privacy_filter = _svt(4, gamma=1.0, fraction=0.25, epsilon=2.0, epsilon_release=1e-3)
    claim = _spent(privacy_filter, 4)
    updates = np.array([1.0, 0.0, 0.0, 0.0]), np.array([0.0, 1.0, 1.0, 1.0])
    first = [
        [float(np.asarray(sent(privacy_filter, {"weights": update}).data["weights"])[0] != 0) for _ in range(TRIALS)]
        for update in updates
    ]
    outcome = private_scores(*first, epsilon=claim, delta=0.0)
    return Outcome(outcome.check, outcome.refuted, f"claims ε = {claim:.1f}: {outcome.sentence}")


def _defaults(size: int = 1_000_000) -> Outcome:
    """Compare the argument epsilon with what the accountant reports at default settings."""
    privacy_filter = SVTPrivacy()
    spent = _spent(privacy_filter, size)
    sentence = f"epsilon={privacy_filter.epsilon}, but one call on {size:,} parameters spends ε = {spent:,.1f}"
    return compared("get_privacy_spent", spent, privacy_filter.epsilon, sentence)


def _filter_diverged(fraction: float, bad: int) -> None:
    update = np.zeros(100, dtype=np.float32)
    update[:bad] = np.nan
    sent(SVTPrivacy(fraction=fraction), {"weights": update})


def _terminates(fraction: float, bad: int) -> Outcome:
    """Filter an update with NaN in a process of its own."""
    process = multiprocessing.get_context("fork").Process(target=_filter_diverged, args=(fraction, bad), daemon=True)
    process.start()
    process.join(SECONDS)
    hangs = process.is_alive()
    process.kill()
    return Outcome("time limit", hangs, f"{'not done after' if hangs else 'done within'} {SECONDS:.0f} s")


def _percentile(update: Any, **settings: Any) -> Any:
    return np.asarray(sent(PercentilePrivacy(**settings), {"weights": np.array(update)}).data["weights"])


def _no_noise() -> Outcome:
    """Compare an update with what is sent of it."""
    update = np.random.default_rng(0).normal(0, 0.003, 1000)
    exact = float(np.mean(_percentile(update) == update))
    return compared("comparison", exact, 0.0, f"{exact:.0%} of the coordinates are sent as they are")


def _shared(bad: bool) -> Outcome:
    """Count how many coordinates are sent if half should be, with and without a NaN among 1,000 numbers."""
    update = np.random.default_rng(0).normal(0, 0.003, 1000)
    update[0] = np.nan if bad else 0.0
    share = float(np.mean(_percentile(update, percentile=50)[1:] != 0))
    return compared("share of coordinates", share, 0.51, f"{share:.0%} of the coordinates are sent; percentile=50")


def _clipped(**settings: Any) -> Outcome:
    """Measure the largest coordinate that is sent of a huge update."""
    largest = float(np.max(np.abs(_percentile(np.full(10, 1000.0), **settings))))
    limit = settings.get("gamma", 0.01)
    return compared("largest coordinate", largest, limit, f"a coordinate of 1,000 is sent as {largest:g}")


def _scalar() -> Outcome:
    largest = float(sent(PercentilePrivacy(), {"weights": np.ones(9), "steps": np.array(1000.0)}).data["steps"])
    return compared("largest coordinate", largest, 0.01, f"a scalar of 1,000 is sent as {largest:g}")


def _min_max() -> Outcome:
    """Tell whether a record of 150 is among records of up to 100, from the noisy maximum."""
    cleanser = AddNoiseToMinMax(min_noise_level=0.1, max_noise_level=0.3)

    def maxima(largest: float) -> list[float]:
        statistics = [{"max": {"train": {"age": largest}}} for _ in range(TRIALS)]
        return [cleanser.apply(content, "site-1")[0]["max"]["train"]["age"] for content in statistics]

    return private_scores(maxima(150.0), maxima(100.0), epsilon=3.0, delta=1e-5)


PATHS = {
    "svt": Path("SVTPrivacy, one number", lambda: _reports(1, fraction=1.0)),
    "svt-array": Path("SVTPrivacy, an array of 20, half of which is sent", lambda: _reports(20, fraction=0.5)),
    "svt-replace": Path("SVTPrivacy, replace=True (default)", lambda: _reports(20, fraction=0.5, replace=True)),
    "svt-integers": Path(
        "SVTPrivacy, an array of integers", lambda: _reports(1, lambda update: update.astype(int), fraction=1.0)
    ),
    "svt-selection": Path("SVTPrivacy, which coordinate is sent", _selection),
    "svt-scalar": Path(
        "SVTPrivacy, a scalar", lambda: _reports(1, lambda update: update[0], fraction=1.0), found=AS_DOCUMENTED
    ),
    "svt-defaults": Path("SVTPrivacy, default settings, ε as configured", _defaults, found=AS_DOCUMENTED),
    "svt-nan": Path(
        "SVTPrivacy, fraction=1, one NaN among 100 numbers", lambda: _terminates(1.0, 1), found="**hangs**"
    ),
    "svt-diverged": Path(
        "SVTPrivacy, default fraction, 95 NaN among 100 numbers", lambda: _terminates(0.1, 95), found="**hangs**"
    ),
    "percentile": Path("PercentilePrivacy, noise", _no_noise, found=AS_DOCUMENTED),
    "percentile-clip": Path("PercentilePrivacy, clipping at gamma", _clipped),
    "percentile-share": Path("PercentilePrivacy, share of an update", lambda: _shared(bad=False)),
    "percentile-nan": Path("the same, one NaN in the update", lambda: _shared(bad=True), found=REFUTED),
    "percentile-scalar": Path("PercentilePrivacy, a scalar", _scalar, found=REFUTED),
    "percentile-110": Path(
        "PercentilePrivacy, percentile out of range", lambda: _clipped(percentile=110), found="**fails open**"
    ),
    "percentile-gamma": Path("PercentilePrivacy, gamma=0", lambda: _clipped(gamma=0.0), found="**fails open**"),
    "min-max": Path("AddNoiseToMinMax(0.1, 0.3), ε = 3 for comparison", _min_max, found="no ε claimed"),
}  # fmt: skip
"""What is tested, by a short name."""
