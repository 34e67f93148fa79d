"""Checks of the noise: exact p-values whatever the signal is, and every planted bug is named."""

import math
import re
from functools import partial

import numpy as np
import pytest

from coalmine import OneShot
from coalmine.checks.training import TrainingChecks
from coalmine.checks.update_noise import NOISE_CHECKS, noise_findings
from coalmine.checks.update_record import NoiseRecord, largest_rounding
from coalmine.checks.update_shares import noise_floor
from coalmine.claims import Claim, EveryRound
from coalmine.errors import InputError
from coalmine.layers import Layers
from coalmine.methods.one_shot.canaries import largest_clip_norm
from coalmine.protocol import Release
from coalmine.stats.exact_tests import energy_p_value, near_zero_p_value, noise_at_most

LAYERS = Layers.of({"fc1.weight": (64, 128), "fc1.bias": 64, "fc2.weight": (10, 64), "fc2.bias": 10, "scale": ()})
ROUNDS, LEVEL = 20, 2e-4


def floor_of(record, noise_multiplier):
    return noise_floor(record, np.full(record.bins, float(noise_multiplier)), LEVEL)


def part(name):
    start = int(LAYERS.starts[LAYERS.names.index(name)])
    return slice(start, start + int(LAYERS.sizes[LAYERS.names.index(name)]))


def sentences(noise, *, signal=20.0, seed=0, rounds=ROUNDS, level=LEVEL, claimed_noise=1.0):
    """Run a training of random signals of a given length, in units of what one client moves it by."""
    rng = np.random.default_rng(seed)
    record, memory = NoiseRecord(LAYERS, rounds, seed), {}
    for t in range(rounds):
        direction = rng.normal(size=LAYERS.dim)
        update = signal * direction / np.linalg.norm(direction) + noise(rng, t, memory)
        planted = np.zeros(LAYERS.dim, np.float32)
        record.add(t, (0.25 * update).astype(np.float32), planted, norm=4.0, unprocessed=True)
    return [f.sentence for f in noise_findings(record, floor_of(record, claimed_noise), level)]


def fresh(rng, t, memory):
    return rng.normal(size=LAYERS.dim)


def without(name):
    def noise(rng, t, memory):
        vector = fresh(rng, t, memory)
        vector[part(name)] = 0
        return vector

    return noise


def repeated(period):
    return lambda rng, t, memory: memory.setdefault(t % period, fresh(rng, t, memory))


def negated(rng, t, memory):
    return (-1) ** t * memory.setdefault("vector", fresh(rng, t, memory))


def moving_average(rng, t, memory):
    before, memory["before"] = memory.get("before", fresh(rng, t, memory)), fresh(rng, t, memory)
    return (before + memory["before"]) / math.sqrt(2)


def first_half(rng, t, memory):
    return np.where(np.arange(LAYERS.dim) < LAYERS.dim // 2, fresh(rng, t, memory), 0)


def random_part(rng, t, memory):
    return np.where(memory.setdefault("some", rng.random(LAYERS.dim) < 0.9), fresh(rng, t, memory), 0)


def frozen_bias(rng, t, memory):
    vector = fresh(rng, t, memory)
    vector[part("fc1.bias")] = memory.setdefault("bias", vector[part("fc1.bias")].copy())
    return vector


def one_draw_per_row(rng, t, memory):
    vector = fresh(rng, t, memory)
    vector[part("fc1.weight")] = np.repeat(rng.normal(size=64), 128)
    return vector


def same_rows(rng, t, memory):
    vector = fresh(rng, t, memory)
    vector[part("fc1.weight")] = np.tile(rng.normal(size=128), 64)
    return vector


def same_seed_for_each_tensor(rng, t, memory):
    seed = int(rng.integers(1 << 30))
    return np.concatenate([np.random.default_rng(seed).normal(size=size) for size in LAYERS.sizes])


def a_quarter_four_times(rng, t, memory):
    return np.resize(rng.normal(size=LAYERS.dim // 4 + 1), LAYERS.dim)


def mirrored(rng, t, memory):
    half = rng.normal(size=LAYERS.dim // 2 + 1)
    return np.concatenate([half, -half[::-1]])[: LAYERS.dim]


def bare_number(rng, t, memory):
    vector = fresh(rng, t, memory)
    vector[1234] = 0
    return vector


def uniform(rng, t, memory):
    return rng.uniform(-math.sqrt(3), math.sqrt(3), LAYERS.dim)


def random_signs(rng, t, memory):
    return rng.choice([-1.0, 1.0], LAYERS.dim)


BUGS = {
    "no noise on a bias": (without("fc2.bias"), "fc2.bias has at most"),
    "no noise on a scalar": (without("scale"), "scale has at most"),
    "no noise on a layer": (without("fc2.weight"), "fc2.weight has at most"),
    "noise on the first half": (first_half, "of fc1.weight have at most"),
    "no noise on a tenth of the numbers": (random_part, "All tensors together have at most 0.9"),
    "too little noise": (lambda *a: 0.9 * fresh(*a), "All tensors together have at most 0.9"),
    "no noise in one round": (lambda rng, t, m: fresh(rng, t, m) * (t != 3), "Round 3 has at most"),
    "no noise on a layer in one round": (
        lambda rng, t, m: (without("fc2.weight") if t == 4 else fresh)(rng, t, m),
        "fc2.weight lacks the claimed noise in round 4",
    ),
    "the same noise always": (repeated(1), "round 1 repeats that of round 0"),
    "a pool of three": (repeated(3), "round 3 repeats that of round 0"),
    "negated noise": (negated, "round 1 repeats that of round 0"),
    "a moving average": (moving_average, "depends on that of round"),
    "a bias whose noise is frozen": (frozen_bias, "The noise of fc1.bias in round 1 repeats"),
    "one draw per row": (one_draw_per_row, "Neighboring coordinates of fc1.weight"),
    "the same rows": (same_rows, "The rows of fc1.weight"),
    "a quarter, four times": (a_quarter_four_times, "Parts of fc1.weight get the same noise"),
    "mirrored": (mirrored, "Parts of fc1.weight get the same noise"),
    "the same seed for each tensor": (
        same_seed_for_each_tensor,
        "fc2.weight and fc1.weight, fc1.bias and fc2.weight get the same noise",
    ),
}


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_bug_is_named(bug):
    noise, words = BUGS[bug]
    assert any(words in sentence for sentence in sentences(noise))


def test_noise_that_is_too_small_is_the_only_cause_however_the_signal_repeats():
    """The signal is the same in all rounds, most of it in one tensor, whose neighbors are alike."""
    signal = 0.3 * np.random.default_rng(1).normal(size=LAYERS.dim)
    signal[part("fc2.weight")] = np.repeat(np.random.default_rng(2).normal(size=320), 2)
    causes = sentences(lambda *a: signal + 0.1 * fresh(*a), signal=0.0)
    assert any("fc1.weight has at most 0.32 of the claimed noise, if one clip norm" in cause for cause in causes)
    assert all(re.search(r"ha(s|ve) at most 0\.\d+ of the claimed noise(, if one|$)", cause) for cause in causes)


def test_rounds_without_noise_are_the_only_cause_however_the_signal_repeats():
    signal = 0.5 * np.random.default_rng(1).normal(size=LAYERS.dim)
    (cause,) = sentences(lambda rng, t, m: signal + fresh(rng, t, m) * (t < 18), signal=0.0)
    assert cause.startswith("Rounds 18, 19 have at most 0.5")


def test_a_single_number_without_noise_is_named_wherever_it_is():
    words = "1 of 8,907 coordinates lacks the claimed noise in all rounds: coordinate 1,234 of fc1.weight"
    assert sentences(bare_number, signal=5.0) == [words]


# 40 trainings with four checks at level 2e-4 each: false-alarm probability at most 0.032. The signals are up to nine
# times as long as all noise together, the same in every round, or all in one tensor.
@pytest.mark.parametrize("signal", [0.0, 20.0, 900.0])
def test_a_correct_training_has_no_findings(signal):
    for seed in range(10):
        assert sentences(fresh, signal=signal, seed=seed) == []


def test_a_signal_that_repeats_is_not_noise_that_repeats():
    constant = np.random.default_rng(1).normal(size=LAYERS.dim) * 3
    for seed in range(10):
        assert sentences(lambda *a: constant + fresh(*a), seed=seed) == []


def test_false_alarms_stay_below_the_level():
    """At a level of 0.3 per check, each of four checks alarms in at most 30% of trainings."""
    alarms = np.zeros(len(NOISE_CHECKS))
    trainings = 150
    layers = Layers.of([40, 8, (6, 20), 1])
    for seed in range(trainings):
        rng = np.random.default_rng(seed)
        record = NoiseRecord(layers, 10, seed)
        for t in range(10):
            noise = rng.normal(size=layers.dim).astype(np.float32)
            record.add(t, noise, np.zeros(layers.dim, np.float32), norm=1.0, unprocessed=True)
        checks = {f.check for f in noise_findings(record, floor_of(record, 1.0), 0.3)}
        alarms += [name in checks for name in NOISE_CHECKS]
    # One standard error is 0.037: exceeding 0.3 + 4 of them by chance has probability 3e-5.
    assert (alarms / trainings <= 0.3 + 4 * 0.037).all()


def test_the_energy_test_is_exact_without_signal_and_conservative_with_any():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(4000, 12))
    for signal in (np.zeros(12), np.eye(12)[0] * 3, np.full(12, 0.4)):
        p_values = energy_p_value(np.sum((noise + signal) ** 2, axis=1), 12)
        for alpha in (0.01, 0.1, 0.5):
            error = 4 * math.sqrt(alpha * (1 - alpha) / 4000)  # false-alarm probability 3e-5 each
            assert np.mean(p_values <= alpha) <= alpha + error
            if not signal.any():
                assert np.mean(p_values <= alpha) >= alpha - error


def test_energy_p_values_have_a_closed_form_in_two_dimensions():
    energies = np.array([0.0, 0.5, 3.0, 40.0])
    assert energy_p_value(energies, 2) == pytest.approx(1 - np.exp(-energies / 2), abs=1e-15)
    assert energy_p_value(1.0, 0) == 1


def test_numbers_near_zero_are_counted_exactly():
    chance = math.erf(0.1 / math.sqrt(2))
    exact = sum(math.comb(20, k) * chance**k * (1 - chance) ** (20 - k) for k in range(5, 21))
    assert near_zero_p_value(5, 20, 0.1) == pytest.approx(exact, rel=1e-12)
    assert near_zero_p_value(0, 20, 0.1) == 1


def test_the_bound_on_the_noise_covers_the_truth():
    rng = np.random.default_rng(0)
    energies = 0.36 * rng.chisquare(50, size=3000)
    covered = np.mean([noise_at_most(energy, 50, 0.1) >= 0.6 for energy in energies])
    assert abs(covered - 0.9) < 4 * math.sqrt(0.09 / 3000)  # 6e-5


def test_rounding_is_taken_into_account():
    rng = np.random.default_rng(0)
    record = NoiseRecord(LAYERS, 5, 0)
    for t in range(5):
        update = rng.normal(size=LAYERS.dim)
        rounded, planted = (np.round(update / 0.05) * 0.05).astype(np.float32), np.zeros(LAYERS.dim, np.float32)
        record.add(t, rounded, planted, norm=1.0, unprocessed=True)
    assert noise_findings(record, floor_of(record, 1.0), 0.05) == []


def to_bfloat16(values):
    """Round to the 8 significant bits of bfloat16, half up."""
    return ((values.view(np.uint32) + 0x8000) & np.uint32(0xFFFF0000)).view(np.float32)


@pytest.mark.parametrize("rounded", [lambda update: update.astype(np.float16).astype(np.float32), to_bfloat16])
def test_half_precision_is_recognized_in_updates_of_single_precision(rounded):
    """Noise is 34 times the spacing of the smallest numbers of half precision, which rounds 1% of it to zero."""
    rng, inspection = np.random.default_rng(0), TrainingChecks(200_000, 4, 0, None)
    for t in range(4):
        canaries = rng.choice([-0.01, 0.01], 200_000)
        update = rounded((1e-6 * canaries + rng.normal(0, 2e-6, 200_000)).astype(np.float32))
        inspection.record(Release(t, "update", update), 1.0, canaries.astype(np.float32))
    claim = Claim(noise_multiplier=2.0, sampling=EveryRound(), rounds=4, delta=1e-5)
    assert inspection.findings(claim)[1] == []
    assert inspection._noise.rounding.max() > 10 * np.spacing(np.float32(1e-5)) / 2e-6


def observed(update, *, layers, divisor, clip_norm, seed=0, rounds=4):
    """Return the findings for updates of a noise multiplier of 1."""
    rng, layers = np.random.default_rng(seed), Layers.of(layers)
    inspection = TrainingChecks(layers.dim, rounds, seed, layers)
    for t in range(rounds):
        canaries = 0.5 * clip_norm * rng.choice([-1.0, 1.0], layers.dim)  # as many as a quarter of the dimensions
        released = update(rng.normal(0, clip_norm, layers.dim) / divisor, canaries / divisor)
        inspection.record(Release(t, "update", released), clip_norm, canaries.astype(np.float32))
    claim = Claim(noise_multiplier=1.0, sampling=EveryRound(), rounds=rounds, delta=1e-5)
    return [finding.sentence for finding in inspection.findings(claim)[1]]


def test_half_precision_is_recognized_beside_a_tensor_of_single_precision():
    def mixed(noise, canaries):
        update = (noise + canaries).astype(np.float32)
        update[:20_000] = update[:20_000].astype(np.float16)
        return update

    assert observed(mixed, layers={"fc": 20_000, "norm": 200}, divisor=70.0, clip_norm=1e-3, rounds=60) == []


def test_a_tensor_of_zeros_is_not_released_nor_taken_for_half_precision():
    """The spacing of half precision at 0 is 0.6 of this noise: as its rounding, it would end all checks."""

    def bare(noise, canaries, *, released):
        update = canaries + np.where(np.arange(noise.size) < 4_000, noise, 0)
        return np.where(np.arange(noise.size) < released, update, 0).astype(np.float32)

    settings = {"layers": {"fc": 4_000, "norm": 1_000, "bias": 100}, "divisor": 1e7, "clip_norm": 1.0}
    assert observed(partial(bare, released=4_000), **settings) == []
    assert [sentence[:4] for sentence in observed(partial(bare, released=5_000), **settings)] == ["norm"]


@pytest.mark.parametrize("precision", [np.float16, to_bfloat16])
def test_the_coarsest_tensor_says_how_far_rounding_moved_numbers(precision):
    """The step of numbers within a factor of two of the largest one, or half of that across a power of two."""
    values, tensors = np.random.default_rng(0).normal(size=2000).astype(np.float32), np.repeat([0, 1], 1000)
    assert largest_rounding(values, tensors) == np.spacing(np.abs(values).max()) / 2
    values[:1000] = precision(values[:1000])
    step = np.abs(values[:1000]).max() * 2.0 ** (-11 if precision is np.float16 else -8)
    assert step / 2 < largest_rounding(values, tensors) <= 2 * step


def test_a_few_numbers_are_on_no_grid():
    for values in ([0.5, 1.0, 1.5], [0.0] * 20, [-1.0, 1.0] * 500):
        assert largest_rounding(np.array(values, np.float32), np.zeros(len(values))) < 1e-6


def test_numbers_of_almost_the_same_size_are_on_no_grid():
    """All gaps between them are too small for the step of a grid."""
    update = (1 + 1e-5 * np.random.default_rng(0).standard_normal(1000)).astype(np.float32)
    assert largest_rounding(update, np.zeros(1000)) == np.spacing(update.max()) / 2


@pytest.mark.parametrize("step", [0.001, 0.01, 0.04, 0.2, 0.3])
def test_a_grid_of_all_numbers_is_recognized_and_hides_no_missing_noise(step):
    """Rounding after the noise does no harm, and discrete noise on rounded updates is as good."""

    def rounded(noise, canaries):
        return (np.round((noise + canaries) / (step / 30)) * (step / 30)).astype(np.float32)

    settings = {"layers": {"fc": 20_000, "norm": 200}, "divisor": 30.0, "clip_norm": 1.0, "rounds": 10}
    assert observed(rounded, **settings) == []
    assert observed(lambda noise, canaries: rounded(0.5 * noise, canaries), **settings)


def test_a_grid_from_the_least_to_the_largest_number_is_recognized():
    """Correct noise that was quantized to 4 bits has no wrong shape."""

    def quantized(noise, canaries):
        update = noise + canaries
        step = np.ptp(update) / 15
        return (update.min() + step * np.round((update - update.min()) / step)).astype(np.float32)

    rounding = largest_rounding(quantized(np.random.default_rng(0).normal(size=20_200), 0.0), np.zeros(20_200))
    assert rounding == pytest.approx(0.53, abs=0.05)
    assert observed(quantized, layers={"fc": 20_000, "norm": 200}, divisor=30.0, clip_norm=1.0, rounds=10) == []


def test_noise_in_proportion_to_clip_norms_of_tensors_is_a_bug_only_with_one_clip_norm_for_all():
    """With clip norms C and noise z·√3·C for three tensors, Σ(C/σ)² = 1/z²: the claim holds."""
    layers, clip_norms = {"conv": 2000, "fc": 600, "bias": 40}, np.array([1.0, 0.3, 0.1])
    clip_norm = float(np.linalg.norm(clip_norms))
    shares = np.repeat(math.sqrt(3) * clip_norms / clip_norm, list(layers.values()))
    settings = {"layers": layers, "divisor": 30.0, "clip_norm": clip_norm}
    sentences = observed(lambda noise, canaries: (shares * noise + canaries).astype(np.float32), **settings)
    assert [sentence.split()[0] for sentence in sentences] == ["fc", "bias"]
    assert all("if one clip norm covers all tensors; otherwise pass noise_per_layer" in s for s in sentences)
    # All tensors together need no such condition, nor does a part of a tensor.
    (everywhere,) = observed(lambda noise, canaries: (0.5 * noise + canaries).astype(np.float32), **settings)
    (part,) = observed(
        lambda noise, canaries: (np.where(np.arange(2640) < 500, 0, noise) + canaries).astype(np.float32), **settings
    )
    assert "clip norm" not in everywhere + part


def test_noise_that_is_missing_everywhere_is_not_named_tensor_by_tensor():
    """Also where 10 numbers and a single one cannot show by themselves that they lack half of their noise."""
    for seed in range(5):
        (sentence,) = sentences(lambda rng, t, _: 0.5 * rng.normal(size=LAYERS.dim), signal=0.0, rounds=3, seed=seed)
        assert sentence.startswith("All tensors together have at most 0.5")


def test_one_tensor_with_noise_is_not_counted_among_those_without():
    """The bias of 10 numbers has its noise: in 10 × 3 dimensions that does not look like half of it (p < 1e-6)."""

    def noise(rng, t, memory):
        vector = 0.5 * rng.normal(size=LAYERS.dim)
        vector[part("fc2.bias")] *= 2
        return vector

    for seed in range(5):
        named = sentences(noise, signal=0.0, rounds=3, seed=seed)
        assert any(sentence.startswith("fc1.weight has at most 0.5") for sentence in named)
        assert not any("All tensors" in sentence or "fc2.bias" in sentence for sentence in named)


# The same in an audit


def audit_loop(noise, *, layers=LAYERS.shapes, claim=None, **settings):
    settings = {"canaries": 20, "view": "updates", "participation": "every-round"} | settings
    audit = OneShot(LAYERS.dim, rounds=6, layers=layers, **settings)
    rng, memory = np.random.default_rng(0), {}
    for t in range(6):
        planted = audit.plant(t, clip_norm=0.5)
        divisor = planted.clients + 50
        total = planted.total + 0.5 * noise(rng, t, memory)
        update = (total / divisor).astype(np.float32)
        audit.observe(t, update=update, divisor=divisor)
        if audit.views[0].kind == "model" and t == 5:
            audit.observe(t, model=update)
    return audit.result(claim=claim or Claim(noise_multiplier=1.0, delta=1e-5))


def test_an_audit_refutes_the_claim_for_a_bias_without_noise():
    result = audit_loop(without("fc2.bias"))
    assert result.refuted
    assert [f.check for f in result.bugs] == ["noise on every tensor"]
    assert not audit_loop(fresh).findings  # false-alarm probability 1e-3


PER_TENSOR = {"conv": 2000, "fc": 600, "bias": 40}
CLIP_NORMS = np.array([1.0, 0.3, 0.1])
CLIP_NORM = float(np.linalg.norm(CLIP_NORMS))
SHARES = math.sqrt(3) * CLIP_NORMS / CLIP_NORM  # with z = 2 and σ = z·√3·C, Σ(C/σ)² = 1/z²


def audit_per_tensor(noise_shares, *, view="updates", by_hand=False, canaries=60, **settings):
    """A training with noise z·C·share on each tensor, audited by the option, or rescaled by hand."""
    sizes = list(PER_TENSOR.values())
    noise, scale = np.repeat(2.0 * CLIP_NORM * noise_shares, sizes), np.repeat(SHARES, sizes).astype(np.float32)
    option = {} if by_hand else {"noise_per_layer": dict(zip(PER_TENSOR, SHARES, strict=True))}
    start = np.random.default_rng(1).normal(size=2640).astype(np.float32)
    initial = None if view == "updates" else start / scale if by_hand else start
    audit = OneShot(
        2640, rounds=6, canaries=canaries, view=view, participation="every-round", layers=PER_TENSOR,
        initial=initial, family="gaussian", **option, **settings,
    )  # fmt: skip
    rng, model = np.random.default_rng(0), start
    for t in range(6):
        planted = audit.plant(t, clip_norm=CLIP_NORM)
        total = (scale if by_hand else 1) * planted.total + rng.normal(0, noise)
        update = (total / planted.clients).astype(np.float32)
        model = model + update
        back = scale if by_hand else 1
        audit.observe(t, update=update / back, divisor=planted.clients)
        if view != "updates" and t == 5:
            audit.observe(t, model=model / back)
    return audit


@pytest.mark.parametrize("view", ["updates", "final-change"])
def test_noise_per_layer_audits_in_coordinates_where_the_noise_is_the_same(view):
    audit, by_hand = (audit_per_tensor(SHARES, view=view, by_hand=by_hand) for by_hand in (False, True))
    for side, side_by_hand in zip(audit.scores(), by_hand.scores(), strict=True):
        assert np.allclose(side, side_by_hand, atol=1e-5)
    result = audit.result(claim=Claim(noise_multiplier=2.0, delta=1e-5))
    assert not result.findings  # false-alarm probability 1e-3
    assert not result.refuted
    assert "noise on every tensor" in result.checks


def test_noise_below_that_of_noise_per_layer_is_named_without_an_if():
    audit = audit_per_tensor(SHARES * [1, 1, 0.1], canaries=200)
    (bug,) = audit.result(claim=Claim(noise_multiplier=2.0, delta=1e-5)).bugs
    assert re.fullmatch(r"bias has at most 0\.\d+ of the claimed noise", bug.sentence)


def test_canaries_that_are_taken_one_by_one_are_scaled_too():
    audit = OneShot(
        2640, rounds=1, canaries=60, participation="every-round", layers=PER_TENSOR,
        noise_per_layer={"conv": 1.5, "fc": 0.5, "bias": 0.1},
    )  # fmt: skip
    planted = audit.plant(0, clip_norm=2.0)
    assert np.allclose(sum(planted.each()), planted.total, atol=1e-4)


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        ({"conv": 0.9, "fc": 0.5, "bias": 0.1}, "0.9"),
        ({"conv": 0.9, "fc": 0.9, "bias": 0.9}, "0.9"),
        ({"conv": 1.0, "fc": 1.0, "bias": 0.05}, "0.05"),
        ({"conv": 1.0, "fc": 0.5}, "bias"),
        ({"conv": 1.0, "fc": -0.5, "bias": 0.1}, "-0.5"),
    ],
)
def test_noise_per_layer_that_no_clip_norms_explain_is_refused(noise, words):
    with pytest.raises(InputError, match=words):
        OneShot(2640, rounds=1, canaries=5, layers=PER_TENSOR, noise_per_layer=noise)
    with pytest.raises(InputError, match="layers="):
        OneShot(2640, rounds=1, canaries=5, noise_per_layer=noise)


@pytest.mark.parametrize("shares", [(1.5, 0.5, 0.1), (3.0, 2.0, 0.9)])
def test_the_largest_clip_norm_of_a_tensor_is_the_most_that_keeps_the_claim(shares):
    name, limit = largest_clip_norm(dict(zip(PER_TENSOR, shares, strict=True)))
    squares = np.random.default_rng(0).dirichlet([0.3, 0.3, 0.3], 20_000)  # of the clip norms, which sum to 1
    keeps = squares @ np.array(shares) ** -2.0 <= 1
    assert name == "bias"
    assert squares[keeps, 2].max() <= limit**2
    assert squares[keeps, 2].max() == pytest.approx(limit**2, rel=0.2)
    assert limit**2 / shares[2] ** 2 + (1 - limit**2) / shares[0] ** 2 == pytest.approx(1)
    assert largest_clip_norm({"conv": 1.0, "fc": 1.0}) is None


def test_a_result_says_that_the_noise_per_tensor_was_stated():
    audit = audit_per_tensor(SHARES, canaries=20)
    warnings = audit.result(claim=Claim(noise_multiplier=2.0, delta=1e-5)).warnings
    (warning,) = [warning for warning in warnings if "noise_per_layer" in warning]
    _, limit = largest_clip_norm(dict(zip(PER_TENSOR, SHARES, strict=True)))
    assert f"that of bias at most {limit:.2g} of" in warning


def test_checks_do_not_need_the_names_of_layers():
    result = audit_loop(first_half, layers=None)
    assert "Coordinates 4,453–8,906 have at most" in result.bugs[0].sentence


def test_the_final_view_is_checked_too():
    assert audit_loop(repeated(1), view="final").bugs[0].check == "fresh noise"


def test_a_claim_without_a_noise_multiplier_is_not_about_noise():
    result = audit_loop(without("fc2.bias"), claim=Claim(epsilon=50.0, delta=1e-5))
    assert "noise on every tensor" not in result.checks


def test_a_saved_state_has_the_same_findings():
    rng = np.random.default_rng(0)
    settings = {"model": LAYERS.dim, "rounds": 6, "layers": LAYERS.shapes, "canaries": 50, "view": "updates"}
    audits = [OneShot(**settings, participation="every-round") for _ in range(2)]
    for t in range(6):
        if t == 3:
            audits[1].restore(audits[0].state())
        planted = [audit.plant(t, clip_norm=1.0) for audit in audits[: 1 if t < 3 else 2]]
        update = (planted[0].total + without("fc2.bias")(rng, t, {})).astype(np.float32)
        for audit in audits[: len(planted)]:
            audit.cohort(t, range(5), 50)
            audit.observe(t, update=update, divisor=1.0)
    claim = Claim(noise_multiplier=1.0, delta=1e-5)
    first, second = (audit.result(claim=claim) for audit in audits)
    assert first.findings == second.findings != []


def test_a_noise_schedule_is_compared_round_by_round():
    claim = Claim(noise_schedule=[(1.0, 3), (0.5, 3)], delta=1e-5)
    halved = lambda rng, t, m: fresh(rng, t, m) * (1 if t < 3 else 0.5)  # noqa: E731
    assert not audit_loop(halved, claim=claim, canaries=400).findings
    reversed_order = lambda rng, t, m: fresh(rng, t, m) * (0.5 if t < 3 else 1)  # noqa: E731
    assert audit_loop(reversed_order, claim=claim, canaries=400).bugs


def overlapping(rng, size, rounds):
    """Return noise of each round of which half is that of the round before."""
    drawn = rng.normal(0, 2.0, (rounds + 1, size))
    return (drawn[1:] + drawn[:-1]) / math.sqrt(2)


@pytest.mark.parametrize("noise_of", [overlapping, lambda rng, size, rounds: rng.normal(0, 1.4, (rounds, size))])
def test_an_unprocessed_release_needs_no_canaries_to_show_its_noise(noise_of):
    """A few canaries do not show how much noise there is, and a server might average rounds, unless it cannot."""
    verdicts = []
    for unprocessed in (False, True):
        rng = np.random.default_rng(1)
        audit = OneShot(2000, rounds=10, canaries=5, view="updates", participation="every-round")
        for t, noise in enumerate(noise_of(rng, 2000, 10)):
            planted = audit.plant(t, clip_norm=1.0)
            update = ((planted.total + noise) / 20).astype(np.float32)
            audit.observe(t, update=update, divisor=20, unprocessed=unprocessed)
        result = audit.result(claim=Claim(noise_multiplier=2.0, delta=1e-5))
        verdicts.append(any(finding.refutes for finding in result.findings))
    assert verdicts == [False, True]


def test_an_unprocessed_release_needs_its_divisor():
    audit = OneShot(100, rounds=1, canaries=5, participation="every-round")
    audit.plant(0, clip_norm=1.0)
    with pytest.raises(InputError, match="needs divisor="):
        audit.observe(0, update=np.ones(100, np.float32), unprocessed=True)


@pytest.mark.parametrize(("length", "named"), [(1.0, []), (2.0, ["client moves the release too far"])])
def test_canaries_that_are_too_long_are_no_odd_shape(length, named):
    """Right noise with right canaries has a finding with a probability of at most 0.1%."""
    rng, audit = np.random.default_rng(3), OneShot(4000, rounds=10, canaries=400, view="updates", seed=0)
    audit.describe(even_noise=True)
    for t in range(10):
        planted = audit.plant(t, clip_norm=1.0)
        noisy = length * planted.total + rng.normal(0, 2.0, 4000)
        audit.observe(t, update=(noisy / 50).astype(np.float32), divisor=50, unprocessed=True)
    result = audit.result(claim=Claim(noise_multiplier=2.0, delta=1e-5))
    assert [bug.fault for bug in result.bugs] == named


def test_rounds_whose_noise_is_unknown_say_nothing_of_single_numbers():
    """Canaries are in the last rounds only. Before them, one number is released that clients hardly change."""
    rng = np.random.default_rng(4)
    audit = OneShot(2000, rounds=60, canaries=200, view="updates", participation="last:5", layers=[1999, 1])
    for t in range(60):
        planted = audit.plant(t, clip_norm=1.0)
        signal = 40.0 * (t < 55) * rng.normal(size=2000)  # clients, who send less in the end
        signal[7] = 0
        update = planted.total + signal + rng.normal(0, 1.0, 2000)
        audit.observe(t, update=update.astype(np.float32))
    result = audit.result(claim=Claim(noise_multiplier=1.0, delta=1e-5))
    assert [finding for finding in result.findings if finding.refutes] == []
