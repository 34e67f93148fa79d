"""Target: a training loop of one's own, DP-FedAvg of a small network on digits, audited by `OneShot`.

As in docs/own-loop.md: 50 clients, 20 rounds, noise multiplier 1.5, 200 canaries that go through the loop's own
clipping, `layers=` and `audit.cohort`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from cases import Answer, Case, from_results
from noise import CORRECT_NOISE, CORRELATED, NOISE_BUGS, Array, Place, noise_of
from sklearn.datasets import load_digits
from styles import STYLES, Server, Style

from coalmine import OneShot
from coalmine.claims import Claim, EveryRound, Poisson
from coalmine.claims.sampling import AtMost

LAYERS = {"fc1.weight": (128, 64), "fc1.bias": (128,), "fc2.weight": (10, 128), "fc2.bias": (10,)}
SIZES = {name: int(np.prod(shape)) for name, shape in LAYERS.items()}
DIM, EDGES = sum(SIZES.values()), np.cumsum(list(SIZES.values()))[:-1]
CLIENTS, ROUNDS, CLIP, NOISE, DELTA, CANARIES = 50, 20, 1.0, 1.5, 1e-5, 200
POPULATION, RATE = 200, 0.25  # where clients are sampled
TARGET = "loop"

Clip = Callable[[Array], Array]
Choose = Callable[[np.random.Generator, int], Array]
ClaimOf = Callable[[OneShot], Claim]
Weigh = Callable[[np.random.Generator, int], Array]


def clipped(update: Array, norm: float = CLIP) -> Array:
    """Scale an update down to the clip norm."""
    return update * min(1.0, norm / max(np.linalg.norm(update), 1e-12))


def claim_of(audit: OneShot) -> Claim:
    """Return the claim of a correct loop."""
    return Claim(noise_multiplier=NOISE, sampling=audit.participation, delta=DELTA)


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A training loop, with bugs to switch on.

    Args:
        noise: Name of the noise.
        clip: The clipping of an update.
        clips_average: Whether the average is clipped in place of updates.
        weights: Whether clients are weighted by their number of examples.
        noise_clients: Number of clients that the noise on the average is divided by, over the number there is.
        claim: The claim.
        sampling: Participation of canaries, which the claim is about.
        choose: Who takes part in a round.
        style: What is released of the noisy average.
        states_divisor: Whether the audit hears what the sum was divided by.
        clip_norm: The clip norm of the next round, by the norms of the last updates.
        weigh: Weights of updates, at most 1. Clients of weight 0 drop out, and others train an old model.
        present: Whether the sum is divided by the number of clients who did not drop out.
    """

    noise: str = "Gaussian"
    clip: Clip = clipped
    clips_average: bool = False
    weights: bool = False
    noise_clients: float = 1.0
    claim: ClaimOf = claim_of
    sampling: str = "every-round"
    choose: Choose = lambda rng, round: np.arange(CLIENTS)
    style: Style = STYLES["as it is"]
    states_divisor: bool = True
    clip_norm: Callable[[Server], float] = lambda server: CLIP
    weigh: Weigh = lambda rng, count: np.ones(count)
    present: bool = False

    def audited(self, seed: int) -> Answer:
        """Train, and return what the audit says."""
        rng = np.random.default_rng([seed, 2])
        population = CLIENTS if self.sampling == "every-round" else POPULATION
        shards, model = partition(population), 0.1 * rng.standard_normal(DIM)
        noise = noise_of(self.noise, Place(DIM, NOISE, ROUNDS, rng))
        server, models = Server(model, EDGES, rng), [model]
        audit = OneShot(
            DIM, rounds=ROUNDS, canaries=CANARIES, view="updates", participation=self.sampling, layers=LAYERS,
            seed=seed,
        )  # fmt: skip
        for t in range(ROUNDS):
            server.round, norm = t, self.clip_norm(server)
            cohort = self.choose(rng, t)
            weights = self.weigh(rng, len(cohort))
            cohort, weights = cohort[weights > 0], weights[weights > 0]
            audit.cohort(t, clients=cohort.tolist(), available=population)
            planted = audit.plant(t, clip_norm=norm)
            stale = np.minimum(t, np.round(weights**-2 - 1)).astype(int)
            updates = np.empty((len(cohort), DIM))
            for age in np.unique(stale):
                chosen = np.flatnonzero(stale == age)
                updates[chosen] = local_updates(models[t - age], [shards[cohort[i]] for i in chosen]) / norm
            server.kept["norms"] = norm * np.linalg.norm(updates, axis=1)
            examples = np.array([len(shards[i][0]) for i in cohort])
            shares = weights * (examples / examples.mean() if self.weights else 1.0)
            canaries = [canary / norm for canary in planted.each(norm=10 * CLIP)]
            divisor = (len(cohort) if self.present else CLIENTS) + planted.clients
            if self.clips_average:
                average = self.clip((updates.sum(axis=0) + sum(canaries)) / divisor)
            else:
                total = sum(share * self.clip(update) for share, update in zip(shares, updates, strict=True))
                seats = self.weigh(rng, len(canaries))
                total += sum(seat * self.clip(canary) for seat, canary in zip(seats, canaries, strict=True))
                average = total / divisor
            average = norm * (average + CLIP * noise(t) / (divisor * self.noise_clients))
            update = self.style(average, server)
            server.model = server.model + update
            models.append(server.model)
            if not update.any():
                audit.skip(t)
            audit.observe(t, update=update.astype(np.float32), divisor=divisor if self.states_divisor else None)
        return from_results([audit.result(claim=self.claim(audit))])


@cache
def partition(clients: int) -> list[tuple[Array, Array]]:
    """Return the digits, split at random among clients of different sizes."""
    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    order, cuts = rng.permutation(len(images)), np.sort(rng.choice(np.arange(1, len(images)), clients - 1, False))
    return [(images[part] / 16, np.eye(10)[labels[part]]) for part in np.split(order, cuts)]


def local_updates(model: Array, shards: list[tuple[Array, Array]], step: float = 0.5) -> Array:
    """Return one step of gradient descent of each client, (clients, DIM)."""
    w1, b1, w2, b2 = (part.reshape(shape) for part, shape in zip(np.split(model, EDGES), LAYERS.values(), strict=True))
    updates = np.empty((len(shards), DIM))
    for update, (images, targets) in zip(updates, shards, strict=True):
        hidden = np.maximum(images @ w1.T + b1, 0)
        logits = hidden @ w2.T + b2
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        errors = (odds / odds.sum(axis=1, keepdims=True) - targets) / len(images)
        inner = (errors @ w2) * (hidden > 0)
        gradients = (inner.T @ images, inner.sum(axis=0), errors.T @ hidden, errors.sum(axis=0))
        update[:] = -step * np.concatenate([gradient.ravel() for gradient in gradients])
    return updates


def _clipped_per_tensor(update: Array) -> Array:
    return np.concatenate([clipped(part) for part in np.split(update, EDGES)])


def _bias_not_clipped(update: Array) -> Array:
    parts = np.split(update, EDGES)
    factor = min(1.0, CLIP / np.sqrt(sum(float(part @ part) for part in (parts[0], *parts[2:]))))
    return np.concatenate([parts[0] * factor, parts[1], parts[2] * factor, parts[3] * factor])


def _clipped_by_value(update: Array) -> Array:
    return np.clip(update, -CLIP, CLIP)


CLIPPING = {
    "no clipping": Loop(clip=lambda update: update),
    "clips at twice the clip norm": Loop(clip=lambda update: clipped(update, 2 * CLIP)),
    "clips each tensor by itself": Loop(clip=_clipped_per_tensor),
    "leaves out a bias": Loop(clip=_bias_not_clipped),
    "clips each number (L∞)": Loop(clip=_clipped_by_value),
    "clips the average": Loop(clips_average=True),
}


def poisson(rng: np.random.Generator, round: int) -> Array:
    """Draw each client with probability ``RATE``."""
    return np.flatnonzero(rng.random(POPULATION) < RATE)


def fixed_size(rng: np.random.Generator, round: int) -> Array:
    """Draw as many clients as Poisson sampling draws on average."""
    return rng.choice(POPULATION, CLIENTS, replace=False)


def _shuffled(rng: np.random.Generator, round: int) -> Array:
    epoch, part = divmod(round, POPULATION // CLIENTS)
    return np.random.default_rng(epoch).permutation(POPULATION)[part * CLIENTS : (part + 1) * CLIENTS]


def _favorites(rng: np.random.Generator, round: int) -> Array:
    weights = np.where(np.arange(POPULATION) < 60, 8.0, 1.0)
    return rng.choice(POPULATION, CLIENTS, replace=False, p=weights / weights.sum())


CHOICES: dict[str, Choose] = {
    "always the same cohort": lambda rng, round: np.arange(CLIENTS),
    "shuffles in place of Poisson": _shuffled,
    "in turn, not at random": lambda rng, round: (round * CLIENTS + np.arange(CLIENTS)) % POPULATION,
    "fixed size in place of Poisson": fixed_size,
    "twice the claimed rate": lambda rng, round: np.flatnonzero(rng.random(POPULATION) < 2 * RATE),
    "favorites": _favorites,
    "all clients in every round": lambda rng, round: np.arange(POPULATION),
}


def _at(delta: float) -> ClaimOf:
    """Claim the ε of one δ at another."""
    return lambda audit: Claim(epsilon=Claim(noise_multiplier=NOISE, rounds=ROUNDS, delta=delta).epsilon, delta=DELTA)


def _composed(rounds: int) -> ClaimOf:
    return lambda audit: Claim(noise_multiplier=NOISE, sampling=EveryRound(), rounds=rounds, delta=DELTA)


def _sampled(audit: OneShot) -> Claim:
    return Claim(noise_multiplier=NOISE, sampling=Poisson(0.1), rounds=ROUNDS, delta=DELTA)


def _few_rounds(audit: OneShot) -> Claim:
    return Claim(noise_multiplier=NOISE, sampling=AtMost(5), rounds=ROUNDS, delta=DELTA)


ACCOUNTING = {
    "ε of a quarter of the rounds": Loop(claim=_composed(ROUNDS // 4)),
    "ε of a single round": Loop(claim=_composed(1)),
    "ε with amplification by sampling, but all take part": Loop(claim=_sampled),
    "ε of 5 rounds per client, but all take part in 20": Loop(claim=_few_rounds),
    "ε for the squared noise multiplier": Loop(claim=lambda audit: Claim(noise_multiplier=NOISE**2, delta=DELTA)),
    "ε at δ = 0.01, claimed at 1e-5": Loop(claim=_at(0.01)),
    "noise for twice the clients": Loop(noise_clients=2.0),
}


def _staleness(rng: np.random.Generator, count: int) -> Array:
    return (1.0 + rng.integers(4, size=count)) ** -0.5


def _dropouts(rng: np.random.Generator, count: int) -> Array:
    return (rng.random(count) < 0.7).astype(float)


def _quantile(server: Server) -> float:
    """Follow the median of norms, by a count with noise of deviation 10, which the other noise makes up for."""
    below = (server.kept.get("norms", np.ones(1)) <= server.kept.get("norm", CLIP)).mean()
    noisy = below + 10 / CLIENTS * server.rng.standard_normal()
    server.kept["norm"] = server.kept.get("norm", CLIP) * np.exp(-0.2 * (noisy - 0.5))
    return float(server.kept["norm"])


def _correct() -> dict[str, Loop]:
    loops = {name: Loop(noise=name) for name in CORRECT_NOISE if name not in CORRELATED}
    loops |= {name: Loop(style=style) for name, style in STYLES.items() if name != "as it is"}
    sampled = Loop(sampling=f"poisson:{RATE}", choose=poisson)
    loops |= {
        "Poisson sampling": sampled,
        "fixed-size sampling": Loop(sampling=f"fixed:{CLIENTS}/{POPULATION}", choose=fixed_size),
        "clip norm shrinks": Loop(clip_norm=lambda server: CLIP * 0.9**server.round),
        "clip norm follows the median": Loop(clip_norm=_quantile, noise_clients=np.sqrt(1 - (NOISE / 20) ** 2)),
        "dropouts, divided by those planned": Loop(weigh=_dropouts),
        "dropouts, divided by those present": Loop(weigh=_dropouts, present=True),
        "asynchronous, weighted by staleness": Loop(weigh=_staleness),
    }
    for name in ("momentum 0.9", "FedAdam", "top 10%"):
        loops[f"Poisson sampling, {name}"] = replace(sampled, style=STYLES[name])
        loops[f"asynchronous, {name}"] = Loop(weigh=_staleness, style=STYLES[name])
    loops |= {f"{name}, no divisor": replace(loop, states_divisor=False) for name, loop in loops.items()}
    return loops | {f"{name}, as ε and δ": Loop(noise=name, claim=_at(DELTA)) for name in CORRELATED}


def cases() -> list[Case]:
    """Return all bugs of this target, and correct loops."""
    groups = {kind: {} for kind in ("clipping", "weighting", "sampling", "accounting", "correct")}
    groups["clipping"] = CLIPPING
    groups["weighting"] = {"weights by examples": Loop(weights=True)}
    groups["sampling"] = {name: Loop(sampling=f"poisson:{RATE}", choose=choose) for name, choose in CHOICES.items()}
    groups["accounting"] = ACCOUNTING
    groups["correct"] = _correct()
    loops = [(kind, name, Loop(noise=name)) for name, (kind, _) in NOISE_BUGS.items()]
    loops += [(kind, name, loop) for kind, group in groups.items() for name, loop in group.items()]
    # Correct loops differ in their seeds, or an unlucky draw would count once for each.
    seeds = [10_000 * number if kind == "correct" else 0 for number, (kind, _, _) in enumerate(loops)]
    return [
        Case(target=TARGET, kind=kind, name=name, run=lambda seed, first=first, loop=loop: loop.audited(first + seed))
        for first, (kind, name, loop) in zip(seeds, loops, strict=True)
    ]
