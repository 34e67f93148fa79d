"""Figures 1, 4, 6, 7 and 8 and Table 1 of Maddock et al. (2023) as tables: ε of single rounds along trainings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from coalmine import claims
from coalmine.claims import Poisson
from coalmine.methods.canife.epsilon import rate_ceiling
from coalmine.results.tables import fixed
from coalmine.stats import Scores, gaussian_shift
from coalmine.stats.scores import best_threshold
from coalmine_reproductions import canife_claims, canife_sizes
from coalmine_reproductions.canife_ablations import figure_8a
from coalmine_reproductions.canife_attack import DELTA
from coalmine_reproductions.canife_figures import along_trainings, composed_along, lines, points
from coalmine_reproductions.canife_training import SIZES, cohort_trainings, monitor, trainings
from coalmine_reproductions.cells import Number
from coalmine_reproductions.table import Context, ReproducedTable

# The canaries of the tables: the paper's, ours, ours in ten times as many rounds, and a perfect one.
CANARIES = {"paper": "Loss 2", "ours": "coalmine", "ours-more": "coalmine", "perfect": "perfect"}
PAPER_GAPS = {"mnist": "4 to 5 (CelebA)", "shakespeare": "4 to 5", "sent140": "4.5"}

Trained = Mapping[str, Any]
"""What `monitor` returns."""


def figure_4(context: Context) -> ReproducedTable:
    """Compare ε̂ᵣ with εᵣ along trainings to ε = 10, 30, 50 and without noise, and the composed ε̂ with ε."""
    size = SIZES[context.scale].seeded(context.seed)
    runs = trainings(size)
    parts = context.parts(monitor, {run.name: run for run in runs.values()})
    results = {key: parts[run.name] for key, run in runs.items()}
    rows = [
        _row(data, epsilon, training, canary)
        for (data, epsilon), training in results.items()
        for canary in CANARIES
        if canary in training["periods"][0]
    ]
    columns = ["data", "ε", "σ", "εᵣ", "model's accuracy", "canary", "trials", "health", "attack accuracy"]
    columns += ["ε̂ᵣ at first", "ε̂ᵣ, second half", "paper: εᵣ / ε̂ᵣ", "εᵣ / ε̂ᵣ, second half"]
    columns += ["by Gaussian shift", "composed ε̂", "ε / ε̂", "composed by Gaussian shift"]
    lengths = ", ".join(
        f"{kind.scene.data}: {kind.scene.steps} rounds with about {kind.scene.batch_size} clients, attacked every "
        f"{kind.every}"
        for kind in size.scenes
    )
    note = (
        f"{lengths}. ε̂ᵣ is that of the best threshold, at most the ceiling of its trials, and composed by RDP, all as "
        "published (δ = 1/trials for a round, 1e-05 for all); none of these is a bound. The second half is that of the "
        "attacks, the later ones. Gaussian shift uses δ = 1e-05 "
        "throughout. εᵣ is by RDP at 1e-05. The perfect canary's scores are drawn from the Gaussian mechanism."
    )
    title = f"CANIFE, Figures 1, 4, 6 and 7: {context.scale}"

    def draw() -> dict[str, Any]:
        along = [row for key, training in results.items() for row in _points(*key, training)]
        composed = [row for key, training in results.items() for row in _cumulative(*key, training)]
        return {
            "canife-figure-1": composed_along(composed, "CANIFE, Figure 1"),
            "canife-figure-4": along_trainings(along, "CANIFE, Figures 4 and 6"),
            "canife-figure-7": points(
                [row for row in along if row["canary"] == "Loss 2" and row["claimed"] == f"{max(size.epsilons):g}"],
                x=("accuracy", "attack accuracy"),
                y=("epsilon", "ε̂ᵣ"),
                color=("data", "data"),
                title="CANIFE, Figure 7",
            ),
        }

    claims = canife_claims.figure_4(size.epsilons, [kind.scene.data for kind in size.scenes])
    return ReproducedTable(title, columns, rows, note, draw, _claimed(results, size.epsilons), claims)


def _row(data: str, epsilon: float, training: Trained, canary: str) -> list[str]:
    """Return a row of Figure 4."""
    numbers, claim = _numbers(training, canary), _round_claim(training)
    gap = PAPER_GAPS.get(data, "-") if canary == "paper" and epsilon == 50 else "-"
    row = [data, fixed(epsilon, 0), Number(training["noise"], ".3f"), Number(claim, ".2f")]
    row += [Number(training["accuracy"], ".1%"), CANARIES[canary], f"{numbers['trials']:,}"]
    row += ["-" if numbers["health"] is None else Number(numbers["health"], ".2f")]
    row += [Number(numbers["attack"], ".1%"), Number(numbers["epsilons"][0], ".2f")]
    row += [Number(numbers["level"], ".2f"), gap]
    if not training["noise"]:
        return [*row, *["-"] * 5]
    row += [Number(claim / numbers["level"], ".1f"), Number(numbers["shift"], ".2f")]
    row += [Number(numbers["composed"], ".2f"), Number(epsilon / numbers["composed"], ".1f")]
    return [*row, Number(numbers["composed_shift"], ".2f")]


def _claimed(results: Mapping[tuple[str, float], Trained], epsilons: Sequence[float]) -> dict[str, list[float]]:
    """Return the numbers that decide the claims about the paper's canary."""
    claimed: dict[str, float] = {}
    largest: list[tuple[float, float]] = []
    for (data, epsilon), training in results.items():
        numbers = _numbers(training, "paper")
        if not training["noise"]:
            claimed["share of the ceiling"] = float(np.mean(numbers["shares"]))
            continue
        claimed[f"gap {data} {epsilon:g}"] = _round_claim(training) / numbers["level"]
        claimed[f"perfect gap {data} {epsilon:g}"] = _round_claim(training) / _numbers(training, "perfect")["level"]
        claimed[f"composed {data} {epsilon:g}"] = numbers["composed"]
        claimed[f"composed share {data} {epsilon:g}"] = numbers["composed"] / epsilon
        if epsilon == max(epsilons):
            epsilon_hats, half = numbers["epsilons"], len(numbers["epsilons"]) // 2
            claimed |= {f"first {data}": epsilon_hats[0], f"level {data}": numbers["level"]}
            claimed[f"middle {data}"] = epsilon_hats[half]
            claimed[f"end {data}"] = float(np.mean(epsilon_hats[half + 1 :] or epsilon_hats[-1:]))
            claimed |= {f"model {data}": training["accuracy"], f"health {data}": numbers["later health"]}
            largest += zip(numbers["accuracies"], epsilon_hats, strict=True)
    if len(largest) > 2:  # a rank correlation
        claimed["rank correlation"] = float(spearmanr(*zip(*largest, strict=True)).statistic)
    return {name: [value] for name, value in claimed.items()}


def _points(data: str, claimed: float, training: Trained) -> list[dict[str, Any]]:
    """Return what is drawn of a training: one row per attacked round and canary."""
    labels: dict[str, Any] = {"data": data, "claimed": fixed(claimed, 0)}
    if training["noise"]:
        labels["claim"] = _round_claim(training)
    rows = []
    for period in training["periods"]:
        for canary in ("paper", "ours", "perfect"):
            if canary not in period:
                continue
            scores = Scores(period[canary]["with"], period[canary]["without"])
            best = best_threshold(scores, delta=1 / _trials(scores))
            numbers = {"epsilon": best.epsilon, "lower": best.lower, "upper": best.upper}
            finite = {name: value for name, value in numbers.items() if value is not None and math.isfinite(value)}
            labels["accuracy"] = scores.max_accuracy
            rows.append({"round": period["round"], "canary": CANARIES[canary], **labels, **finite})
    return rows


def _cumulative(data: str, claimed: float, training: Trained) -> list[dict[str, Any]]:
    """Return what is drawn of Figure 1: ε and ε̂ spent up to the end of each attacked period."""
    if not training["noise"]:
        return []
    numbers, sampling = _numbers(training, "paper"), Poisson(training["rate"])
    rows, rounds = [], 0
    for count, length in enumerate(numbers["lengths"], start=1):
        rounds += length
        spent = claims.Claim(
            noise_multiplier=training["noise"], sampling=sampling, rounds=rounds, delta=DELTA, accountant="rdp"
        ).epsilon
        measured = _composed(
            numbers["epsilons"][:count], numbers["lengths"][:count], training["rate"], 1 / numbers["trials"]
        )
        labels = {"data": data, "claimed": fixed(claimed, 0), "round": rounds}
        rows += [{**labels, "epsilon": spent, "what": "ε"}, {**labels, "epsilon": measured, "what": "ε̂"}]
    return rows


def figure_8(context: Context) -> ReproducedTable:
    """Compare Loss 1 with Loss 2, and attack accuracy and ε̂ by clients per round."""
    size = SIZES[context.scale].seeded(context.seed)
    ablation = figure_8a(context)
    rows = [[*row[:-1], "-", "-"] for row in ablation.rows]
    claimed = dict(ablation.numbers)
    runs = cohort_trainings(size)
    parts = context.parts(monitor, {run.name: run for run in runs.values()})
    drawn = []
    for cohort, run in runs.items():
        training = parts[run.name]
        both = [_numbers(training, canary) for canary in ("paper", "ours")]
        labels = ["b, c", f"{cohort} clients per round, σ = {training['noise']:.2f}"]
        labels += ["accuracy falls, ε̂ rises with clients"]
        cells = [cell for n in both for cell in (Number(n["attack"], ".1%"), Number(n["deviation"], ".3g"))]
        composed = [Number(numbers["composed"], ".2f") for numbers in both]
        rows.append([*labels, Number(training["accuracy"], ".1%"), *cells, *composed])
        claimed |= {f"accuracy {cohort}": [both[0]["attack"]], f"composed {cohort}": [both[0]["composed"]]}
        drawn += [
            {"cohort": cohort, "number": number, "value": both[0][key]}
            for number, key in (("attack accuracy", "attack"), ("ε̂", "composed"))
        ]
    columns = [*ablation.columns[:-1], "composed ε̂, the paper's canary", "coalmine's"]
    note = (
        "a: without noise, CIFAR-10, LEAF's CNN. b, c: writers of MNIST, trained to "
        f"ε = {max(size.epsilons):g}; the paper's canary scored along its update, then ours along the likelihood ratio."
    )

    def draw() -> dict[str, Any]:
        chart = lines(
            drawn, x=("cohort", "clients per round"), y=("value", ""), panel="number", title="CANIFE, Figures 8b and 8c"
        )
        return {**ablation.draw(), "canife-figure-8bc": chart}

    claims = canife_claims.figure_8(canife_sizes.SIZES[context.scale].user_pools, size.cohorts)
    return ReproducedTable(f"CANIFE, Figure 8: {context.scale}", columns, rows, note, draw, claimed, claims)


def table_1(context: Context) -> ReproducedTable:
    """Design canaries from texts of training users on Shakespeare (Appendix E)."""
    size = SIZES[context.scale].seeded(context.seed)
    runs = trainings(size)
    largest = [run for (_, epsilon), run in runs.items() if epsilon == max(size.epsilons)]
    parts = context.parts(monitor, {run.name: run for run in largest})
    texts = [text for run in largest for text in parts[run.name]["texts"]]
    rows = [[_visible(t["before"]), _visible(t["after"]), Number(t["health"], ".2f")] for t in texts]
    numbers = {}
    if texts:  # only language models have them
        numbers = {"health of texts": [float(np.mean([t["health"] for t in texts]))]}
    note = f"From a model trained to ε = {max(size.epsilons):g}, by Loss 2. Line breaks are shown as ¶."
    title = f"CANIFE, Table 1: {context.scale}"
    columns = ["text of a training user", "canary after optimization", "health"]
    return ReproducedTable(title, columns, rows, note, numbers=numbers, claims=canife_claims.TABLE_1)


def _visible(text: str) -> str:
    """Return a text with characters that a table cannot show replaced."""
    return "`" + text.replace("\n", "¶").replace("`", "'") + "`"


def _round_claim(training: Trained) -> float:
    """Return εᵣ, the ε of a single round."""
    if not training["noise"]:
        return math.inf
    return claims.round_epsilon(noise_multiplier=training["noise"], delta=DELTA, accountant="rdp")


def _trials(scores: Scores) -> int:
    return int(scores.members.size + scores.observed.size)


def _numbers(training: Trained, canary: str) -> dict[str, Any]:
    """Return what the scores of one canary show for each attacked round, and composed."""
    periods = training["periods"]
    scores = [Scores(period[canary]["with"], period[canary]["without"]) for period in periods]
    trials = _trials(scores[0])
    best = [best_threshold(s, delta=1 / trials) for s in scores]
    # Scores that separate perfectly have an infinite ratio of rates, but show no more than the ceiling.
    ceilings = [rate_ceiling(s.members.size, s.observed.size, 1 / trials) for s in scores]
    epsilons = [min(estimate.epsilon, ceiling) for estimate, ceiling in zip(best, ceilings, strict=True)]
    lengths, half = [period["rounds"] for period in periods], len(periods) // 2
    healths = [period[canary]["health"] for period in periods if "health" in period[canary]]
    numbers: dict[str, Any] = {
        "trials": trials,
        "lengths": lengths,
        "epsilons": epsilons,
        "shares": [epsilon / ceiling for epsilon, ceiling in zip(epsilons, ceilings, strict=True)],
        "accuracies": [s.max_accuracy for s in scores],
        "attack": float(np.mean([s.max_accuracy for s in scores])),
        "deviation": float(np.mean([(s.members.std(ddof=1), s.observed.std(ddof=1)) for s in scores])),
        "health": float(np.mean(healths)) if healths else None,
        "later health": float(np.mean(healths[1:])) if healths else None,
        "level": float(np.mean(epsilons[half:])),
    }
    if training["noise"]:
        shifts = [gaussian_shift(s, delta=DELTA).epsilon for s in scores]
        numbers |= {
            "shift": float(np.mean(shifts[half:])),
            "composed": _composed(epsilons, lengths, training["rate"], 1 / trials),
            "composed_shift": _composed(shifts, lengths, training["rate"], None),
        }
    return numbers


def _composed(epsilons: Sequence[float], lengths: Sequence[int], rate: float, round_delta: float | None) -> float:
    """Return the composed ε̂; without ``round_delta`` all is at the same δ and inverted exactly."""
    return claims.compose_rounds(
        list(zip(epsilons, lengths, strict=True)),
        sampling=Poisson(rate),
        delta=DELTA,
        round_delta=round_delta,
        inversion="exact" if round_delta is None else "rdp",
        accountant="rdp",
    )
