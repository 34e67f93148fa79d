"""Settings of the secret-sharer method and of the language-model training that it audits."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coalmine.config.settings import Settings, Several
from coalmine.simulation.settings import ClientSettings, ServerSettings, TrainingSettings


class TextTrainingSettings(TrainingSettings):
    """A federated training of a language model, without clipping and noise by default."""

    data: str = Field("generated-text", description="a name (generated-text, stackexchange, …) or a file of texts")
    model: str | None = Field("word-lstm", description="a name (word-lstm, …) or path.py:function")
    vocabulary_size: int | None = Field(500, examples=[500], ge=1, description="number of different tokens")
    positions: int | None = Field(12, examples=[12], ge=1, description="length of a text sequence in tokens")
    model_settings: dict[str, float] = Field(
        default_factory=lambda: {"embedding": 32.0, "units": 96.0}, description="settings of the model: units=96, …"
    )
    rounds: int = Field(40, ge=0, description="number of rounds")
    cohort: str = Field(
        "poisson:0.2",
        description="poisson:Q, fixed:SIZE, epochs:N (each client once per epoch) or every-round",
    )
    client: ClientSettings = Field(
        default_factory=lambda: ClientSettings(learning_rate=0.5, epochs=1, batch_size=10),
        description="local training of a client; central training uses its optimizer",
    )
    server: ServerSettings = Field(
        default_factory=lambda: ServerSettings(learning_rate=1.0, momentum=0.0), description="the server's optimizer"
    )
    clip_norm: str = Field("none", description="clip norm; or none, or adaptive:START (tracks the median norm)")
    noise_multiplier: float = Field(0.0, ge=0, description="std of the noise on the sum, divided by the clip norm")


class SecretSharerSettings(Settings):
    """Random phrases inserted into users' data, and queries to the final model."""

    p_u: Several[float] = Field((0.01, 0.03), description="probability that a user shares a canary; one or several")
    p_e: Several[float] = Field(
        (0.1, 1.0), description="probability that an example of a sharer is replaced by the canary; one or several"
    )
    each: int = Field(5, ge=1, description="inserted canaries per configuration (p_u, p_e)")
    twins: int = Field(1, ge=0, description="held-out canaries per inserted canary")
    length: int = Field(5, ge=1, description="words per phrase")
    design: Literal["coin-flips", "fixed"] = Field(
        "coin-flips",
        description="coin-flips (each canary is inserted with probability 1/2) or fixed (exactly `each` are)",
    )
    prefix: int = Field(1, ge=0, description="words of a phrase that the adversary knows")
    # More references, or a wider search, would take several gigabytes.
    references: int = Field(
        100_000, ge=1, le=100_000_000, description="random phrases to rank a canary among; the paper has 2,000,000"
    )
    limit: int = Field(
        20,
        ge=0,
        description="a canary is ranked among more references only while at most this many come before it; 0 to rank "
        "every canary among all",
    )
    width: int = Field(5, ge=1, le=10_000, description="width of the beam search")
    regime: Literal["federated", "central"] = Field("federated", description="how the model is trained")
    users: Literal["natural", "shuffled"] = Field(
        "natural", description="shuffled: deal all examples to synthetic users (IID); in central training, shuffle them"
    )
    steps: int = Field(100, ge=1, description="steps per round of central training")
    batch_size: int = Field(32, ge=1, description="records per step of central training")
    reference_share: float = Field(
        0.0, ge=0, lt=1, description="share of the users set aside to train a reference model on"
    )
    model_weights: str | None = Field(
        None,
        examples=["weights.safetensors"],
        description="audit a trained model instead of training one: its weights, a safetensors file",
    )
    canaries: str | None = Field(
        None, examples=["canaries.json"], description="with model_weights: the phrases inserted into its training data"
    )
    reference_weights: str | None = Field(
        None,
        examples=["reference.safetensors"],
        description="with model_weights: weights of a model that saw none of the canaries, to calibrate losses",
    )
    delta: float = Field(1e-5, ge=0, lt=1, description="the δ at which ε is stated")
    confidence: float = Field(0.95, ge=0.5, lt=1, description="confidence of bounds and intervals")
