"""Settings of the LDP audit, as ``audit.toml`` and ``--set`` give them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import Field

from coalmine.config import Settings, Several
from coalmine.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from coalmine.methods.ldp.audit import Ldp
    from coalmine.methods.ldp.crafters import Crafter
    from coalmine.simulation.mechanisms.local import LocalMechanism

# Name of a view of the LDP audit.
LDPView = Literal["white-box", "black-box", "likelihood-ratio", "parameter-change"]

# The paper's tests on the report and on the model, then ours on the same.
VIEWS: tuple[LDPView, ...] = get_args(LDPView)

# What the adversary of each view does, continuing "an adversary who ...".
ADVERSARIES = {
    "white-box": "sees the report and compares its cosines with both gradients",
    "black-box": "sees the model before and after the update and applies the paper's test",
    "likelihood-ratio": "sees the report and knows how likely each gradient makes it",
    "parameter-change": "sees the model before and after the update and recovers the report from the change",
}

# What the score of each view is. That of the black box depends on the crafter's rule.
SCORES = {
    "white-box": "difference of cosines",
    "likelihood-ratio": "log-likelihood ratio",
    "parameter-change": "log-likelihood ratio",
    "loss-falls": "decrease of the loss of x₁",
    "larger-change": "difference of the loss changes of x₁ and x₂",
    "signs": "sum of the signs of the parameter change",
}


class LDPSettings(Settings):
    """Settings of the LDP audit: crafters, mechanism, views, and how many trials."""

    data: str = Field("digits", description="data set (digits, mnist, cifar10, …) or file")
    model: str | None = Field(
        None,
        examples=["mlp"],
        description="model (ldp-cnn, mlp, …) or path.py:function; by default one that fits the data",
    )
    crafter: Several[str] = Field(
        ("all",),
        description="all, or any of benign, input-perturbation, parameter-retrogression, gradient-flip, collusion, "
        "dummy-gradient, path.py:function",
    )
    view: Several[LDPView] = Field(VIEWS, description="what the adversary sees")
    mechanism: str = Field("ldp-sgd", description="mechanism: ldp-sgd, gaussian, privunit or path.py:function")
    epsilon: Several[Annotated[float, Field(gt=0)]] = Field(
        (0.5, 1.0, 2.0, 4.0), description="claimed ε per report; one audit for each value"
    )
    delta: float | None = Field(
        None,
        examples=[1e-5],
        ge=0,
        lt=1,
        description="claimed δ of gaussian (default 1e-5) or of path.py:function (default 0)",
    )
    clip_norm: float = Field(1.0, gt=0, description="clip norm L of the gradients")
    gradient_norm: Several[float] | None = Field(
        None, examples=[[1.0]], description="norms of the dummy gradient; by default the clip norm"
    )
    alpha: float = Field(1.0, gt=0, description="size of the perturbation of inputs and of parameters")
    trials: int = Field(10_000, ge=2, description="trials per measurement (K in the paper)")
    measurements: int = Field(1, ge=1, description="repetitions, each with a new model and new examples")
    clients: int = Field(1, ge=1, description="reports that the server averages per update")
    learning_rate: float = Field(0.01, gt=0, description="learning rate of the server")
    scaling: Literal["unbiased", "printed"] = Field(
        "unbiased", description="scaling of the mean report; printed follows the paper's Algorithm 2, d times smaller"
    )
    confidence: float = Field(0.95, ge=0.5, lt=1, description="confidence of the lower bounds")
    seed: int = Field(0, ge=0, lt=2**63, description="seed for all random choices")

    def mechanisms(self) -> list[LocalMechanism]:
        """Return one mechanism for each claimed ε."""
        from coalmine.simulation.mechanisms.local import LDPSGD, LocalGaussian, OwnMechanism, PrivUnit2
        from coalmine.simulation.models import is_user_model
        from coalmine.usercode import load_function

        epsilons, options = tuple(dict.fromkeys(self.epsilon)), {"norm": self.clip_norm}
        if self.delta is not None:
            options["delta"] = self.delta
        known: dict[str, Any] = {"ldp-sgd": LDPSGD, "privunit": PrivUnit2, "gaussian": LocalGaussian}
        if self.mechanism in known:
            if self.mechanism != "gaussian" and "delta" in options:
                raise InputError(f"{self.mechanism} claims δ = 0, got delta = {self.delta:g}: leave delta out")
            return [known[self.mechanism](epsilon=epsilon, **options) for epsilon in epsilons]
        # Anything else is a function of the user's.
        if not is_user_model(self.mechanism):
            hint = did_you_mean(self.mechanism, [*known, "path.py:function"])
            raise InputError(f'unknown mechanism "{self.mechanism}". {hint}')
        function = load_function(self.mechanism)
        if len(epsilons) != 1:
            raise InputError(f"{self.mechanism} makes a single claim: set epsilon to one number")
        return [OwnMechanism(function=function, epsilon=epsilons[0], **options)]

    def _crafter_names(self) -> list[str]:
        """Return the names of the crafters; one that is listed twice is audited once."""
        from coalmine.methods.ldp.crafters import CRAFTERS

        names: dict[str, None] = {}
        for name in self.crafter:
            names |= dict.fromkeys(CRAFTERS if name == "all" else (name,))
        return list(names)

    def crafters(self) -> list[Crafter]:
        """Return the named crafters, and one dummy gradient for each norm."""
        from coalmine.methods.ldp.crafters import DummyGradient, crafter_named
        from coalmine.simulation.models import is_user_model
        from coalmine.usercode import load_function

        names = self._crafter_names()
        if self.gradient_norm is not None and "dummy-gradient" not in names:
            raise InputError("gradient_norm belongs to the dummy gradient: add dummy-gradient to crafter")
        crafters: list[Any] = []
        for name in names:
            if is_user_model(name):
                crafters.append(load_function(name))
            elif name == "dummy-gradient":
                for norm in dict.fromkeys(self.gradient_norm or (self.clip_norm,)):
                    crafters.append(DummyGradient(norm=norm))
            else:
                crafters.append(crafter_named(name, alpha=self.alpha))
        return crafters

    def labels(self) -> list[str]:
        """Return the label of each result, without loading what is a function of the user's."""
        names = []
        for name in self._crafter_names():
            norms = self.gradient_norm if name == "dummy-gradient" and self.gradient_norm else (self.clip_norm,)
            for norm in norms:
                names.append(name.rpartition(":")[2] + (f" of norm {norm:g}" if norm != self.clip_norm else ""))
        return [f"{name}, ε = {e:g}, {view}" for name in names for e in self.epsilon for view in self.view]

    def audit(self) -> Ldp:
        """Return the audit, ready to run."""
        from coalmine.methods.ldp.audit import Ldp
        from coalmine.simulation import models
        from coalmine.simulation.data import load
        from coalmine.simulation.mechanisms.local import LDPServer

        # Wrong names are refused before the data is loaded.
        mechanisms, crafters = self.mechanisms(), self.crafters()
        data = load(self.data, seed=self.seed).train
        name = self.model or models.default_model(data.task)
        return Ldp(
            data=data,
            model=lambda seed: models.build(name, data.task, seed=seed),
            crafters=crafters,
            mechanisms=mechanisms,
            views=self.view,
            trials=self.trials,
            measurements=self.measurements,
            clients=self.clients,
            server=LDPServer(learning_rate=self.learning_rate, scaling=self.scaling),
            confidence=self.confidence,
            seed=self.seed,
        )


def adversary_name(variant: str) -> str:
    """Return the crafter's part of a result's variant: "dummy-gradient" of "dummy-gradient, ε = 4"."""
    return variant.rpartition(", ε = ")[0]
