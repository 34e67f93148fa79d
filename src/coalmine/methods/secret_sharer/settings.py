"""The secret-sharer audit, as settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from coalmine.config.settings import Settings, Several
from coalmine.errors import InputError
from coalmine.simulation.settings import ClientSettings, ServerSettings, TrainingSettings

if TYPE_CHECKING:
    from torch import nn

    from coalmine.methods.secret_sharer.memorization import Asking
    from coalmine.methods.secret_sharer.phrases import PhraseCanaries
    from coalmine.protocol import Audit
    from coalmine.simulation import CentralTraining, Training
    from coalmine.simulation.data import FederatedData, Splits


class TextTrainingSettings(TrainingSettings):
    """A federated training of a language model, without clipping and noise unless they are asked for."""

    data: str = Field("generated-text", description="a name (generated-text, stackexchange, …) or a file of texts")
    model: str | None = Field("word-lstm", description="a name (word-lstm, transformer, …) or path.py:function")
    vocabulary_size: int | None = Field(500, examples=[500], ge=1, description="number of different tokens")
    positions: int | None = Field(12, examples=[12], ge=1, description="length of a sequence of text")
    model_settings: dict[str, float] = Field(
        default_factory=lambda: {"embedding": 32.0, "units": 96.0}, description="the model's own, such as units=96"
    )
    rounds: int = Field(40, ge=0, description="number of rounds")
    cohort: str = Field(
        "poisson:0.2", description="poisson:Q, fixed:SIZE, with-replacement:SIZE or epoch:ROUNDS (once in so many)"
    )
    client: ClientSettings = Field(
        default_factory=lambda: ClientSettings(learning_rate=0.5, epochs=1, batch_size=10),
        description="what a client does; in central training its optimizer is the server's",
    )
    server: ServerSettings = Field(
        default_factory=lambda: ServerSettings(learning_rate=1.0, momentum=0.0), description="what the server does"
    )
    clip_norm: str = Field("none", description="clip norm; or none, or adaptive:START (follows the median norm)")
    noise_multiplier: float = Field(0.0, ge=0, description="noise multiplier: noise on the sum over the clip norm")


class SecretSharerSettings(Settings):
    """Phrases that users share."""

    p_u: Several[float] = Field((0.01, 0.03), description="shares of the users who share a canary, one or several")
    p_e: Several[float] = Field((0.1, 1.0), description="shares of a sharer's examples that become it, one or several")
    each: int = Field(5, ge=1, description="canaries of each configuration")
    twins: int = Field(1, ge=0, description="phrases held out for each canary")
    length: int = Field(5, ge=1, description="words of a phrase")
    design: Literal["fixed", "coin-flips"] = Field("fixed", description="how the planted ones are chosen")
    prefix: int = Field(1, description="words that the adversary knows")
    references: int = Field(2_000_000, ge=1, description="random phrases to rank a canary among")
    limit: int = Field(1000, description="ranks beyond are taken among one in 200 references; 0 for none")
    width: int = Field(5, description="of the beam search")
    whole_space: int = Field(0, description="states read to rank a canary among all phrases there are; 0: it is not")
    regime: Literal["federated", "central"] = Field("federated", description="how the model is trained")
    users: Literal["natural", "shuffled"] = Field(
        "natural", description="shuffled: all examples dealt to synthetic users; in central training, in any order"
    )
    steps: int = Field(100, ge=1, description="of a round of central training")
    batch_size: int = Field(32, ge=1, description="records a step of central training")
    reference_share: float = Field(
        0.0, ge=0, lt=1, description="share of the users set aside to train a reference model on"
    )
    delta: float = Field(1e-5, ge=0, lt=1, description="the δ at which ε is stated")
    confidence: float = Field(0.95, ge=0.5, lt=1, description="of bounds and intervals")

    def asking(self) -> Asking:
        """How the final model is asked."""
        from coalmine.methods.secret_sharer.memorization import Asking

        return Asking(
            prefix=self.prefix,
            references=self.references,
            limit=self.limit or None,
            width=self.width,
            whole_space=self.whole_space,
        )

    def phrases(self, data: FederatedData, seed: int) -> PhraseCanaries:
        """The canaries for such data."""
        from coalmine.methods.secret_sharer.phrases import Language, draw_phrases, grid

        return draw_phrases(
            Language.of(data),
            configurations=grid(self.p_u, self.p_e),
            each=self.each,
            twins=self.twins,
            length=self.length,
            design=self.design,
            seed=seed,
        )

    def training(
        self, settings: TrainingSettings, splits: Splits, module: nn.Module, audits: Sequence[Audit] = ()
    ) -> Training | CentralTraining:
        """The training, federated or central."""
        from coalmine.simulation import CentralTraining

        if self.regime == "federated":
            return settings.training(splits, module, audits)
        if settings.clip_norm != "none" or settings.noise_multiplier:
            raise InputError("central training neither clips nor adds noise: leave clip_norm and noise_multiplier out")
        return CentralTraining(
            model=module,
            data=splits.train,
            test=splits.test,
            rounds=settings.rounds,
            steps=self.steps,
            batch_size=self.batch_size,
            optimizer=settings.client.rule(),
            order="shuffled" if self.users == "shuffled" else "by-user",
            evaluate_every=settings.evaluate_every,
            audits=audits,
            seed=settings.seed,
        )
