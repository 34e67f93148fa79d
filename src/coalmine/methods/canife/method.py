"""CANIFE in a run: its settings (the table ``[canife]`` of ``audit.toml``), its audit, its report."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from coalmine.arrays import Array
from coalmine.claims.sampling import parse_sampling
from coalmine.config import SettingError, Settings
from coalmine.errors import InputError
from coalmine.methods.method import Method
from coalmine.protocol import Audit
from coalmine.results.result import MethodResults, Result, from_json
from coalmine.results.verdict import ROUND, USER, Unit
from coalmine.simulation.settings import TrainingSettings

if TYPE_CHECKING:
    from torch import nn

    from coalmine.methods.canife.audit import Canife
    from coalmine.methods.canife.result import CanifeResult
    from coalmine.simulation.data import Splits
    from coalmine.simulation.rounds import Rounds

_COMPOSED = ", composed"

_MAX_SAMPLES = 8  # crafted samples that the report shows

# Fewer mock clients do not represent the other clients.
_LEAST_POOL = 16
# More would take hours to design, and interfere with one another.
_MOST_CANARIES = 1000


class CanaryDesignSettings(Settings):
    """How a canary is optimized."""

    iterations: int | None = Field(
        None,
        examples=[200],
        ge=0,
        description="maximum number of Adam iterations, by default 200 (mode frozen) or 10 (mode running)",
    )
    loss: Literal["likelihood-ratio", "covariance", "mean"] = Field(
        "likelihood-ratio", description="likelihood-ratio, covariance (the paper's Loss 2) or mean (Loss 1)"
    )
    start: Literal["random", "pool", "last"] | None = Field(
        None,
        examples=["random"],
        description="what the optimization starts from: random (samples), pool (examples of the mock clients) or "
        "last (the previous canaries); by default random (mode frozen) or last (mode running)",
    )
    target: int | Literal["random"] = Field("random", description="the canary's class: random, or its index")
    pixels: Literal["valid", "free"] = Field("valid", description="valid (within the data's range) or free (paper)")


class CanifeSettings(Settings):
    """Canaries crafted for the current model, looked for in single rounds."""

    mode: Literal["frozen", "running"] = Field(
        "frozen", description="frozen (extra rounds on a frozen model) or running (the training's own rounds)"
    )
    every: int | None = Field(
        None,
        examples=[10],
        ge=1,
        description="rounds between two designs of the canaries; mode frozen also estimates ε each time. By default "
        "10 (mode frozen) or 40 (mode running)",
    )
    trials: int | None = Field(
        None,
        examples=[100],
        ge=2,
        description="scores per estimate and canary, each from one frozen round or one round of the training; by "
        "default 100, or all rounds of a shorter training in mode running",
    )
    canaries: int = Field(1, ge=1, le=_MOST_CANARIES, description="canaries at once, each with its own coin flips")
    score: Literal["likelihood-ratio", "plain"] = Field(
        "likelihood-ratio",
        description="direction of the score: likelihood-ratio, or plain (the canary's own, as in the paper)",
    )
    pool_fraction: float = Field(0.2, gt=0, lt=1, description="share of the users set aside as mock clients")
    pool_clients: int | None = Field(
        None,
        examples=[16],
        description="number of mock clients, by default all (mode frozen) or the expected cohort size (mode running)",
    )
    design: CanaryDesignSettings = Field(default_factory=CanaryDesignSettings, description="how a canary is optimized")
    delta: float = Field(1e-5, ge=0, lt=1, description="δ of all estimates")
    confidence: float = Field(0.95, ge=0.5, lt=1, description="confidence of bounds and intervals")

    def audit(self, training: TrainingSettings, splits: Splits, module: nn.Module) -> Canife:
        """Return the audit of a training."""
        from coalmine.methods.canife.audit import Canife
        from coalmine.methods.canife.design import DesignSettings
        from coalmine.methods.canife.designed_canaries import DesignedCanaries

        assert splits.pool is not None  # pool_fraction is positive
        # Before the first round, the expected cohort is all that is known about who will take part.
        expected = parse_sampling(training.cohort).expected(len(splits.train), training.rounds, 0)
        size = most = len(splits.pool)
        if self.mode == "frozen":
            every, trials, iterations = 10, 100, 200
        else:
            # Mock clients should cost little compared with the training's own clients.
            size = min(most, max(_LEAST_POOL, math.ceil(expected)))
            every, trials, iterations = 40, min(100, training.rounds), 10
        size = size if self.pool_clients is None else self.pool_clients
        if not 1 <= size <= most:
            raise InputError(f"pool_clients must be between 1 and {most}, got {size}")
        iterations = iterations if self.design.iterations is None else self.design.iterations
        canaries = DesignedCanaries(
            model=module,
            pool=splits.pool.subset(range(size)),
            client=training.client.local(splits.train),
            noise_multiplier=training.mechanism().update_noise(expected),
            cohort=expected,
            clients=splits.train,
            count=self.canaries,
            score=self.score,
            settings=DesignSettings(loss=self.design.loss, iterations=iterations),
            start=self.design.start or ("random" if self.mode == "frozen" else "last"),
            target=self.design.target,
            valid="data" if self.design.pixels == "valid" else None,
            seed=training.seed,
        )
        return Canife(
            canaries=canaries,
            rounds=training.rounds,
            every=self.every or min(every, training.rounds),
            trials=self.trials or trials,
            mode=self.mode,
            seed=training.seed,
        )


class CanifeMethod(Method):
    """Crafts samples, and returns two results: for a single round, and for the rounds composed."""

    name = "canife"
    title = "Crafted samples in single rounds"
    question = "How much does one round's noisy sum reveal about a client with worst-case data?"
    template = Path(__file__).with_name("section.html.j2")
    description = (
        "A sample was crafted whose update is unlike everyone else's, and coin flips decided in which rounds it took "
        "part. The score measures how much of it a round's noisy sum contains: about 1 with the canary, 0 without. ε "
        "is that of one round, for a client known to take part in it. Rounds composed give an estimate for the whole "
        "training, never a bound."
    )
    reference = "Maddock, Sablayrolles and Stock 2023"
    settings_type = CanifeSettings
    training_type = TrainingSettings
    init: ClassVar[Mapping[str, Any]] = {"every": 20, "trials": 100, "delta": 1e-5}
    caveats: ClassVar[Mapping[str, str]] = {
        "composed": (
            "Estimates of single rounds, composed to the whole training as if the mechanism were Gaussian. An "
            "estimate, even where a single round has a lower bound."
        ),
    }

    settings: CanifeSettings
    training: TrainingSettings
    _audit: Canife

    def prepare(self) -> None:
        """Ask for the users whose data canaries are crafted from."""
        self.pool_fraction = self.settings.pool_fraction

    @classmethod
    def check(cls, run: Any) -> None:
        """Raise an error for settings that conflict with the rest of the run."""
        training = run.trainings.get("training")
        if training is None:
            return
        if training.clip_norm == "none":
            raise SettingError(
                "CANIFE needs clipped updates, since its canaries have the clip norm: set clip_norm to a number",
                ["training", "clip_norm"],
            )
        if "one-shot" in run.methods and run.methods["canife"].mode == "running" and training.noise_multiplier == 0:
            raise SettingError(
                "without noise, the random canaries of [one-shot] would hide those of CANIFE in mode running: set mode "
                "to frozen",
                ["canife", "mode"],
            )

    def audits(self, splits: Splits, module: nn.Module) -> Sequence[Audit]:
        """Return the audit."""
        self._audit = self.settings.audit(self.training, splits, module)
        return [self._audit]

    def results(self, trained: Rounds | None, metrics: Mapping[str, float]) -> MethodResults:
        """Return two results: for a single round, and for the rounds composed."""
        from coalmine.simulation.training import Training

        assert isinstance(trained, Training)
        audit, settings = self._audit, self.settings
        claim = trained.claim(settings.delta) if trained.mechanism.private else None
        result = audit.result(delta=settings.delta, confidence=settings.confidence, claim=claim, metrics=metrics)
        resolved: dict[str, Any] = {"every": audit.every, "trials": audit.trials, "maker": repr(audit.canaries)}
        result = replace(result, config=self.config | resolved)
        composed = result.composed_result()
        return MethodResults(method=self.name, results=[result] if composed is None else [result, composed])

    @classmethod
    def labels(cls, settings: CanifeSettings) -> Sequence[str]:
        """Return the labels of both results."""
        return [settings.mode, settings.mode + _COMPOSED]

    @classmethod
    def recompute(cls, result: Result, siblings: Sequence[Result]) -> Result:
        """Return a result with its estimates, those of single rounds and the claim test computed again.

        Raises:
            InputError: If it is composed of rounds that are not among the ``siblings``.
        """
        if not result.view.endswith(_COMPOSED):
            again = _rounds(result)
            details = {**result.details, **{name: again.details[name] for name in ("rounds", "composed")}}
            return replace(
                result,
                estimates=again.estimates,
                claim_test=again.claim_test,
                ceiling=again.ceiling,
                details=details,
            )
        rounds = next((other for other in siblings if other.label + _COMPOSED == result.label), None)
        composed = None if rounds is None else _rounds(rounds).composed_result()
        if composed is None:
            raise InputError(f"the rounds that {result.label} is composed of are missing")
        return replace(result, estimates=composed.estimates, claim_test=None)

    @classmethod
    def unit_of(cls, result: Result) -> Unit:
        """Return one user, in a single round unless rounds are composed."""
        return USER if result.view.endswith(_COMPOSED) else ROUND

    @classmethod
    def section(cls, found: MethodResults) -> Mapping[str, Any]:
        """Return the functions of a result that the template calls."""
        return {"rounds": round_rows, "composed": composed_pairs, "samples": samples}


def round_rows(result: Result) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return ε of single rounds along the training, and the claim's line for one round (Figures 1 and 4)."""
    rows = []
    for period in result.details["rounds"]:
        best: dict[str, Any] = {}
        row: dict[str, Any] = {"bound": None}
        # Estimates come bounds first, the one to quote before the others: the loop ends with it.
        for estimate in reversed(period["estimates"]):
            if estimate["method"] == "best-threshold":
                best = estimate
            if estimate["valid"]:
                row["bound"] = estimate["lower"]
        row |= {"estimate": best.get("epsilon"), "low": best.get("lower"), "high": best.get("upper")}
        # Charts leave out what is missing, and cannot draw infinity.
        numbers = {name: from_json(value) for name, value in row.items()}
        finite = {name: None if number in (None, math.inf) else number for name, number in numbers.items()}
        rows.append({"x": period["round"], **finite})
    if result.claim is None or not math.isfinite(result.claim.epsilon):
        return rows, []
    return rows, [{"x": row["x"], "claim": result.claim.epsilon} for row in rows]


def composed_pairs(result: Result) -> dict[str, tuple[float | None, float | None]]:
    """Return ε of the whole training, exact and as in the paper, by the estimator of single rounds."""
    epsilons = {(c["method"], c["inversion"]): from_json(c["epsilon"]) for c in result.details["composed"]}
    return {name: (epsilons.get((name, "exact")), epsilons.get((name, "paper"))) for name, _ in epsilons}


def samples(result: Result) -> list[dict[str, Any]]:
    """Return the last canaries that can be shown: a caption, and a picture or a text."""
    shown = []
    for i, canary in enumerate(result.details["canaries"][:_MAX_SAMPLES]):
        target, shape = canary["target"], canary.get("shape", ())
        caption = f"canary {i + 1}" if target is None else f"canary {i + 1}, labeled as class {target}"
        if canary["kind"] == "text":
            shown.append({"caption": caption, "png": None, "text": canary["text"]})
        elif len(shape) == 3 and shape[0] in (1, 3) and "inputs" in result.arrays:
            shown.append({"caption": caption, "png": png(result.arrays["inputs"][i], canary["range"])})
    return shown


def png(image: Array, span: tuple[float, float] | None = None) -> str:
    """Return an image of shape (1 or 3, height, width) as the ``data:`` URL of a PNG.

    Args:
        image: The image.
        span: The values shown as black and white, by default the smallest and the largest.
    """
    low, high = (image.min(), image.max()) if span is None else span
    scaled = (image.astype(np.float64) - low) / (high - low if high > low else 1.0)
    pixels = np.round(255 * np.clip(scaled, 0, 1)).astype(np.uint8).transpose(1, 2, 0)
    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    # Each row starts with the number of its filter; 0 means none.
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    content = b"\x89PNG\r\n\x1a\n"
    for name, part in ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")):
        content += struct.pack(">I", len(part)) + name + part + struct.pack(">I", zlib.crc32(name + part))
    return f"data:image/png;base64,{base64.b64encode(content).decode('ascii')}"


def _rounds(result: Result) -> CanifeResult:
    """Return the result of the stored trials."""
    from coalmine.claims import Claim
    from coalmine.claims.sampling import parse_sampling
    from coalmine.methods.canife.epsilon import Period
    from coalmine.methods.canife.result import canife_result

    terms, arrays = dict(result.recipe), result.arrays
    periods, start = [], 0
    for first, rounds, trials in terms.pop("periods"):
        part = slice(start, start + trials)
        periods.append(Period(first, rounds, *(arrays[name][part] for name in ("scores", "present", "sigma"))))
        start += trials
    sampling, training_claim = terms.pop("sampling"), result.details["training_claim"]
    return canife_result(
        periods,
        view=result.view,
        seed=result.seed,
        sampling=None if sampling is None else parse_sampling(sampling),
        training_claim=None if training_claim is None else Claim.from_dict(training_claim),
        designs={},
        canaries=(),
        **terms,
    )
