"""How much is computed for the figures of Maddock et al. (2023): a quick size, and the full one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from coalmine.simulation import Adam
from coalmine_reproductions.canife_scenes import Scene


@dataclass(frozen=True, kw_only=True)
class CanifeSize:
    """How much is computed.

    Args:
        single: Scene with one example per client (Figure 3).
        several: Scene with several examples per client (Figures 5, 8a, 9).
        texts: Scene with texts (Figure 5c).
        resnet: Scene with ResNet18.
        canaries: Canaries per cell.
        cohort: Expected clients per round of Figure 3.
        pool: Mock clients of Figure 3.
        cohorts: Clients per round of Figure 3c.
        pools: Mock clients of Figure 3c.
        private_rounds: Rounds of the training with noise.
        perfect_trials: Rounds for the perfect canary.
        perfect_clients: Clients that the perfect canary is orthogonal to.
        users: Expected users per round of the ablations.
        user_pool: Mock users of the ablations.
        user_pools: Mock users of Figures 5a and 8a.
        iterations: Iterations of the design, Figure 5b.
        text_steps: Training steps, Figure 5c.
        constants: Norm constants, Figure 9.
        reference_iterations: Iterations of the design by the conventions of the published code.
        constant_iterations: Iterations of the design, Figure 9.
        resnet_pool: Mock clients for ResNet18.
        resnet_iterations: Iterations of the design for ResNet18.
        resnet_reference_iterations: Iterations of that design by the conventions of the published code.
        resnet_trials: Rounds for ResNet18.
    """

    single: Scene
    several: Scene
    texts: Scene
    resnet: Scene
    canaries: int
    cohort: int
    pool: int
    cohorts: tuple[int, ...]
    pools: tuple[int, ...]
    private_rounds: int
    perfect_trials: int
    perfect_clients: int
    users: int
    user_pool: int
    user_pools: tuple[int, ...]
    iterations: tuple[int, ...]
    text_steps: tuple[int, ...]
    constants: tuple[float, ...]
    reference_iterations: int = 500
    constant_iterations: int = 600
    resnet_pool: int = 512
    resnet_iterations: int = 200
    resnet_reference_iterations: int = 500
    resnet_trials: int = 40

    def seeded(self, seed: int) -> CanifeSize:
        """Return the same size with all scenes at another seed."""
        scenes = (self.single, self.several, self.texts, self.resnet)
        single, several, texts, resnet = (replace(scene, seed=seed) for scene in scenes)
        return replace(self, single=single, several=several, texts=texts, resnet=resnet)


_SINGLE = Scene(
    data="cifar10",
    model="leaf-cnn",
    steps=500,
    client_rate=0.01,
    options=(("partition", "iid:8800"), ("pool_fraction", 0.1)),
    clients=2000,
)
_SEVERAL = replace(
    _SINGLE,
    steps=400,
    client_rate=0.9,
    options=(("partition", "dirichlet:0.5/700"), ("pool_fraction", 0.25)),
    clients=600,
)
_RESNET = replace(_SINGLE, model="resnet18-gn", steps=1000, optimizer=Adam(learning_rate=5e-4))
_TEXTS = Scene(
    data="sent140",
    model="sent140-lstm",
    steps=0,
    client_rate=5.75,
    options=(("min_examples", 2), ("vocabulary_size", 1000), ("pool_fraction", 0.2)),
    sizes=(("embedding", 50), ("hidden", 50)),
    optimizer=Adam(learning_rate=0.003),
    batch_size=32,
    clients=1200,
)
SIZES = {
    "quick": CanifeSize(
        single=replace(_SINGLE, steps=150, clients=600),
        several=replace(_SEVERAL, steps=150, clients=300),
        texts=replace(_TEXTS, clients=400),
        resnet=replace(_RESNET, steps=20),
        resnet_pool=32,
        resnet_iterations=20,
        resnet_reference_iterations=20,
        resnet_trials=20,
        canaries=2,
        cohort=64,
        pool=256,
        cohorts=(16, 64),
        pools=(32, 256),
        private_rounds=20,
        perfect_trials=100,
        perfect_clients=300,
        users=60,
        user_pool=100,
        user_pools=(10, 100),
        iterations=(0, 200),
        text_steps=(0, 30, 90),
        constants=(1, 50, 1000),
    ),
    "full": CanifeSize(
        single=_SINGLE,
        several=_SEVERAL,
        texts=_TEXTS,
        resnet=_RESNET,
        canaries=2,
        cohort=64,
        pool=512,
        cohorts=(16, 64, 256),
        pools=(32, 128, 512),
        private_rounds=100,
        perfect_trials=200,
        perfect_clients=600,
        users=100,
        user_pool=100,
        user_pools=(10, 100, 200),
        iterations=(0, 30, 200, 1000),
        text_steps=(0, 30, 90),
        constants=(1, 50, 300, 1000),
    ),
}
"""The sizes by the name that the command line knows them by."""
