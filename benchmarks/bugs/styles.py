"""Styles of correct training: what a server makes of the noisy average before it is released, which refutes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from noise import Array
from scipy import fft, ndimage


@dataclass
class Server:
    """What a server knows between rounds.

    Args:
        model: The released model.
        edges: Where its tensors are split.
        rng: Source of randomness.
        round: The current round.
        kept: What a style keeps, by name.
    """

    model: Array
    edges: Array
    rng: np.random.Generator
    round: int = 0
    kept: dict[str, Array] = field(default_factory=dict)

    def past(self, name: str) -> Array:
        """Return what is kept under a name, zeros at first."""
        return self.kept.setdefault(name, np.zeros_like(self.model))

    def last(self, x: Array, count: int) -> Array:
        """Return the last averages, at most ``count`` with this one."""
        self.kept["last"] = np.array([*self.kept.get("last", ()), x])[-count:]
        return self.kept["last"]


Style = Callable[[Array, Server], Array]
"""From a noisy average to the update that is released; zero if none is."""


def _momentum(beta: float, *, new: float = 1.0, nesterov: bool = False) -> Style:
    def style(x: Array, server: Server) -> Array:
        velocity = server.kept["velocity"] = beta * server.past("velocity") + new * x
        return beta * velocity + x if nesterov else velocity

    return style


def _adaptive(beta: float, kind: str, *, memory: float = 0.99, tau: float = 1e-3) -> Style:
    def style(x: Array, server: Server) -> Array:
        first = server.kept["first"] = beta * server.past("first") + (1 - beta) * x
        second = server.past("second")
        server.kept["second"] = {
            "adagrad": second + x**2,
            "adam": memory * second + (1 - memory) * x**2,
            "yogi": second - (1 - memory) * x**2 * np.sign(second - x**2),
        }[kind]
        return 0.01 * first / (np.sqrt(server.kept["second"]) + tau)

    return style


def _models_averaged(past: Callable[[int], float]) -> Style:
    """Release an average of models, with this weight on the past, while another model is trained."""

    def style(x: Array, server: Server) -> Array:
        trained = server.kept["trained"] = server.kept.get("trained", server.model) + x
        return (1 - past(server.round)) * (trained - server.model)

    return style


def _model(change: Callable[[Array], Array]) -> Style:
    return lambda x, server: change(server.model + x) - server.model


def _tensors(change: Callable[[Array, int], Array]) -> Style:
    return lambda x, server: np.concatenate([change(part, i) for i, part in enumerate(np.split(x, server.edges))])


def _rate(rate: Callable[[Server], float]) -> Style:
    return lambda x, server: rate(server) * x


def _largest(x: Array, share: float) -> Array:
    return x * (np.abs(x) >= np.quantile(np.abs(x), 1 - share))


def _rounded(x: Array, bits: int, offset: Array | float = 0.5) -> Array:
    step = np.ptp(x) / (2**bits - 1)
    return x.min() + step * np.floor((x - x.min()) / step + offset)


def _cast(x: Array, kind: torch.dtype) -> Array:
    return torch.tensor(x).to(kind).double().numpy()


def _with_error_feedback(x: Array, server: Server) -> Array:
    owed = server.past("owed") + x
    server.kept["owed"] = owed - _largest(owed, 0.1)
    return _largest(owed, 0.1)


STYLES: dict[str, Style] = {
    "as it is": lambda x, server: x,
    "the sum": _rate(lambda server: 250.0),
    "minus the average": _rate(lambda server: -1.0),
    "server learning rate 0.5": _rate(lambda server: 0.5),
    "server learning rate 2": _rate(lambda server: 2.0),
    "learning rate 1/t": _rate(lambda server: 1 / (server.round + 1)),
    "learning rate ÷ 10 halfway": _rate(lambda server: 1.0 if server.round < 10 else 0.1),
    "warmup": _rate(lambda server: min(1.0, (server.round + 1) / 10)),
    "random schedule": _rate(lambda server: server.rng.uniform(0.1, 3)),
    "learning rates of tensors": _tensors(lambda part, i: part * (1.0, 0.1, 0.3, 10.0)[i]),
    "a frozen tensor": _tensors(lambda part, i: part * (1.0, 0.0, 1.0, 1.0)[i]),
    "momentum 0.5": _momentum(0.5),
    "momentum 0.9": _momentum(0.9),
    "momentum 0.99": _momentum(0.99),
    "momentum 0.9, dampened": _momentum(0.9, new=0.1),
    "Nesterov 0.9": _momentum(0.9, nesterov=True),
    "EMA 0.5": _models_averaged(lambda t: 0.5),
    "EMA 0.9": _models_averaged(lambda t: 0.9),
    "mean of all models": _models_averaged(lambda t: t / (t + 1)),
    "weight decay 0.98": _model(lambda model: 0.98 * model),
    "weight decay 0.8": _model(lambda model: 0.8 * model),
    "model in a ball": _model(lambda model: model * min(1.0, 10 / np.linalg.norm(model))),
    "weights clipped at 0.3": _model(lambda model: np.clip(model, -0.3, 0.3)),
    "model in float16": _model(lambda model: _cast(model, torch.float16)),
    "model in bfloat16": _model(lambda model: _cast(model, torch.bfloat16)),
    "top 50%": lambda x, server: _largest(x, 0.5),
    "top 10%": lambda x, server: _largest(x, 0.1),
    "top 1%": lambda x, server: _largest(x, 0.01),
    "top 10%, error feedback": _with_error_feedback,
    "random 10%": lambda x, server: x * (server.rng.random(len(x)) < 0.1),
    "random 10%, times 10": lambda x, server: 10 * x * (server.rng.random(len(x)) < 0.1),
    "every second coordinate": lambda x, server: x * (np.arange(len(x)) % 2),
    "the largest left out": lambda x, server: x * (np.abs(x) <= 2 * np.std(x)),
    "signs": lambda x, server: 0.01 * np.sign(x),
    "signs times the mean of each tensor": _tensors(lambda part, i: np.sign(part) * np.abs(part).mean()),
    "8 bits": lambda x, server: _rounded(x, 8),
    "4 bits": lambda x, server: _rounded(x, 4),
    "4 bits, stochastic": lambda x, server: _rounded(x, 4, server.rng.random(len(x))),
    "2 bits, stochastic": lambda x, server: _rounded(x, 2, server.rng.random(len(x))),
    "float16": lambda x, server: _cast(x, torch.float16),
    "bfloat16": lambda x, server: _cast(x, torch.bfloat16),
    "average clipped by norm": lambda x, server: x * min(1.0, 0.5 / np.linalg.norm(x)),
    "clipped by value at 2 deviations": lambda x, server: np.clip(x, -2 * np.std(x), 2 * np.std(x)),
    "clipped by value at 1 deviation": lambda x, server: np.clip(x, -np.std(x), np.std(x)),
    "tanh": lambda x, server: 0.01 * np.tanh(x / 0.01),
    "unit norm": lambda x, server: x / np.linalg.norm(x),
    "unit norm of each tensor": _tensors(lambda part, i: part / np.linalg.norm(part)),
    "centered tensors": _tensors(lambda part, i: part - part.mean()),
    "Adam": _adaptive(0.9, "adam", tau=1e-9),
    "FedAdam": _adaptive(0.9, "adam"),
    "Yogi": _adaptive(0.9, "yogi"),
    "AdaGrad": _adaptive(0.0, "adagrad"),
    "AdaGrad with momentum": _adaptive(0.9, "adagrad"),
    "RMSProp": _adaptive(0.0, "adam", memory=0.9),
    "James–Stein": lambda x, server: x * max(0.05, 1 - (len(x) - 2) * 0.006**2 / (x @ x)),
    "soft threshold": lambda x, server: np.sign(x) * np.maximum(np.abs(x) - np.std(x), 0),
    "mean of 3 rounds": lambda x, server: server.last(x, 3).mean(axis=0),
    "median of 3 rounds": lambda x, server: np.median(server.last(x, 3), axis=0),
    "a round late": lambda x, server: server.last(x, 2)[0] * (server.round > 0),
    "smoothed over neighbors": lambda x, server: ndimage.uniform_filter1d(x, 3),
    "low frequencies": lambda x, server: fft.idct(fft.dct(x) * (np.arange(len(x)) < len(x) // 2)),
    "more noise": lambda x, server: x + 0.005 * server.rng.standard_normal(len(x)),
}
"""Styles by name."""
