"""Results as pandas DataFrames, where pandas is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from coalmine.errors import InputError
from coalmine.results.result import Result

_TRIALS = ("scores", "present", "round")  # arrays of a method whose canaries have a score in each of many trials


def estimates_frame(results: Sequence[Result]) -> Any:
    """Return one row per estimate, beside the claim and the verdict.

    Args:
        results: The results.

    Raises:
        InputError: If pandas is not installed.
    """
    rows = [
        {
            "method": result.method,
            "view": result.view,
            "variant": result.variant,
            "training": result.training,
            "unit": result.unit.name,
            "verdict": result.verdict.value,
            "claimed_epsilon": None if result.claim is None else result.claim.epsilon,
            "p_value": None if result.claim_test is None else result.claim_test.p_value,
            "estimator": estimate.method,
            "epsilon": estimate.epsilon,
            "lower": estimate.lower,
            "upper": estimate.upper,
            "delta": estimate.delta,
            "confidence": estimate.confidence,
            "is_bound": estimate.valid,
        }
        for result in results
        for estimate in result.estimates
    ]
    numbers = ["claimed_epsilon", "p_value", "epsilon", "lower", "upper", "delta", "confidence"]
    return as_frame(rows, numbers)


def scores_frame(results: Sequence[Result]) -> Any:
    """Return one row per score: method, view, variant, canary, member, score, and the round where scores have one.

    Args:
        results: The results. Those without scores have no rows.

    Raises:
        InputError: If pandas is not installed.
    """
    pandas = _pandas()
    tables = [
        pandas.DataFrame({"method": result.method, "view": result.view, "variant": result.variant, **_columns(result)})
        for result in results
        if result.scores is not None
    ]
    columns = ["method", "view", "variant", "canary", "member", "score", "round"]
    return pandas.concat(tables, ignore_index=True) if tables else pandas.DataFrame(columns=columns)


def as_frame(rows: Sequence[Mapping[str, Any]], numbers: Sequence[str] = ()) -> Any:
    """Return rows as a DataFrame.

    Args:
        rows: A value by the name of its column, for each row.
        numbers: Columns that hold numbers, also where all are missing.

    Raises:
        InputError: If pandas is not installed.
    """
    return _pandas().DataFrame(list(rows)).astype(dict.fromkeys(numbers, float) if rows else {})


def _columns(result: Result) -> dict[str, Any]:
    """Return the columns that differ within a result."""
    assert result.scores is not None
    arrays = result.arrays
    if all(name in arrays for name in _TRIALS) and np.ndim(arrays["scores"]) == 2:
        trials, canaries = np.shape(arrays["scores"])
        return {
            "canary": np.tile(np.arange(canaries), trials),
            "member": np.ravel(arrays["present"]),
            "score": np.ravel(arrays["scores"]),
            "round": np.repeat(arrays["round"], canaries),
        }
    sides = result.scores.members, result.scores.observed
    names = arrays.get("inserted_canaries"), arrays.get("held_out_canaries")
    numbered = [np.arange(side.size) if name is None else name for side, name in zip(sides, names, strict=True)]
    return {
        "canary": np.concatenate(numbered),
        "member": np.repeat([True, False], [side.size for side in sides]),
        "score": np.concatenate(sides),
        "round": None,
    }


def _pandas() -> Any:
    try:
        return import_module("pandas")
    except ImportError:
        raise InputError("DataFrames need pandas: pip install pandas") from None
