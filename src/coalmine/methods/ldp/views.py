"""What a distinguisher of the LDP audit sees and computes, in words. No torch, so that reports load fast."""

from __future__ import annotations

from typing import Literal, get_args

LDPView = Literal["white-box", "black-box", "likelihood-ratio", "parameter-change"]
"""Name of a view of the LDP audit."""

VIEWS: tuple[LDPView, ...] = get_args(LDPView)
"""The paper's tests on the report and on the model, then ours on the same."""

WHITE_BOX, BLACK_BOX = {"white-box", "likelihood-ratio"}, {"black-box", "parameter-change"}

ADVERSARIES = {
    "white-box": "sees the report and compares its cosines with both gradients",
    "black-box": "sees the model before and after the update and applies the paper's test",
    "likelihood-ratio": "sees the report and knows how likely each gradient makes it",
    "parameter-change": "sees the model before and after the update and recovers the report from the change",
}
"""What the adversary of each view does, continuing "an adversary who ..."."""

_BLACK_BOX_SCORES = {
    "loss-falls": "decrease of the loss of x₁",
    "larger-change": "difference of the loss changes of x₁ and x₂",
    "signs": "sum of the signs of the parameter change",
}


def score_name(view: str, rule: str) -> str:
    """Return the name of a view's score; the paper's black-box test depends on the crafter's rule."""
    if view == "black-box":
        return _BLACK_BOX_SCORES[rule]
    return "difference of cosines" if view == "white-box" else "log-likelihood ratio"


def adversary_name(variant: str) -> str:
    """Return the crafter's part of a result's variant: "dummy-gradient" of "dummy-gradient, ε = 4"."""
    return variant.rpartition(", ε = ")[0]
