"""Does what an audit says lead a colleague to the bug? Judged by words that a right first sentence contains.

They were written down before any answer was read. A sentence that only says that the claim is refuted names nothing.
"""

from __future__ import annotations

import re

_SMALL = "noise is too small|noise too small|There is no noise|[Nn]o noise|together have|is there|noise covers"
_LACKS = r"(?=.*(no noise|without noise|lack|at most|less|of the noise))(?=.*([Cc]oordinate|\.weight|\.bias))"
_REPEATS = "repeat|depends on that of|times that of|twin|same noise|equal reports|values|that of the report before|seed"
_ALIKE = "share|same noise|dimension|weighted sum|sum of coordinates|follow"
_SHAPE = "exceed|never|in places|not Gaussian|tails|different values|another shape|exactly|a few show far more"
_WHEN = r"(every|[Cc]alls?|[Rr]ounds?)\b.*(carr|ha(s|ve)|lack)|lack.*round|reports of a gradient are equal"
_CLIPS = r"longer than the clip|not clipped|look at clipping|[\d,.]+ clip norms|noise multiplier, clipping|times as far"
_MOVES = "moved|count for|counts for|before the noise|weights"

BY_KIND = {
    "size": _SMALL,
    "support": _LACKS,
    "freshness": _REPEATS,
    "correlation": _ALIKE,
    "shape": _SHAPE,
    "schedule": _WHEN,
    "data-dependent": "depends|input|data",
    "clipping": _CLIPS,
    "weighting": _MOVES,
    "sampling": "sampl|took part|[Pp]oisson|cohort",
    "accounting": "look at|below what|rounds",
}
"""Words for each kind of bug."""

BY_NAME = {
    "divided by 50 clients once too often": f"{_SMALL}|divi",
    "no noise": f"{_SMALL}|without noise|equal reports",
    "ε doubled in LDP-SGD": "truth is too likely",
    "ε doubled in randomized response": "truth is too likely",
    "a random half in each call": f"{_LACKS}|exactly|smaller than a tenth",
    "a random twentieth missing in each call": f"{_LACKS}|{_WHEN}|exactly",
    "seeded by the number of the call, from 0 on": "seed",
    "momentum: 0.9 of the last noise": "follows|depends on that of|times that of|repeat|report before",
    "overlaps with the last: (nₜ + nₜ₋₁)/√2": "follows|depends on that of|times that of|report before",
    "one vector, shuffled": "occurred in other|different values|same values",
    "one vector, rotated by a random step": "repeat|occurred in other|different values|same values",
    "adds up to zero": "sum|dimension",
    "one randomized response for all coordinates, at ε each": "dimension|truth is too likely|together",
    "clamped at 3 standard deviations": "exceed|another shape|exactly|limit",
    "mostly tiny, seldom huge": "tails|another shape|smaller than a tenth|not Gaussian|next to no noise|in places",
    "absolute values": "never|another shape|in places|sign",
    "16 bits of randomness": "values",
    "biased randomized response": "truth is too likely|depends on",
    "Laplace noise of scale 2/ε, as if the L1 norm were clipped": "noise too small",
    "truth in one report of 20": "a few show far more|reports of a gradient are equal",
    "halves every 500 reports": "a few show far more|later reports|report",
    "the noisy average is thrown away": f"{_SMALL}|not released|thrown",
    "momentum before the noise": "rounds|momentum",
    "what clipping cut off is added in the next round": "rounds",
    "sum counted twice": f"{_SMALL}|twice",
    "noise divided by 3 clients, sum not": _SMALL,
    "zeros below 3 updates": "dropped out",
    "zeros below 5 updates": "dropped out",
    "leaves out a bias": "bias|parameter 1 ",
    "scalars are not clipped": "scale",
    "NaN is not clipped": "NaN",
    "weights by examples": "example|weight",
    "weights by the root of examples": "example",
    "weights by examples up to 100": "example",
    "median in place of the mean": "others|half of which|median|beside",
    "ε of a quarter of the rounds": "round",
    "ε of a single round": "round",
    "ε for a tenth of the sampling rate": "sampl|took part",
    "ε with amplification by sampling, but all take part": "sampl|took part",
    "ε of 5 rounds per client, but all take part in 20": "took part|sampl|AtMost|at most 5",
    "ε for the squared noise multiplier": f"{_SMALL}|noise multiplier",
    "ε at δ = 0.01, claimed at 1e-5": "δ|below what",
    "noise for twice the clients": f"{_SMALL}|divi|clients",
    "most clients drop out": "drop|repl(y|ies)|divi",
    "noise for adding or removing, not replacing": _SMALL,
    "σ for δ = 0.1": _SMALL,
    "δ = 0 claimed for Gaussian noise of ε = 4": f"{_SMALL}|δ|a few show far more",
    "ε of one of 10 reports": "truth is too likely",
}
"""Words for bugs that are not like others of their kind."""


def is_named(kind: str, bug: str, sentence: str) -> bool:
    """Whether a sentence leads to the bug."""
    return bool(re.search(BY_NAME.get(bug, BY_KIND[kind]), sentence))
