"""Figures 1(b), 2 and 3, Table 3 and Section 4.3 of Matsumoto et al. (2022), beside what the paper says about them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

from coalmine.methods.ldp.distinguishers import Trials
from coalmine.methods.ldp.lower_bounds import stored_trials
from coalmine.methods.ldp.settings import LDPSettings
from coalmine.results.io import results_to_dict
from coalmine.results.result import Result
from coalmine.results.tables import fixed
from coalmine.stats.scores import epsilon_from_rates
from coalmine_reproductions import ldp_claims
from coalmine_reproductions import ldp_figures as figures
from coalmine_reproductions.cells import Number
from coalmine_reproductions.table import Context, ReproducedTable

DATA = ("mnist", "fashion-mnist", "cifar10", "svhn")
EPSILONS = (0.5, 1.0, 2.0, 4.0)
NORMS = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
TRIALS = 10_000
MEASUREMENTS = {"quick": 3, "full": 10}
SMALL_STEPS = {"scaling": "printed", "learning_rate": 1.0}
"""Algorithm 2 as printed, with a learning rate of 1: steps of length 0.01 to 0.05 for about 10,000 parameters."""

_SIMULATIONS = 400  # of guesses at random: their mean is then known to a few percent

StoredResult = Mapping[str, Any]
"""One result of the audit, as result files have it."""

# What Section 4.2 and Appendix A.2 say about Figures 1(b), 2 and 4 to 7, which print no numbers themselves.
_PAPER_NUMBERS = {("benign", 4.0): "0.94", ("gradient-flip", 4.0): "3.99", ("collusion", 4.0): "4.07"}
_PAPER_WORDS = {
    "benign": "below ε",
    "input-perturbation": "below benign",
    "parameter-retrogression": "below ε",
    "gradient-flip": "reaches ε",
    "collusion": "reaches ε",
    "dummy-gradient": "reaches ε",
}
_NOTE = (
    "The paper's figures print no numbers. Its columns show what its text says, with numbers only for MNIST at ε = 4."
    " Its 0.12 is from Table 3, for one client at an ε that is not stated."
)
_TABLE_3 = {1: "0.12", 2: "0.07", 4: "0.06", 10: "0.06"}


def figure_2(context: Context) -> ReproducedTable:
    """Compare six adversaries at four ε, by the paper's two distinguishers and ours, with large and small steps."""
    audits: dict[str, dict[str, Any]] = {}
    for name in _data(context):
        audits[f"{name}-large"] = {"data": name, "epsilon": EPSILONS}
        audits[f"{name}-small"] = {"data": name, "epsilon": EPSILONS, "view": ("black-box",), **SMALL_STEPS}
    results = _audits(context, "figure-2", audits)
    rows: list[list[str]] = []
    numbers: dict[str, list[float]] = {}
    for name in _data(context):
        cells = {(r["config"]["crafter"], r["config"]["epsilon"], r["view"]): r for r in results[f"{name}-large"]}
        for small in results[f"{name}-small"]:
            crafter, epsilon = small["config"]["crafter"], small["config"]["epsilon"]
            white, black, ratio, change = (
                cells[crafter, epsilon, view]
                for view in ("white-box", "black-box", "likelihood-ratio", "parameter-change")
            )
            paper = _paper_white(name, crafter, epsilon)
            row = [name, crafter, f"{epsilon:g}", paper, _measured(white), _bound(white)]
            row += [_paper_black(name, crafter), _measured(black), _measured(small)]
            row += [_measured(ratio), _bound(ratio), _bound(change)]
            rows.append(row)
            numbers |= _by_view(name, crafter, epsilon, white=white, black=black, ratio=ratio, change=change)
    columns = ["data", "adversary", "ε", "paper, white-box", "white-box", "bound", "paper, black-box",
               "black-box, large steps", "black-box, small steps", "likelihood ratio", "bound",
               "parameter change, bound"]  # fmt: skip
    title = _title("Figure 2", "ε_empirical, mean ± std over measurements, and 95% lower bounds", context)
    claims = [claim for name in _data(context) for claim in ldp_claims.figure_2(name, EPSILONS)]
    draw = _drawing("figure-2", figures.sweep, {name: results[f"{name}-large"] for name in _data(context)})
    return ReproducedTable(title, columns, rows, _NOTE, draw, numbers, claims)


def figure_1b(context: Context) -> ReproducedTable:
    """Compare all adversaries and distinguishers at ε = 4; Figures 4(a) and 4(b) for the other data."""
    audited_data = _audits(context, "figure-1b", {name: {"data": name, "epsilon": (4.0,)} for name in _data(context)})
    rows: list[list[str]] = []
    numbers: dict[str, list[float]] = {}
    for name, results in audited_data.items():
        for crafter in _PAPER_WORDS:
            white, black, *ours = (r for r in results if r["config"]["crafter"] == crafter)
            rows.append(
                [name, crafter, _paper_white(name, crafter, 4.0), _measured(white), _bound(white), _accuracy(white)]
                + [_paper_black(name, crafter), _measured(black), _bound(black), _accuracy(black)]
                + [part for r in ours for part in (_measured(r), _bound(r))]
            )
            ratio, change = ours
            numbers[ldp_claims.number(name, crafter, 4.0, "white accuracy")] = [white["metrics"]["accuracy"]]
            numbers[ldp_claims.number(name, crafter, 4.0, "black accuracy")] = [black["metrics"]["accuracy"]]
            numbers |= _by_view(name, crafter, 4.0, white=white, black=black, ratio=ratio, change=change)
    columns = ["data", "adversary", "paper, white-box", "white-box", "bound", "right guesses", "paper, black-box",
               "black-box", "bound", "right guesses", "likelihood ratio", "bound", "parameter change",
               "bound"]  # fmt: skip
    title = _title("Figure 1(b)", "ε_empirical at ε = 4, and 95% lower bounds", context)
    claims = [claim for name in _data(context) for claim in ldp_claims.figure_2(name, (4.0,))]
    claims += [ldp_claims.accuracies(name) for name in _data(context)]
    draw = _drawing("figure-1b", figures.adversaries, audited_data)
    return ReproducedTable(title, columns, rows, _NOTE, draw, numbers, claims)


def table_3(context: Context) -> ReproducedTable:
    """Audit the benign crafter among 1, 2, 4 and 10 clients at ε = 4, in the black-box view."""
    name = context.data or "mnist"
    settings = {"data": name, "crafter": ("benign",), "epsilon": (4.0,), "view": ("black-box", "parameter-change")}
    results = _audits(
        context, "table-3", {f"{name}-{clients}": {**settings, "clients": clients} for clients in _TABLE_3}
    )
    rows: list[list[str]] = []
    numbers: dict[str, list[float]] = {}
    for clients, printed in _TABLE_3.items():
        black, change = results[f"{name}-{clients}"]
        row = [str(clients), printed, _measured(black), _bound(black), Number(black["metrics"]["blind"], ".3f")]
        rows.append([*row, _measured(change), _bound(change)])
        numbers[f"{clients} clients"] = [_measured(black).value]
        numbers[f"change, {clients} clients"] = [_bound(change).value]
    columns = ["clients", "paper", "black-box", "bound", "blind guesses", "parameter change", "bound"]
    title = _title(f"Table 3 ({name})", "ε_empirical at ε = 4, and 95% lower bounds", context)
    claims = ldp_claims.TABLE_3 if name == "mnist" else ()
    return ReproducedTable(title, columns, rows, numbers=numbers, claims=claims)


def section_4_3(context: Context) -> ReproducedTable:
    """Audit benign clients at ε = 8, whose reports an untrusted shuffler sees one by one."""
    rows: list[list[str]] = []
    numbers: dict[str, list[float]] = {}
    settings = {"crafter": ("benign",), "epsilon": (8.0,), "view": ("white-box", "likelihood-ratio")}
    audits = _audits(context, "section-4-3", {name: {"data": name, **settings} for name in _data(context)})
    # The cosines of a report with orthogonal gradients: it is closer to the right one in 3/4 of the half-plane around
    # it, and in 1/4 of the other.
    right = 0.25 + float(special.expit(8.0)) / 2
    closed = fixed(float(special.logit(right)), 3)
    for name, (white, ratio) in audits.items():
        rows.append([name, "like 1", closed, _measured(white), _bound(ratio)])
        numbers[f"white {name}"] = [_measured(white).value]
        numbers[f"ratio {name}"] = [_bound(ratio).value]
    columns = ["data", "paper", "closed form, orthogonal gradients", "white-box", "likelihood ratio, bound"]
    title = _title("Section 4.3", "ε_empirical of benign clients at ε = 8, and a 95% lower bound", context)
    return ReproducedTable(title, columns, rows, numbers=numbers, claims=ldp_claims.section_4_3(_data(context)))


def figure_3(context: Context) -> ReproducedTable:
    """Audit dummy gradients of norms below and above the clip norm of 1, in the white-box view."""
    name = context.data or "mnist"
    settings = {"data": name, "crafter": ("dummy-gradient",), "gradient_norm": NORMS, "epsilon": EPSILONS}
    (results,) = _audits(context, "figure-3", {name: {**settings, "view": ("white-box",)}}).values()
    rows: list[list[str]] = []
    numbers: dict[str, list[float]] = {}
    for result in results:
        norm, epsilon = result["config"]["gradient_norm"], result["config"]["epsilon"]
        right = 0.5 + min(1.0, norm) * (float(special.expit(epsilon)) - 0.5)
        paper = f"{epsilon:g}" if norm >= 1 else f"below {epsilon:g}"
        closed = fixed(float(special.logit(right)), 3)
        rows.append([f"{norm:g}", f"{epsilon:g}", paper, closed, _measured(result), _bound(result)])
        numbers[f"norm {norm:g}, ε {epsilon:g}"] = [_measured(result).value]
    title = _title(f"Figure 3 ({name})", "ε_empirical by the norm of the gradient, L = 1", context)
    note = "The paper's figure prints no numbers: it is ε from L on, by Proposition 1, and less below L, by the text."
    columns = ["norm", "ε", "paper", "closed form", "white-box", "bound"]
    claims = ldp_claims.figure_3(NORMS, EPSILONS)
    draw = _drawing("figure-3", figures.norms, {name: results})
    return ReproducedTable(title, columns, rows, note, draw, numbers, claims)


def audited(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run one audit and return its results as in ``result.json``, with the ε_empirical of guesses at random."""
    audit_settings = LDPSettings(**settings)
    results = audit_settings.audit().run()
    content = results_to_dict(results, settings=audit_settings.model_dump(mode="json"))
    for stored, result in zip(content["results"], results, strict=True):
        stored["metrics"]["blind"] = blind_epsilon(stored_trials(result), result.recipe["delta"])
    return content


def blind_epsilon(trials: Sequence[Trials], delta: float) -> float:
    """Return the mean ε_empirical of guessing g₁ equally often but at random: what it shows without any leak.

    ε_empirical is the larger of two log-ratios of counts, and so above 0 by chance alone.
    """
    rng = np.random.default_rng(0)
    means: list[float] = []
    for measurement in trials:
        counts = measurement.counts
        share = (counts.tp + counts.fp) / (counts.members + counts.nonmembers)
        tpr = rng.binomial(counts.members, share, _SIMULATIONS) / counts.members
        fpr = rng.binomial(counts.nonmembers, share, _SIMULATIONS) / counts.nonmembers
        epsilons = epsilon_from_rates(tpr, fpr, delta)
        finite = epsilons[np.isfinite(epsilons)]
        means.append(float(np.mean(finite)) if finite.size else 0.0)
    return float(np.mean(means))


def _audits(context: Context, what: str, audits: Mapping[str, Mapping[str, Any]]) -> dict[str, Sequence[StoredResult]]:
    """Return the results of each audit by its name; each audit is a part that can be kept."""
    shared = {"seed": context.seed, "measurements": MEASUREMENTS[context.scale], "trials": TRIALS}
    # The data may be a file, whose path then becomes part of a file name.
    names = {name: f"ldp-{what}-{re.sub(r'[^A-Za-z0-9.-]+', '_', name)}" for name in audits}
    parts = context.parts(audited, {names[name]: {**shared, **settings} for name, settings in audits.items()})
    return {name: parts[names[name]]["results"] for name in audits}


def _data(context: Context) -> Sequence[str]:
    if context.data is not None:
        return (context.data,)
    return DATA if context.scale == "full" else DATA[:1]


def _title(what: str, shown: str, context: Context) -> str:
    measurements = MEASUREMENTS[context.scale]
    return f"LDP, {what}: {shown}; {measurements} measurements of {TRIALS:,} trials"


def _paper_white(data: str, crafter: str, epsilon: float) -> str:
    """Return the text's number or word for the white-box view; "below benign" is said about MNIST only."""
    if data == "mnist":
        return _PAPER_NUMBERS.get((crafter, epsilon), _PAPER_WORDS[crafter])
    if data not in DATA:
        return "-"
    return "below ε" if crafter == "input-perturbation" else _PAPER_WORDS[crafter]


def _paper_black(data: str, crafter: str) -> str:
    """Return the text's number or word for the black-box view."""
    if data == "mnist" and crafter == "benign":
        return "0.12"
    if data not in DATA:
        return "-"
    return "above weaker ones" if crafter == "collusion" else "below white-box"


def _measured(result: StoredResult) -> Number:
    mean, spread = (float(result["metrics"][name]) for name in ("empirical", "empirical_std"))
    return Number(mean, ".3f", spread=spread)


def _bound(result: StoredResult) -> Number:
    return Number(float(result["estimates"][0]["epsilon"]), ".3f", bound=True)


def _accuracy(result: StoredResult) -> Number:
    return Number(float(result["metrics"]["accuracy"]), ".1%")


def _by_view(
    data: str,
    crafter: str,
    epsilon: float,
    *,
    white: StoredResult,
    black: StoredResult,
    ratio: StoredResult,
    change: StoredResult,
) -> dict[str, list[float]]:
    """Return the numbers that decide the claims about one adversary: means in the paper's views, bounds in ours."""
    numbers = {"white": _measured(white), "black": _measured(black), "ratio": _bound(ratio), "change": _bound(change)}
    return {ldp_claims.number(data, crafter, epsilon, view): [cell.value] for view, cell in numbers.items()}


def _drawing(
    figure: str, chart: Callable[[Sequence[Result]], Any], audits: Mapping[str, Sequence[StoredResult]]
) -> Callable[[], dict[str, Any]]:
    """Return what draws, for each data set, the results in the paper's two views, which its figures show."""

    def draw() -> dict[str, Any]:
        shown = {
            name: [
                Result.from_dict({**result, "config": {**result["config"], "data": name}})  # for the title
                for result in results
                if result["view"] in ("white-box", "black-box")
            ]
            for name, results in audits.items()
        }
        return {f"ldp-{figure}-{name}": chart(results) for name, results in shown.items()}

    return draw
