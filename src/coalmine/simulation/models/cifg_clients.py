"""Gradients of the word LSTM for many clients that start from the same weights: one pass for all, one product each.

A client's few short messages keep a core busy for less time than it takes to start the operations. Here the positions
of all clients go through the recurrence together, and only the last products, from states to weights, are per client.

The reference is the gradient of ``WordLSTM.loss`` for one client after another; tests compare the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from coalmine.simulation.models.cifg import States, backward_pass, forward_pass
from coalmine.simulation.models.prefixes import distinct_prefixes


def client_gradients(
    weights: Sequence[Tensor], tokens: Tensor, targets: Tensor, clients: Tensor, ignored: int | None, out: list[Tensor]
) -> Tensor:
    """Write each client's gradient of its mean cross-entropy to ``out`` and return the losses, (clients,).

    Args:
        weights: Table, input weights and bias of the gates, their recurrent weights, and the projection.
        tokens: Sentences of all clients, (n, positions).
        targets: What follows each token, (n, positions).
        clients: The client of each sentence, (n,).
        ignored: Target that does not count.
        out: For each weight, where to write the gradients, (clients, *shape).
    """
    table, w_input, bias, w_recurrent, w_projection = weights
    words, width, count = *table.shape, len(out[0])
    # Clients must not share prefixes, so tokens of different clients get different numbers.
    tagged = distinct_prefixes(tokens + clients[:, None] * words, targets, ignored)
    row_clients, prefixes = tagged.tokens // words, replace(tagged, tokens=tagged.tokens % words)
    states = States(len(row_clients), width, w_projection.shape[1], table)
    w_read = torch.cat((w_input, w_recurrent), 1)
    states.read[:, :width] = table.index_select(0, prefixes.tokens)
    forward_pass(prefixes, states, w_read, bias, w_projection)

    owners, target_clients = prefixes.owners, row_clients.index_select(0, prefixes.owners)
    shares = torch.bincount(target_clients, minlength=count).clamp_(min=1).to(table.dtype).reciprocal_()
    target_shares = shares.index_select(0, target_clients)
    logits = states.hidden @ table.t()
    log_sums = logits.logsumexp(1)
    losses = table.new_zeros(count).index_add_(
        0, target_clients, target_shares * (log_sums[owners] - logits[owners, prefixes.targets])
    )
    row_shares = table.new_zeros(len(row_clients)).index_add_(0, owners, target_shares)
    # With respect to the logits: the softmax minus the one-hot target.
    deltas = logits.sub_(log_sums[:, None]).exp_().mul_(row_shares[:, None])
    deltas.index_put_((owners, prefixes.targets), -target_shares, accumulate=True)
    grad_hidden = deltas @ table
    grad_embedded = backward_pass(prefixes, states, grad_hidden, w_read, w_projection)

    order = torch.argsort(row_clients, stable=True)
    sizes = torch.bincount(row_clients, minlength=count).tolist()
    per_client = zip(
        *(
            rows.index_select(0, order).split(sizes)
            for rows in (prefixes.tokens, deltas, states.hidden, grad_embedded, states.gates, states.read)
        ),
        *(rows.index_select(0, order).split(sizes) for rows in (grad_hidden, states.outputs)),
        strict=True,
    )
    for i, (last_tokens, delta, hidden, embedded, gates, read, grad, outputs) in enumerate(per_client):
        torch.mm(delta.t(), hidden, out=out[0][i]).index_add_(0, last_tokens, embedded)
        grad_read = gates.t() @ read
        out[1][i], out[2][i], out[3][i] = grad_read[:, :width], gates.sum(0), grad_read[:, width:]
        torch.mm(grad.t(), outputs, out=out[4][i])
    return losses
