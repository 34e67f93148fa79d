"""Sentences without their padding, where those that begin alike are one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Beginnings:
    """The different beginnings of some sentences: what a recurrent network has a state for.

    ``tokens`` has the last token of each beginning, the shortest beginnings first: ``counts[t]`` are of t + 1 tokens,
    and ``parents[t]`` has the places of what they continue among those of t tokens (all 0 for t = 0), as a slice where
    these are the first in their order. ``targets`` are the tokens to be predicted, and ``owners`` the beginnings that
    they follow.
    """

    tokens: Tensor
    counts: list[int]
    parents: list[Tensor | slice]
    owners: Tensor
    targets: Tensor


def beginnings(tokens: Tensor, targets: Tensor, ignored: int | None) -> Beginnings:
    """Those of ``tokens`` (n, positions), each sentence cut after its last target that is not ``ignored``.

    Every sentence starts with the same begin-of-sentence token, and many with the same word: a state that n sentences
    share is computed once, exactly.
    """
    # NumPy: on so few numbers torch takes longer to start than to work
    words, wanted = tokens.cpu().numpy().T, targets.cpu().numpy().T
    counted = np.ones(wanted.shape, dtype=bool) if ignored is None else wanted != ignored
    places = np.arange(1, len(wanted) + 1)[:, None]
    lengths = (counted * places).max(0)
    order = np.argsort(-lengths, kind="stable")
    words, wanted, counted = words[:, order], wanted[:, order], counted[:, order]
    span = int(words.max()) + 1
    nothing = np.zeros(0, dtype=np.int64)
    last, owners = [nothing], [nothing]
    parents: list[Tensor | slice] = []
    beginning, before, alike = np.zeros(len(order), dtype=np.int64), 0, True
    for position, count in enumerate((lengths >= places).sum(1)):
        if not count:
            break
        parent, token = beginning[:count], words[position, :count]
        if alike:
            different, beginning = np.unique(parent * span + token, return_inverse=True)
            parent, token = np.divmod(different, span)
            alike = len(different) < count
        else:  # sentences that differ once go on to differ
            beginning = np.arange(count)
        last.append(token)
        in_order = np.array_equal(parent, np.arange(len(token)))
        parents.append(slice(0, len(token)) if in_order else torch.from_numpy(parent).to(tokens.device))
        owners.append((beginning + before)[counted[position, :count]])
        before += len(token)
    return Beginnings(
        tokens=torch.from_numpy(np.concatenate(last)).to(tokens.device),
        counts=[len(some) for some in last[1:]],
        parents=parents,
        owners=torch.from_numpy(np.concatenate(owners)).to(tokens.device),
        targets=torch.from_numpy(wanted[counted]).to(tokens.device),
    )
