"""What Thakkar et al. (2020) claim about their tables: counts of memorized canaries out of 90, and orders of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coalmine.arrays import Floats
from coalmine_reproductions.claims import PaperClaim, falls, near, pairs_fall, rises
from coalmine_reproductions.secret_sharer_rows import TABLE_1 as _ROWS_1
from coalmine_reproductions.secret_sharer_rows import TABLE_2 as _ROWS_2
from coalmine_reproductions.secret_sharer_rows import Setting

_RECORDS, _USERS = (32, 64, 128, 256), (500, 1000, 2000, 5000)
_COUNT = 4  # how far counts of two trainings with other canaries are apart, by the three seeds of Table 1


def _counts(text: str, rows: Sequence[Setting], regime: str) -> PaperClaim:
    """Return the claim that random sampling finds the paper's counts; within 15 of 90 they agree in shape."""
    settings = [setting for setting in rows if setting.name.startswith(regime)]
    paper = [setting.paper[0] for setting in settings]
    names = [f"{setting.name} RS" for setting in settings]
    return PaperClaim(text, ", ".join(map(str, paper)), names, near(*paper, within=_COUNT), near(*paper, within=15))


def _order(text: str, paper: str, *names: str) -> list[PaperClaim]:
    """Return the claim that the first of each pair of settings memorizes more, by both methods.

    If it does so on average over several pairs, they agree in shape.
    """
    return [
        PaperClaim(f"{text}, {method}", paper, [f"{name} {method}" for name in names], pairs_fall, _fall_on_average)
        for method in ("RS", "BS")
    ]


def _pairs(first: str, second: str, batches: Sequence[tuple[int, int]]) -> list[str]:
    return [name for a, b in batches for name in (f"{first}-{a}", f"{second}-{b}")]


def _fall_on_average(means: Floats) -> bool:
    return bool(means[0::2].mean() > means[1::2].mean())


_SAME = tuple(zip(_RECORDS, _RECORDS, strict=True))
_SAME_USERS = tuple(zip(_USERS, _USERS, strict=True))
_BOTH = tuple(zip(_USERS, _RECORDS, strict=True))

TABLE_1 = (
    _counts("central SGD on shuffled examples", _ROWS_1, "iid-sgd"),
    _counts("FedAvg on shuffled users", _ROWS_1, "iid-fedavg"),
    _counts("central SGD by user", _ROWS_1, "non-iid-sgd"),
    _counts("federated learning", _ROWS_1, "non-iid-fedavg"),
    PaperClaim(
        "beam search extracts at most two canaries from federated learning",
        "0, 1, 1, 2",
        [f"non-iid-fedavg-{batch} BS" for batch in _USERS],
        lambda means: bool(np.all(means <= 2)),
    ),
    *_order("FedAvg on shuffled users memorizes more than SGD", "no number", *_pairs("iid-fedavg", "iid-sgd", _BOTH)),
    *_order("SGD by user memorizes less than shuffled SGD", "no number", *_pairs("iid-sgd", "non-iid-sgd", _SAME)),
    *_order(
        "natural users memorize less than shuffled users",
        "no number",
        *_pairs("iid-fedavg", "non-iid-fedavg", _SAME_USERS),
    ),
    *_order(
        "federated learning memorizes less than SGD by user",
        "37 against 21, 19 against 0 (smallest batches)",
        "non-iid-sgd-32",
        "non-iid-fedavg-500",
    ),
    PaperClaim("accuracy varies by less than 1 point", "23.7 to 24.6", [f"{s.name} accuracy" for s in _ROWS_1],
               lambda means: bool(np.ptp(means) < 1), lambda means: bool(np.ptp(means) < 2)),
)  # fmt: skip
_CLIPPED = ("fedavg-5000", "fedavg-clip-5000")
TABLE_2 = (
    _counts("FedAvg, clipped and private, on shuffled users", _ROWS_2, "iid-"),
    _counts("FedAvg, clipped and private, on natural users", _ROWS_2, "non-iid-"),
    *_order("clipping memorizes less, shuffled users", "65 to 58, 58 to 49", *(f"iid-{name}" for name in _CLIPPED)),
    *_order("clipping memorizes less, natural users", "26 to 11, 2 to 0", *(f"non-iid-{name}" for name in _CLIPPED)),
    *_order("noise memorizes still less, shuffled users", "58 to 48, 49 to 42", "iid-fedavg-clip-5000",
            "iid-dp-fedavg-5000"),
    PaperClaim("ten epochs with clipping on natural users memorize nothing", "0, 0",
               ["non-iid-fedavg-clip-5000-tenth RS", "non-iid-dp-fedavg-5000-tenth RS"], near(0, 0, within=0),
               near(0, 0, within=1)),
)  # fmt: skip
TABLE_3 = (
    *_order("momentum memorizes more than SGD, iid", "64 against 54", "iid-momentum-32", "iid-sgd-32"),
    *_order("momentum memorizes more than SGD, non-iid", "48 against 37", "non-iid-momentum-32", "non-iid-sgd-32"),
    PaperClaim("Adam memorizes less than SGD, non-iid", "21 against 37", ["non-iid-sgd-32 RS", "non-iid-adam-32 RS"],
               falls),
    *(
        PaperClaim(f"Adam gives a worse model than SGD, {data}", paper,
                   [f"{data}-sgd-32 perplexity", f"{data}-adam-32 perplexity"], rises)
        for data, paper in (("iid", "perplexity 70.8 against 62.2"), ("non-iid", "perplexity 84.1 against 64.3"))
    ),
    *(
        PaperClaim(f"Adam on the server memorizes less than FedAvg, {data}", paper,
                   [f"{data}-fedavg-500 RS", f"{data}-fedavg-adam-500 RS"], falls)
        for data, paper in (("iid", "60 against 66"), ("non-iid", "8 against 21"))
    ),
)  # fmt: skip
TABLE_4 = (
    *(
        PaperClaim(
            f"larger batches of records memorize about as much, {data}",
            paper,
            [f"{data}-sgd-{batch}-ten-epochs RS" for batch in _RECORDS],
            lambda means: bool(np.ptp(means) <= 5),
            lambda means: bool(np.ptp(means) <= 15),
        )
        for data, paper in (("iid", "49, 51, 46, 46"), ("non-iid", "40, 38, 35, 40"))
    ),
    *(
        PaperClaim(
            f"larger batches of records cost utility, {data}",
            "perplexity 63 to 69.7, 64.2 to 69.8",
            [f"{data}-sgd-{batch}-ten-epochs perplexity" for batch in (32, 256)],
            rises,
        )
        for data in ("iid", "non-iid")
    ),
    PaperClaim(
        "FedAvg with twice the users memorizes less than half, shuffled users",
        "66 to 27",
        ["iid-fedavg-500-ten-epochs RS", "iid-fedavg-1000-ten-epochs RS"],
        lambda means: bool(means[1] < means[0] / 2),
    ),
    PaperClaim(
        "FedAvg with 2,000 users or more memorizes nothing, natural users",
        "0, 0",
        ["non-iid-fedavg-2000-ten-epochs RS", "non-iid-fedavg-5000-ten-epochs RS"],
        near(0, 0, within=0),
    ),
    PaperClaim(
        "larger cohorts memorize less, natural users",
        "21 to 0",
        ["non-iid-fedavg-500-ten-epochs RS", "non-iid-fedavg-5000-ten-epochs RS"],
        falls,
    ),
)
