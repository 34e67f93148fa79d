"""Distinct prefixes of the sentences in a batch, without padding: the states that the word LSTM has to compute."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Prefixes:
    """The distinct prefixes of a batch of sentences, shortest first.

    Args:
        tokens: Last token of each prefix, (prefixes,).
        counts: ``counts[t]`` prefixes have t + 1 tokens.
        parents: ``parents[t]`` holds, for each prefix of t + 1 tokens, the row of the prefix it continues among those
            of t tokens (all 0 for t = 0). A slice where these are the first rows in order, which saves a gather.
        owners: The prefix that each target follows, (targets,).
        targets: Tokens to predict, (targets,).
    """

    tokens: Tensor
    counts: list[int]
    parents: list[Tensor | slice]
    owners: Tensor
    targets: Tensor


def distinct_prefixes(tokens: Tensor, targets: Tensor, ignored: int | None) -> Prefixes:
    """Return the prefixes of ``tokens`` (n, positions), each sentence cut after its last target that counts.

    All sentences start with the same begin-of-sentence token and many with the same word, so a state that several
    sentences share is computed once.
    """
    # NumPy, because on arrays this small the overhead of torch's operations dominates.
    words, labels = tokens.cpu().numpy().T, targets.cpu().numpy().T
    counted = np.ones(labels.shape, dtype=bool) if ignored is None else labels != ignored
    places = np.arange(1, len(labels) + 1)[:, None]
    lengths = (counted * places).max(0)
    # Longest first: the sentences that reach a position are then always the first rows.
    order = np.argsort(-lengths, kind="stable")
    words, labels, counted = words[:, order], labels[:, order], counted[:, order]
    vocabulary = int(words.max()) + 1
    empty = np.zeros(0, dtype=np.int64)
    last_tokens, owners = [empty], [empty]
    parents: list[Tensor | slice] = []
    prefix, first, shared = np.zeros(len(order), dtype=np.int64), 0, True
    for position, count in enumerate((lengths >= places).sum(1)):
        if not count:
            break
        parent, token = prefix[:count], words[position, :count]
        if shared:
            # A prefix is its parent and its last token, packed into one number.
            distinct, prefix = np.unique(parent * vocabulary + token, return_inverse=True)
            parent, token = np.divmod(distinct, vocabulary)
            shared = len(distinct) < count
        else:  # once all sentences differ, they differ for good
            prefix = np.arange(count)
        last_tokens.append(token)
        in_order = np.array_equal(parent, np.arange(len(token)))
        parents.append(slice(0, len(token)) if in_order else torch.from_numpy(parent).to(tokens.device))
        owners.append((prefix + first)[counted[position, :count]])
        first += len(token)
    return Prefixes(
        tokens=torch.from_numpy(np.concatenate(last_tokens)).to(tokens.device),
        counts=[len(rows) for rows in last_tokens[1:]],
        parents=parents,
        owners=torch.from_numpy(np.concatenate(owners)).to(tokens.device),
        targets=torch.from_numpy(labels[counted]).to(tokens.device),
    )
