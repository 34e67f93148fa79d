"""The LDP audit, as settings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from coalmine.config.settings import Settings, Several
from coalmine.errors import InputError, check_count, check_positive
from coalmine.progress import track

if TYPE_CHECKING:
    from torch import nn

    from coalmine.methods.ldp.audit import LDPAudit
    from coalmine.methods.ldp.crafters import Crafter
    from coalmine.simulation.data import FederatedData
    from coalmine.simulation.mechanisms.local import LocalMechanism, Server

View = Literal["white-box", "black-box", "likelihood-ratio", "parameter-change"]


class LDPSettings(Settings):
    """Six adversaries against a locally private client: who crafts, what randomizes, who guesses, how often."""

    data: str = Field("digits", description="a name (digits, mnist, cifar10, …) or a file")
    model: str | None = Field(
        None,
        examples=["mlp"],
        description="a name (ldp-cnn, mlp, …) or path.py:function; as fits the data if not given",
    )
    crafter: Several[str] = Field(
        ("all",), description="all, or some of benign, input-perturbation, parameter-retrogression, gradient-flip, "
        "collusion, dummy-gradient, path.py:function"
    )  # fmt: skip
    view: Several[View] = Field(
        ("white-box", "black-box", "likelihood-ratio", "parameter-change"), description="what distinguishers look at"
    )
    mechanism: str = Field("ldp-sgd", description="ldp-sgd, gaussian, privunit or path.py:function")
    epsilon: Several[float] = Field((0.5, 1.0, 2.0, 4.0), description="what it promises")
    delta: float | None = Field(
        None, examples=[1e-5], ge=0, lt=1, description="of gaussian, 1e-5 if not given, or of a mechanism of one's own"
    )
    norm: float = Field(1.0, gt=0, description="the clip norm L")
    gradient_norm: Several[float] | None = Field(
        None, examples=[[1.0]], description="norms of the dummy gradient; L if not given"
    )
    alpha: float = Field(1.0, description="size of the perturbation of inputs and of parameters")
    trials: int = Field(10_000, ge=2, description="trials of a measurement, K")
    measurements: int = Field(1, ge=1, description="measurements, each with a model and examples of its own")
    clients: int = Field(1, ge=1, description="reports that the server averages")
    learning_rate: float = Field(0.01, gt=0, description="of the server")
    scaling: Literal["unbiased", "printed"] = Field(
        "unbiased", description="of the server's mean; printed is Algorithm 2 as it stands, d times smaller"
    )
    radius: float | None = Field(
        None, examples=[10.0], gt=0, description="of the parameter set; all parameters if not given"
    )
    rounds: int = Field(
        0, ge=0, description="rounds of training with the mechanism at its largest epsilon, before the audit"
    )
    round_clients: int = Field(50, ge=1, description="clients of such a round")
    confidence: float = Field(0.95, ge=0.5, lt=1, description="of the bounds")
    seed: int = Field(0, ge=0, lt=2**63, description="of everything random")

    @field_validator("epsilon")
    @classmethod
    def _positive(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        """Refuse here, where its line is known, what promises nothing."""
        return tuple(check_positive("epsilon", epsilon) for epsilon in value)

    def mechanisms(self) -> list[LocalMechanism]:
        """One for each ε."""
        from coalmine.simulation.mechanisms.local import LDPSGD, LocalGaussian
        from coalmine.simulation.mechanisms.privunit import PrivUnit2
        from coalmine.simulation.mechanisms.user import OwnMechanism
        from coalmine.simulation.models.user import is_user_model
        from coalmine.usercode import load_function

        _check_distinct("epsilon", [f"{epsilon:g}" for epsilon in self.epsilon])
        if is_user_model(self.mechanism):
            if len(self.epsilon) != 1:
                raise InputError("a mechanism of your own makes one promise: give it as epsilon=, one number")
            function, delta = load_function(self.mechanism), self.delta or 0.0
            return [OwnMechanism(function=function, epsilon=e, norm=self.norm, delta=delta) for e in self.epsilon]
        if self.mechanism not in ("ldp-sgd", "gaussian", "privunit"):
            known = "ldp-sgd, gaussian, privunit or path.py:function"
            raise InputError(f"mechanism must be {known}, got {self.mechanism!r}")
        if self.mechanism == "gaussian":
            delta = 1e-5 if self.delta is None else self.delta
            return [LocalGaussian(epsilon=epsilon, norm=self.norm, delta=delta) for epsilon in self.epsilon]
        if self.delta is not None:
            raise InputError(f"delta goes with the gaussian mechanism; {self.mechanism} is private at delta 0")
        kind = LDPSGD if self.mechanism == "ldp-sgd" else PrivUnit2
        return [kind(epsilon=epsilon, norm=self.norm) for epsilon in self.epsilon]

    def crafters(self) -> list[Crafter]:
        """Those that are named."""
        from coalmine.methods.ldp.crafters import CRAFTERS, crafter_named, name_of
        from coalmine.simulation.models.user import is_user_model
        from coalmine.usercode import load_function

        names = [known for name in self.crafter for known in (CRAFTERS if name == "all" else (name,))]
        _check_distinct("crafter", names)
        _check_distinct("gradient_norm", [f"{norm:g}" for norm in self.gradient_norm or ()])
        if self.gradient_norm is not None and "dummy-gradient" not in names:
            raise InputError("gradient_norm is the dummy gradient's, and crafter does not name it")
        found: list[Any] = []
        for name in names:
            if is_user_model(name):
                function: Any = load_function(name)
                # Two files may have functions of one name, or one that is called as ours are.
                known = {*CRAFTERS, *map(name_of, found)}
                found.append(_called(name, function) if name_of(function) in known else function)
            elif name == "dummy-gradient":
                norms = (self.norm,) if self.gradient_norm is None else self.gradient_norm
                found += [crafter_named(name, norm=norm) for norm in norms]
            else:
                found.append(crafter_named(name, alpha=self.alpha))
        return found

    def server(self) -> Server:
        """How the model moves."""
        from coalmine.simulation.mechanisms.local import Server

        return Server(learning_rate=self.learning_rate, scaling=self.scaling, radius=self.radius)

    def audit(self) -> LDPAudit:
        """The audit, ready to run."""
        from coalmine.methods.ldp.audit import LDPAudit
        from coalmine.simulation.data import load

        mechanisms, crafters = self.mechanisms(), self.crafters()
        check_count("rounds", self.rounds, least=0)
        data = load(self.data, seed=self.seed).train
        return LDPAudit(
            data=data,
            model=lambda seed: self._model(data, mechanisms, seed),
            crafters=crafters,
            mechanisms=mechanisms,
            views=self.view,
            trials=self.trials,
            measurements=self.measurements,
            clients=self.clients,
            server=self.server(),
            confidence=self.confidence,
            seed=self.seed,
        )

    def _model(self, data: FederatedData, mechanisms: list[LocalMechanism], seed: int) -> nn.Module:
        import numpy as np

        from coalmine.simulation import models
        from coalmine.simulation.local_training import train_locally_private

        module = models.build(self.model or models.default_model(data.task), data.task, seed=seed)
        if not self.rounds:
            return module
        return train_locally_private(
            module,
            data,
            mechanism=max(mechanisms, key=lambda mechanism: mechanism.epsilon),
            server=self.server(),
            rounds=self.rounds,
            clients=self.round_clients,
            rng=np.random.default_rng([self.seed, seed]),
            track=lambda work: track(work, "training before the audit", self.rounds),
        )


def _check_distinct(what: str, values: Sequence[str]) -> None:
    """Refuse a setting that names the same twice: results are told apart by it."""
    twice = next((value for i, value in enumerate(values) if value in values[:i]), None)
    if twice is not None:
        raise InputError(f"{what} has {twice} twice: give each but once")


def _called(name: str, crafter: Any) -> Any:
    """The crafter by another name."""
    made: Any = partial(crafter)
    for kept in ("rule", "prepare", "norm"):
        if hasattr(crafter, kept):
            setattr(made, kept, getattr(crafter, kept))
    made.name = name
    return made
