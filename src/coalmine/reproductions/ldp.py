"""Figures 1(b), 2 and 3 and Table 3 of Matsumoto et al. (2022) as tables, beside what the paper says of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scipy import special

from coalmine.audits.result import AuditResult
from coalmine.config.ldp import LDPSettings
from coalmine.console import number
from coalmine.reproductions.table import Context, Table

DATA = ("mnist", "fashion-mnist", "cifar10", "svhn")
EPSILONS = (0.5, 1.0, 2.0, 4.0)
SMALL_STEPS = {"scaling": "printed", "learning_rate": 1.0}
"""Algorithm 2 as printed, with a learning rate of 1: steps of length 0.01 to 0.05 for some 10,000 parameters."""

# What the text says of MNIST, by crafter and ε. Where it says that ε is reached, that is printed.
_PAPER_WHITE = {
    ("benign", 4.0): "0.94",
    ("gradient-flip", 4.0): "3.99",
    ("collusion", 4.0): "4.07",
    **{("collusion", epsilon): "reached" for epsilon in EPSILONS[:3]},
    **{("dummy-gradient", epsilon): "reached" for epsilon in EPSILONS},
}


def figure_2(context: Context) -> Table:
    """Six adversaries, four ε, the paper's two distinguishers and ours; black-box at large and at small steps."""
    found = []
    for name in _data(context):
        large = _audit(context, data=name, crafter=("all",), epsilon=EPSILONS)
        small = _audit(context, data=name, crafter=("all",), epsilon=EPSILONS, view=("black-box",), **SMALL_STEPS)
        cells = {(r.config["crafter"], r.config["epsilon"], r.view): r for r in large}
        steps = {(r.config["crafter"], r.config["epsilon"]): r for r in small}
        for (crafter, epsilon), small_steps in steps.items():
            ours = [cells[crafter, epsilon, view] for view in ("white-box", "black-box")]
            found.append(
                [
                    name,
                    crafter,
                    f"{epsilon:g}",
                    _PAPER_WHITE.get((crafter, epsilon), "-") if name == "mnist" else "-",
                    _measured(ours[0]),
                    _bound(ours[0]),
                    _measured(ours[1]),
                    _measured(small_steps),
                    _measured(cells[crafter, epsilon, "likelihood-ratio"]),
                    _bound(cells[crafter, epsilon, "likelihood-ratio"]),
                    _bound(cells[crafter, epsilon, "parameter-change"]),
                ]
            )
    columns = ["data", "adversary", "ε", "paper, white-box", "white-box", "bound", "black-box, large steps",
               "black-box, small steps", "likelihood ratio", "bound", "parameter change, bound"]  # fmt: skip
    return Table(
        _title("Figure 2", "ε_empirical, mean ± std of measurements, and valid 95% bounds", context),
        columns,
        found,
    )


def figure_1b(context: Context) -> Table:
    """All adversaries and distinguishers at ε = 4."""
    found = []
    for name in _data(context):
        results = _audit(context, data=name, crafter=("all",), epsilon=(4.0,))
        for crafter in dict.fromkeys(r.config["crafter"] for r in results):
            own = {r.view: r for r in results if r.config["crafter"] == crafter}
            paper = _PAPER_WHITE.get((crafter, 4.0), "-") if name == "mnist" else "-"
            figures = [part for r in own.values() for part in (_measured(r), _bound(r))]
            found.append([name, crafter, paper, *figures])
    views = ("white-box", "black-box", "likelihood ratio", "parameter change")
    columns = ["data", "adversary", "paper, white-box", *(part for view in views for part in (view, "bound"))]
    return Table(_title("Figure 1(b)", "ε_empirical at ε = 4, and valid 95% bounds", context), columns, found)


def table_3(context: Context) -> Table:
    """The benign crafter among 1, 2, 4 and 10 clients at ε = 4, in the black-box view."""
    paper = {1: "0.12", 2: "0.07", 4: "0.06", 10: "0.06"}
    name = context.data or "mnist"
    found = []
    for clients, printed in paper.items():
        shared: dict[str, Any] = {"data": name, "crafter": ("benign",), "epsilon": (4.0,), "clients": clients}
        both = ("black-box", "parameter-change")
        large, change = _audit(context, view=both, **shared)
        (small,) = _audit(context, view=both[:1], **shared, **SMALL_STEPS)
        found.append(
            [
                str(clients),
                printed,
                _measured(large),
                _bound(large),
                _measured(small),
                _bound(small),
                number(large.metrics["blind"], 3),
                _measured(change),
                _bound(change),
            ]
        )
    columns = ["clients", "paper", "black-box, large steps", "bound", "black-box, small steps", "bound",
               "blind guesses", "parameter change", "bound"]  # fmt: skip
    return Table(_title(f"Table 3 ({name})", "ε_empirical at ε = 4, and valid 95% bounds", context), columns, found)


def figure_3(context: Context) -> Table:
    """The dummy gradient at norms below and above the clip norm of 1, in the white-box view."""
    norms = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
    results = _audit(
        context, data=context.data or "mnist", crafter=("dummy-gradient",), gradient_norm=norms, epsilon=EPSILONS,
        view=("white-box",),
    )  # fmt: skip
    found = []
    for result in results:
        norm, epsilon = result.config["gradient_norm"], result.config["epsilon"]
        right = 0.5 + min(1.0, norm) * (float(special.expit(epsilon)) - 0.5)
        found.append(
            [f"{norm:g}", f"{epsilon:g}", _measured(result), _bound(result), number(float(special.logit(right)), 3)]
        )
    title = _title("Figure 3", "ε_empirical by the norm of the gradient, L = 1", context)
    return Table(title, ["norm", "ε", "white-box", "bound", "closed form"], found)


def _audit(context: Context, **settings: Any) -> Sequence[AuditResult]:
    measured = LDPSettings(seed=context.seed, measurements=_measurements(context), trials=10_000, **settings)
    return measured.audit().run(context.track)


def _data(context: Context) -> Sequence[str]:
    if context.data is not None:
        return (context.data,)
    return DATA if context.scale == "full" else DATA[:1]


def _measurements(context: Context) -> int:
    return {"quick": 3, "full": 10}[context.scale]


def _title(what: str, shown: str, context: Context) -> str:
    return f"LDP, {what}: {shown}; {_measurements(context)} measurements of 10,000 trials, seed {context.seed}"


def _measured(result: AuditResult) -> str:
    return f"{number(result.metrics['empirical'], 3)} ± {number(result.metrics['empirical_std'], 3)}"


def _bound(result: AuditResult) -> str:
    assert result.bound is not None
    return number(result.bound.epsilon, 3)
