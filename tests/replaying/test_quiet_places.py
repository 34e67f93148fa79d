"""Where the noise looks small: the parts that replay moves alone."""

from dataclasses import replace

import numpy as np
import pytest

import coalmine as cm
from coalmine.replaying.clients import Template
from coalmine.replaying.noise import factors, measure
from coalmine.replaying.quiet_places import quiet_places
from replaying_aggregations import C, Z, clip

DIM = 1000


def run(release, dim=DIM, **more):
    rng = np.random.default_rng(1)
    people = [rng.normal(0, 0.1, dim) for _ in range(6)]
    return cm.replay(release, people, clip_norm=C, noise_multiplier=Z, **more)


def noisy_sum(sizes):
    """Return a clipped sum whose noise has these sizes, over the claimed one."""
    return lambda updates, rng: sum(clip(u) for u in updates) + rng.normal(0, Z * C, len(sizes)) * sizes


def _sizes(**values):
    """Return 1 everywhere, but for one part."""
    sizes = np.ones(DIM)
    sizes[values["at"]] = values["size"]
    return sizes


QUIET = {
    "a half, the other half compensates": np.where(np.arange(DIM) < DIM // 2, 0.3, 1.39),
    "a block of ten": _sizes(at=slice(37, 47), size=0.1),
    "every second number": np.where(np.arange(DIM) % 2, 0.3, 1.39),
    "sixty anywhere": _sizes(at=np.random.default_rng(2).choice(DIM, 60, replace=False), size=0.25),
    "one number": _sizes(at=[512], size=0.05),
}


@pytest.mark.parametrize("name", QUIET)
def test_a_part_of_an_array_with_too_little_noise_is_found(name):
    result = run(noisy_sum(QUIET[name]), rounds=1)
    assert "noise on every tensor" in {finding.check for finding in result.findings if finding.refutes}, str(result)
    excess = max(row.excess for row in result.moved if row.check == "noise on every tensor")
    assert 1 / excess == pytest.approx(QUIET[name].min(), rel=0.35)


def test_the_finding_names_the_part():
    result = run(noisy_sum(QUIET["a block of ten"]), rounds=1)
    assert any("all in coordinates 37–46, joined" in finding.sentence for finding in result.findings if finding.refutes)


def _layers_clipped_by_themselves(updates, rng):
    """Layers of 50, 150 and 800 numbers in one array, with clip norms and noise of their own. Σ (Cₗ/σₗ)² = 1/Z²."""
    ends, norms = [50, 200], np.array([0.1, 0.3, 0.4]) * C
    parts = [[clip(part, norm) for part, norm in zip(np.split(u, ends), norms, strict=True)] for u in updates]
    noise = [rng.normal(0, Z * np.sqrt(3) * norm, n) for norm, n in zip(norms, (50, 150, 800), strict=True)]
    return np.concatenate([sum(p[i] for p in parts) + noise[i] for i in range(3)])


def _scaled_after_the_noise(updates, rng):
    return noisy_sum(np.ones(DIM))(updates, rng) * np.exp(np.random.default_rng(3).normal(0, 0.7, DIM))


def _laplace(updates, rng):
    return sum(clip(u) for u in updates) + rng.laplace(0, Z * C / np.sqrt(2), DIM)


@pytest.mark.parametrize("release", [_layers_clipped_by_themselves, _scaled_after_the_noise, _laplace])
def test_correct_noise_of_different_sizes_is_not_refuted(release):
    """False-alarm probability at most 0.1% each, once for these seeds."""
    for seed in range(3):
        result = run(release, seed=seed, rounds=1)
        assert result.ok, str(result)


def test_even_noise_has_seldom_a_quiet_part():
    """5% of the time at most: 12 of 100 or more have a probability of 1 in 200."""
    rng = np.random.default_rng(5)
    noises = [measure(rng.standard_normal((6, 1, 500)), [300, 200]) for _ in range(100)]
    assert sum(any(part.size not in (200, 300) for part in quiet_places(noise)) for noise in noises) < 12


LAYERS = np.repeat([0.1, 1.0, 3.0], [20, 40, 60])


@pytest.mark.parametrize("shape", ["gaussian", "laplace"])
@pytest.mark.parametrize("sizes", [np.ones(120), LAYERS, np.exp(np.random.default_rng(6).normal(0, 0.7, 120))])
def test_a_part_that_is_chosen_for_its_small_noise_is_not_called_too_quiet(shape, sizes):
    """A movement of one standard deviation in the part, at a rate of 5%; 4 binomial errors: once in 30,000.

    Also for Laplace noise, by its kurtosis, which is an approximation.
    """
    rng, alarms, cases = np.random.default_rng(7), 0, 0
    while cases < 300:
        runs = (rng.standard_normal if shape == "gaussian" else rng.laplace)(size=(18, 1, 120)) * sizes
        noise = measure(runs[:6], [120])
        # The weakest quarter, so that even noise has such a part too.
        parts = quiet_places(noise) or [np.sort(np.argsort(noise.variances)[:30])]
        fresh = replace(measure(runs[6:], [120]), even=False)
        moved = np.zeros(120)
        moved[parts[0]] = 1.0
        std = sizes * (1.0 if shape == "gaussian" else np.sqrt(2))
        length = fresh._by_size(moved / np.linalg.norm(moved / std) / fresh.std)
        alarms += np.sqrt(np.sum(length.squares / factors(length.degrees, 0.05) ** 2)) > 1
        cases += 1
    assert alarms / cases < 0.05 + 4 * np.sqrt(0.05 * 0.95 / cases)


def test_numbers_of_a_release_belong_to_those_of_an_update():
    template = Template({"a": np.zeros(2), "count": np.zeros(1, dtype=int), "b": np.zeros(3)})
    assert template.positions([2, 1, 3]).tolist() == [0, 1, -1, 2, 3, 4]
    assert template.positions([5]).tolist() == [-1] * 5
