"""Initial weights as Keras draws them, for papers whose models were written in it."""

from __future__ import annotations

import torch
from torch import nn

from coalmine.simulation.models.text import WordLSTM


def initialize_like_keras(model: WordLSTM, seed: int) -> None:
    """Give a word LSTM the initial weights that Keras gives its layers.

    Embeddings are uniform in ±0.05, kernels Glorot-uniform, recurrent kernels orthogonal, biases 1 for forget gates and
    0 otherwise. torch's standard normal embeddings are 35 times as long, and then the final model is little else than
    its initial weights: canaries and noise barely turn it.

    Args:
        model: The model, which is changed.
        seed: Seed for the weights.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        nn.init.uniform_(model.embedding.weight, -0.05, 0.05)
        nn.init.xavier_uniform_(model.input_gates.weight)
        nn.init.orthogonal_(model.recurrent_gates.weight)
        nn.init.zeros_(model.input_gates.bias)
        model.input_gates.bias[: model.units] = 1.0  # the forget gates come first
        nn.init.xavier_uniform_(model.projection.weight)
