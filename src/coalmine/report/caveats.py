"""What each figure is worth, who each adversary is, and what the words mean: sentences for readers, kept in tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

METHODS = {
    "simultaneous": (
        "Many tests at once, fixed before the scores were seen, sharing one allowance for error. A valid bound if "
        "canaries do not influence one another's scores."
    ),
    "exact-null": (
        "Many tests at once against the known law of a canary that was not planted: false accusations are computed "
        "rather than counted. A valid bound if that law is exact and planted canaries do not influence one another's "
        "scores."
    ),
    "split": "One test, chosen on half of the canaries and carried out on the others. A valid bound, often a weak one.",
    "one-run": (
        "Counts right guesses in a single training; canaries may influence one another. A valid bound if each canary "
        "was planted by its own fair coin flip."
    ),
    "clopper-pearson": (
        "Exact intervals for both error rates at one threshold. Its lower end is a valid bound if the threshold was "
        "fixed in advance; its ε is the plain ratio."
    ),
    "jeffreys": "Approximate intervals at one threshold. An estimate: slightly too narrow for some rates.",
    "katz-log": "Approximate intervals at one threshold. An estimate: slightly too narrow for some rates.",
    "joint-beta": "A Bayesian interval at one threshold. An estimate: what it says depends on its prior.",
    "plug-in": "The plain ratio of the rates that were counted. An estimate: above 0 by chance alone.",
    "gdp": (
        "The tests of simultaneous, assuming that the mechanism is Gaussian. A bound for Gaussian mechanisms only; "
        "for any other it is an estimate."
    ),
    "one-run-fdp": "The one-run test, assuming that the mechanism is Gaussian. A bound for Gaussian mechanisms only.",
    "gaussian-shift": (
        "Takes both kinds of scores for bell curves of the same width. An estimate: good for Gaussian scores, without "
        "meaning for others."
    ),
    "gaussian-fit": (
        "Takes both kinds of scores for bell curves of their own widths. An estimate, and biased upwards: a small "
        "error in a width moves ε a lot."
    ),
    "best-threshold": (
        "The largest ratio over all thresholds, judged on the scores that chose it, as papers publish it. An estimate, "
        "biased upwards."
    ),
    "published-lower-bound": (
        "The one-shot paper's lower bound. Its threshold is chosen on the same scores, so it fails in a fifth of "
        "audits or more: an estimate, whatever its name."
    ),
    "ldp": (
        "Right guesses, error rates and extreme reports tested together, sharing one allowance for error. A valid "
        "bound: fair coins decide what is sent, and where to guess is fixed before."
    ),
    "ranks": "Tests at extreme reports, fixed before they were seen. A valid bound.",
    "median-exposure": (
        "ε from the median rank of the planted phrases among phrases that were not planted. A point estimate without "
        "error bars."
    ),
    "low-fpr": "The ratio of rates where few references are accused. A point estimate without error bars.",
    "ε_empirical": "The paper's ratio of error rates at its own threshold. An estimate without error bars.",
    "composed": (
        "ε̂ of single rounds, put together to one of all rounds as if the mechanism were Gaussian. An estimate, also "
        "where a single round's is a bound."
    ),
}

AUDITS = {
    "one-shot": (
        "Random updates as canaries",
        "Random updates were added to the training as extra clients, others were held out by coin flips. In so many "
        "dimensions a random direction is nobody else's: whatever of it is found in what was released is there "
        "because it was planted. Scores say how much of each is found.",
    ),
    "samples": (
        "Examples as canaries",
        "Examples were put among the data of the training, others were held out by coin flips. Scores say how much the "
        "training seems to have seen each: by its loss, or by how well its gradient fits what every step released.",
    ),
    "canife": (
        "Crafted samples in single rounds",
        "A sample was crafted whose update is unlike everybody else's, and a coin decided in which rounds it took "
        "part. The score is how much of it the round's noisy sum shows: about 1 with it and 0 without. ε is that of "
        "one round, for a client known to take part in it; rounds composed give estimates for the whole training.",
    ),
    "secret-sharer": (
        "Planted phrases",
        "Random phrases were planted in users' texts; others, drawn in the same way, were not. The final model was "
        "asked how likely it finds each. A phrase that several users share tells of all of them together; ε of one "
        "user follows by dividing the bound among them.",
    ),
    "ldp": (
        "Local privacy: one client's report",
        "A client sends one of two gradients through a locally private mechanism, and an adversary guesses which. Each "
        "mechanism promises its own ε for each report: this is not the ε of a training. Of many bounds some exceed a "
        "promise by chance, so promises are judged by bounds that hold all together.",
    ),
    "exposure": (
        "Ranks among references",
        "Canaries are ranked by the model's loss among references that were never planted. Exposure says how many bits "
        "better than all references a rank is; random guessing has one bit at the median. Scores are minus the rank, "
        "so that higher means more exposed; \u22120.5 is ahead of all references. ε is stated at δ = 0 unless asked "
        "otherwise: no small probability is left out then.",
    ),
}

GLOSSARY = [
    (
        "ε (epsilon)",
        "How much one participant can change what is released. An accusation is at most e^ε times as likely against "
        "somebody who took part as against somebody who did not: 2.7 times at ε = 1, 55 at 4, 2,981 at 8. Smaller is "
        "more private.",
    ),
    (
        "δ (delta)",
        "The small probability that is left out of that: it should be far below one over the number of people. At "
        "δ = 0 nothing is left out; local mechanisms promise that.",
    ),
    (
        "promise",
        "An upper bound on ε that is proved by mathematics from the noise and the sampling, for every adversary. It "
        "holds if the software does what the proof assumes.",
    ),
    (
        "valid bound",
        "A lower bound on ε that is shown by measurement: the true ε is at least this, except for the few audits in a "
        "hundred that the confidence allows. A bound above the promise refutes the promise.",
    ),
    (
        "estimate",
        "A guess at ε that rests on assumptions nobody proved, or that was chosen to look large. It may be too high "
        "or too low, and refutes nothing.",
    ),
    (
        "canary",
        "Something planted in a training in order to look for it afterwards: an update, a sample, a phrase. Canaries "
        "that were held out show what chance alone looks like.",
    ),
    (
        "memorized, extracted",
        "A planted phrase is memorized if the model finds it likelier than every random phrase it is ranked among, and "
        "extracted if a beam search, asked to go on from its beginning, gives it as the first answer.",
    ),
    (
        "exposure",
        "How many bits better than all references a canary ranks: log2(references) − log2(rank). Guessing at random "
        "has one bit at the median.",
    ),
    ("view", "What an adversary is allowed to see, such as the final model alone or every round."),
    ("score", "A number for each canary: the higher, the more it looks as if it had been planted."),
    (
        "true and false positive rate",
        "Of the canaries that were planted, and of those that were not, the share that scores above a threshold.",
    ),
    (
        "ceiling",
        "The largest bound that so few canaries could show. A bound near its ceiling says that more canaries would "
        "show more.",
    ),
]

_SEES = {
    ("one-shot", "final"): "sees the final model",
    ("one-shot", "final-change"): "sees the final model and knows what it started from",
    ("one-shot", "updates"): "sees every round's noisy average",
    ("samples", "final"): "asks the final model for losses",
    ("samples", "final-change"): "compares losses of the first and the final model",
    ("samples", "updates"): "sees every step's noisy gradient",
    ("secret-sharer", "exposure"): "asks the final model and compares ranks",
    ("secret-sharer", "loss"): "asks the final model and compares losses",
    ("secret-sharer", "users"): "asks the final model about a user's texts",
    ("ldp", "white-box"): "sees the report (the paper's test)",
    ("ldp", "black-box"): "sees the model's loss (the paper's test)",
    ("ldp", "likelihood-ratio"): "sees the report and knows its likelihoods",
    ("ldp", "parameter-change"): "sees the model before and after",
    ("exposure", "ranks"): "ranks canaries among references",
}


def caveat(method: str) -> str:
    """What a method's figure is worth."""
    return METHODS.get("low-fpr" if method.startswith("low-fpr") else method, "An estimate.")


def adversary(result: Mapping[str, Any]) -> str:
    """What the adversary of a result does, as what follows "an adversary who"."""
    audit, view = str(result["audit"]), str(result["view"])
    if audit == "canife":
        return "knows a crafted sample and sees a round's sum"
    kind, _, rest = view.partition(":")
    if audit == "one-shot" and kind == "every":
        return f"sees every {rest}th model and the last"
    if audit == "one-shot" and kind == "rounds":
        return f"sees the models of rounds {rest} and the last"
    return _SEES.get((audit, rest if audit == "samples" else kind), f"has the view {view}")


def kinds(result: Mapping[str, Any]) -> tuple[str, str]:
    """What the two kinds of scores are of."""
    if result["audit"] == "canife":
        return "with the canary", "without it"
    if result["audit"] == "exposure":
        return "canaries", "references"
    return ("trained on", "not trained on") if result["view"] == "users" else ("planted", "held out")
