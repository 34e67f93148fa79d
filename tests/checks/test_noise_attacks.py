"""The battery of attacks: bugs of the noise are named, correct mechanisms pass at the stated rate."""

import itertools
import re

import numpy as np
import pytest
from scipy import ndimage, special

import coalmine as cm
from coalmine.checks import noise_attacks
from coalmine.checks import transcript as transcript_module
from coalmine.checks.noise_attacks import CHECKS, attack_with, check_noise
from coalmine.checks.transcript import call_often, default_calls
from coalmine.layers import Layers
from coalmine.results.verdict import Check
from coalmine.stats import sigma_gaussian
from coalmine.stats.exact_tests import best_seed
from coalmine.stats.tradeoff import ApproximateDP, GaussianDP

DIM, SIGMA = 600, sigma_gaussian(1.0, 1e-5)
CLAIM = GaussianDP(1 / SIGMA)


def normal(seed=0):
    rng = np.random.default_rng(seed)
    return lambda size=DIM: SIGMA * rng.standard_normal(size)


def findings(mechanism, **options):
    options = {"dim": DIM, "claim": CLAIM, "calls": 200} | options
    return check_noise(mechanism, **options).findings(options["claim"])


def repeated():
    noise = normal()()
    return lambda total: total + noise


def every_fifth_call_bare():
    draw, call = normal(), itertools.count()
    return lambda total: total + draw() * (next(call) % 5 > 0)


def momentum():
    draw, state = normal(), [np.zeros(DIM)]

    def noisy(total):
        state[0] = 0.95 * state[0] + np.sqrt(1 - 0.95**2) * draw()
        return total + state[0]

    return noisy


def added(change, seed=0):
    draw = normal(seed)
    return lambda total: total + change(draw())


def released(change):
    draw = normal()
    return lambda total: change(total + draw())


BUGS = [
    (
        added(lambda noise: 0.6 * noise),
        "size of the noise",
        r"too small everywhere: .* 2.2\d for updates of norm 1",
    ),
    (added(lambda noise: 0 * noise), "size of the noise", "There is no noise"),
    (
        added(lambda noise: np.where(np.arange(DIM) // 20 == 7, 0, noise)),
        "noise on every tensor",
        "140–159 carry no",
    ),
    (added(lambda noise: np.where(np.arange(DIM) % 3 == 1, 0.4, 1) * noise), "noise on every tensor", "3rd .* 0.4"),
    (
        added(lambda noise: np.where(np.arange(DIM) == 77, 0, noise)),
        "noise on every tensor",
        "^Coordinate 77 carries",
    ),
    (added(lambda noise: 1.6 * SIGMA * np.tanh(noise / SIGMA)), "shape of the noise", "never exceeds 1"),
    (added(np.round), "values of the noise", "only .* different values"),
    (added(lambda noise: noise[0]), "independent noise", "600 of 600 coordinates share"),
    (added(lambda noise: np.tile(noise[:200], 3)), "independent noise", "share their noise"),
    (
        added(lambda noise: np.cumsum(noise) / np.sqrt(np.arange(1, DIM + 1))),
        "independent noise",
        "share their noise",
    ),
    (repeated(), "fresh noise", r"200 of 200 calls repeat .* such as calls \d+ and \d+ .correlation 1\)"),
    (momentum(), "fresh noise", "correlation 0.9"),
    (every_fifth_call_bare(), "noise in every call", "Every 5th call, from call 1 on, carries no noise"),
]


@pytest.mark.parametrize(("mechanism", "check", "sentence"), BUGS)
def test_a_bug_is_named(mechanism, check, sentence):
    (finding,) = findings(mechanism)
    assert finding.check == check
    assert check in CHECKS
    assert finding.refutes
    assert 0 < finding.p_value <= 1e-3
    assert re.search(sentence, str(finding))


def factors(dim, rank):
    """Noise of lower rank whose coordinates have different sizes."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((rank, dim)) / np.sqrt(rank)
    return lambda total: total + SIGMA * rng.standard_normal(rank) @ weights


def half_rank(size):
    factors, draw = np.random.default_rng(3).standard_normal((size, size // 2)) / np.sqrt(size / 2), normal()
    return lambda total: total + factors @ draw(size // 2)


def plain(change, size):
    """Noise of standard deviation 1, changed, for the claim of a noise multiplier of 1."""
    rng = np.random.default_rng(0)
    return lambda total: total + change(rng.standard_normal(size), total)


UNIT, SMALL = GaussianDP(1.0), {"dim": 100, "calls": 400}
DEPENDENT_OR_BOUNDED = [
    (
        added(lambda noise: noise - noise.mean()),
        {},
        "independent noise",
        "The sum of coordinates carries no noise",
    ),
    (
        added(lambda noise: np.sqrt(5) * ndimage.uniform_filter1d(noise, 5, mode="wrap")),
        {},
        "independent noise",
        "A weighted sum of coordinates carries 0.0",
    ),
    (
        half_rank(100),
        SMALL,
        "independent noise",
        "lacks .* of its dimensions: a weighted sum of coordinates carries no",
    ),
    (factors(100, 90), SMALL, "independent noise", "lacks 10 of its dimensions"),
    (factors(600, 202), {}, "independent noise", "A weighted sum of coordinates carries 0"),
    (
        plain(lambda noise, total: SIGMA * noise * np.linalg.norm(total) / 15, DIM),
        {},
        "shape of the noise",
        "deviation is 0 where the sum is zero",
    ),
    (
        plain(lambda noise, total: SIGMA * noise * total.any(), DIM),
        {},
        "shape of the noise",
        "deviation is 0 where the sum is zero",
    ),
    (
        plain(lambda noise, total: noise * (0.3 if np.count_nonzero(total) > 1 else 1), 600),
        {"claim": UNIT},
        "shape of the noise",
        "depends on the data: its standard deviation is .* where the sum is zero, and 0.(3|29)",
    ),
    (
        plain(lambda noise, _: np.clip(noise, -3, 3), 20),
        {"claim": UNIT, "dim": 20, "calls": 6000},
        "shape of the noise",
        "never exceeds 3 standard deviations",
    ),
    (
        plain(lambda noise, _: np.round(4 * noise) / 4, 100),
        {"claim": UNIT, "dim": 100, "calls": 4000},
        "values of the noise",
        "takes only .* different values",
    ),
]


@pytest.mark.parametrize(("mechanism", "options", "check", "sentence"), DEPENDENT_OR_BOUNDED)
def test_noise_that_is_dependent_or_bounded_is_named(mechanism, options, check, sentence):
    (finding,) = findings(mechanism, **options)
    assert finding.check == check
    assert re.search(sentence, finding.sentence)


def test_heavy_tails_of_the_claimed_deviation_are_called_so():
    rng = np.random.default_rng(0)
    laplace = lambda total: total + rng.laplace(0, 2**-0.5, DIM)  # noqa: E731
    (finding,) = findings(laplace, claim=GaussianDP(1.0), noise_multiplier=1.0)
    assert finding.check == "shape of the noise"
    assert re.search(r"not Gaussian: it has heavy tails \(kurtosis (5|6)", finding.sentence)


def test_a_bare_coordinate_refutes_any_epsilon_by_its_exact_values():
    claim = ApproximateDP(epsilon=10.0, delta=1e-5)
    (finding,) = findings(added(lambda noise: np.where(np.arange(DIM) == 77, 0, noise)), claim=claim)
    assert "Coordinate 77 carries no noise" in finding.sentence


def test_tensors_are_called_by_their_names():
    layers = Layers.of({"fc1.weight": 500, "fc1.bias": 20, "fc2.weight": 80})
    (finding,) = findings(added(lambda noise: np.where(np.arange(DIM) // 20 == 25, 0, noise)), layers=layers)
    assert finding.sentence == "fc1.bias carries no noise."


def tree():
    """Noise of a binary tree of 10 levels, as the differences of its prefix sums."""
    draw, nodes, state = normal(), {}, [0, 0.0]

    def noisy(total):
        state[0] += 1
        for level in range(10):
            if state[0] % 2**level == 0:
                nodes[level] = np.sqrt(10) * draw()
        prefix = sum(nodes[level] for level in range(10) if state[0] >> level & 1)
        fresh, state[1] = prefix - state[1], prefix
        return total + fresh

    return noisy


def anti_correlated(seed=0):
    """z_t − z_(t−1)/2, undone by whoever sees all calls: an update then has the norm √(4/3)."""
    draw, state = normal(seed), [0.0]

    def noisy(total):
        fresh = np.sqrt(4 / 3) * draw()
        noise, state[0] = fresh - state[0] / 2, fresh
        return total + noise

    return noisy


CORRECT = {
    "plain": added(lambda noise: noise),
    "float32": released(lambda noisy: noisy.astype(np.float32)),
    "mean of 50": released(lambda noisy: noisy / 50),
    "rounded": released(lambda noisy: np.round(noisy, 1)),
    "clipped": released(lambda noisy: np.clip(noisy, -1, 1)),
    "signs": released(np.sign),
    "more on a layer": added(lambda noise: np.where(np.arange(DIM) < 100, 3, 1) * noise),
    "tree": tree(),
    "anti-correlated": anti_correlated(),
    "integers": released(lambda noisy: np.round(noisy).astype(np.int64)),
    "zeros": lambda total: 0 * total,
}


@pytest.mark.parametrize("name", CORRECT)
def test_correct_mechanisms_pass(name):
    """Each fails with a probability of at most 1e-3."""
    assert findings(CORRECT[name]) == []


def test_a_pilot_may_consist_of_inserted_canaries_only():
    rng = np.random.default_rng(28)
    result = cm.check_mechanism(
        lambda total: total + rng.normal(0, 1, total.size),
        dim=2, calls=16, seed=28, claim=cm.Claim(noise_multiplier=1.0, rounds=1, delta=1e-5),
    )  # fmt: skip
    assert result.findings == []


def test_laplace_noise_passes_although_it_protects_single_coordinates_best():
    rng = np.random.default_rng(0)
    assert findings(lambda total: total + rng.laplace(0, 1, DIM), claim=ApproximateDP(1.0, 0.0)) == []


def test_the_rate_of_false_alarms_is_at_most_the_stated_one():
    """At 20%, of the mechanism that just keeps its claim: more than 15 of 40 have a probability below 5e-3."""

    def alarm(seed):
        draw = normal(seed)
        options = {"dim": 60, "calls": 60, "rate": 0.2, "seed": seed}
        return bool(findings(lambda total: total + draw(60), **options))

    assert sum(alarm(seed) for seed in range(40)) <= 15


def test_a_large_vector_is_kept_in_part_and_bare_coordinates_are_found_all_the_same():
    dim, rng = 100_000, np.random.default_rng(0)

    def forgetful(total):
        noise = SIGMA * rng.standard_normal(dim, dtype=np.float32)
        noise[43_210:43_214] = 0
        return total + noise

    record = call_often(forgetful, dim=dim, calls=16, seed=0)
    assert record.coordinates.size <= transcript_module._KEPT
    assert np.isin(np.arange(43_210, 43_214), record.coordinates).all()
    (finding,) = findings(forgetful, dim=dim, calls=16, claim=ApproximateDP(1.0, 1e-5))
    assert "43,210–43,213 carry no noise" in finding.sentence


def test_an_attack_sees_no_coin_of_a_test_call():
    """Predictions are the same whatever the coins of the targets, if the outputs are the same."""
    record = call_often(added(lambda noise: noise), dim=DIM, calls=16, seed=0)
    hidden = ~record.pilot[:, None] & record.canary
    assert not record.known[hidden].any()
    assert (record.noise[hidden] == 0).all()
    assert record.pilot.sum() >= 4
    assert not record.pilot[0]


def test_values_are_guessed_where_the_noise_is_predicted():
    record, claim = call_often(lambda total: total, dim=50, calls=16, seed=0), ApproximateDP(10.0, 1e-5)
    zeros = np.zeros(record.coins.size)
    exact, coarse = (attack_with(record, Check.FRESH, "", scores=zeros, scale=zeros + scale) for scale in (0, 1))
    assert exact.p_value(claim) < 1e-30
    assert coarse.p_value(claim) == 1


@pytest.mark.parametrize(("scale", "gain"), [(1.0, 1.0), (1 / 32, 1 / 32), (-2.0, -2.0)])
def test_the_gain_is_found(scale, gain):
    draw = normal()
    record = call_often(lambda total: scale * (total + draw() / SIGMA), dim=DIM, calls=200, seed=0)
    assert record.gain == pytest.approx(gain, rel=0.02)
    assert record.size == pytest.approx(1.0, rel=0.05)


def test_large_mechanisms_are_called_less_often():
    assert default_calls(10**6) == 30


def weak_where(cause, share, dim, calls, seed):
    """A mechanism with a share of its noise somewhere, and how the sentence that says so starts."""
    rng, call, fifth = np.random.default_rng([seed, dim]), itertools.count(1), max(1, dim // 5)

    def noisy(total):
        number, noise = next(call), rng.standard_normal(dim)
        rows = {
            "everywhere": slice(None),
            "block": slice(fifth, 2 * fifth),
            "second": slice(None if number % 2 == 0 else 0),
            "call": slice(None if number == calls // 2 else 0),
        }
        noise[rows[cause]] *= share
        return total + noise

    names = {
        "everywhere": "The noise is too small everywhere",
        "block": "Coordinate",
        "second": "Every second call, from call 2 on, carries",
        "call": f"Call {calls // 2:,} carries",
    }
    return noisy, names[cause]


@pytest.mark.parametrize(
    ("dim", "calls", "causes"),
    [
        (3, 400, [("everywhere", 0.5), ("block", 0.2), ("second", 0.2)]),
        (10, 400, [("everywhere", 0.5), ("everywhere", 0.8), ("block", 0.5), ("second", 0.5)]),
        (100, 200, [("everywhere", 0.5), ("everywhere", 0.8), ("block", 0.5), ("second", 0.5), ("call", 0.0)]),
        (1000, 100, [("everywhere", 0.5), ("everywhere", 0.8), ("block", 0.8), ("second", 0.8), ("call", 0.0)]),
        (10_000, 30, [("everywhere", 0.8), ("block", 0.8), ("second", 0.8), ("call", 0.2)]),
    ],
)
def test_the_simplest_explanation_is_named(dim, calls, causes):
    """Noise that is too small everywhere is not blamed on a call or a block, nor the other way round.

    A set of coordinates or calls is named by chance in about one run of a million; of all refuted runs, none may name
    another cause.
    """
    refuted = 0
    for (cause, share), seed in itertools.product(causes, range(2 if dim < 1000 else 1)):
        mechanism, name = weak_where(cause, share, dim, calls, seed)
        named = findings(mechanism, dim=dim, claim=GaussianDP(1.0), noise_multiplier=1.0, calls=calls, seed=seed)
        refuted += len(named)
        assert all(finding.sentence.startswith(name) for finding in named), (cause, share, seed, named)
        if named and cause == "block":
            first, last = re.match(r"Coordinates? (\d+)(?:–(\d+))? carr", named[0].sentence.replace(",", "")).groups()
            fifth = max(1, dim // 5)
            assert int(first) == pytest.approx(fifth, abs=0.01 * dim)
            assert int(last or first) == pytest.approx(2 * fifth - 1, abs=0.01 * dim)
        if named and cause == "everywhere":
            measured = float(re.search(r"norm 1, (\S+) times the 1 that", named[0].sentence)[1])
            # Four standard errors of the size of the noise in the pilot, and the rounding to two digits.
            assert measured == pytest.approx(share, rel=4 / np.sqrt(2 * 0.2 * calls * dim), abs=0.005)
    assert refuted >= 0.8 * len(causes) * (2 if dim < 1000 else 1)


def test_a_weak_block_is_named_beside_noise_that_is_too_small_everywhere():
    rng = np.random.default_rng(0)

    def noisy(total):
        return total + 0.5 * rng.standard_normal(total.size) * np.where(np.arange(total.size) < 50, 0.3, 1)

    (finding,) = findings(noisy, dim=500, claim=GaussianDP(1.0), noise_multiplier=1.0, calls=200)
    assert finding.check == "size of the noise"
    assert "0.5 times the 1 that Gaussian noise needs" in finding.sentence
    assert "Besides: Coordinates 0–49 carry 0.3 of the noise of the others" in finding.sentence


def test_heavy_tails_are_not_taken_for_weak_calls_or_coordinates():
    rng = np.random.default_rng(0)
    laplace = findings(lambda total: total + 0.4 * rng.laplace(0, 1, DIM), claim=GaussianDP(1.0), noise_multiplier=1.0)
    assert "too small everywhere" in laplace[0].sentence


def test_noise_that_is_missing_where_nothing_was_sent_depends_on_the_input():
    """Calls of the test show it only where nothing was sent: that must not read as calls without noise."""
    draw = normal()
    (finding,) = findings(lambda total: total + draw() * (total != 0), calls=100)
    assert finding.sentence.startswith("The noise depends on the input")


@pytest.mark.parametrize("seed", range(3))
def test_two_coordinates_with_the_same_noise_are_named(seed):
    rng = np.random.default_rng(seed)

    def shared(total):
        noise = rng.normal(0, 1, total.size)
        noise[23] = noise[7]
        return total + noise

    (finding,) = findings(shared, dim=100, claim=GaussianDP(1.0), calls=400, seed=seed)
    assert finding.sentence.startswith("2 of 100 coordinates share their noise")
    assert "coordinates 7 and 23" in finding.sentence


@pytest.mark.parametrize("signs", [[1, -1], [1, 1, 1]])
def test_one_draw_for_two_or_three_coordinates_is_named(signs):
    rng = np.random.default_rng(0)
    (finding,) = findings(
        lambda total: total + rng.normal() * np.array(signs), dim=len(signs), claim=GaussianDP(1.0), calls=1000
    )
    assert "share their noise with another one" in finding.sentence


def test_a_shared_pair_does_not_hide_that_the_noise_is_too_small_everywhere():
    rng = np.random.default_rng(0)

    def shared(total):
        noise = rng.normal(0, 0.5, total.size)
        noise[23] = noise[7]
        return total + noise

    (finding,) = findings(shared, dim=100, claim=GaussianDP(1.0), calls=400, noise_multiplier=1.0)
    assert finding.sentence.startswith("The noise is too small everywhere")
    assert "Besides: 2 of 100 coordinates share" in finding.sentence


@pytest.mark.parametrize("tails", [1, 2, 30])
def test_independent_coordinates_do_not_look_shared_whatever_the_tails(tails):
    """Each of 4 pairs of halves has a false alarm with a probability of about 1e-6."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        record = call_often(
            lambda total, rng=rng: total + rng.standard_t(tails, total.size), dim=400, calls=200, seed=seed
        )
        assert noise_attacks._shared_noise(record, Layers({}), axis=0) is None


def test_samplers_in_single_precision_may_draw_a_value_twice():
    """Such as JAX's, which transforms a uniform number of 23 bits."""
    rng = np.random.default_rng(0)

    def noisy(total):
        uniform = (rng.integers(2**23, size=2000) + 0.5) / 2**23
        return (total + SIGMA * special.ndtri(uniform)).astype(np.float32)

    record = call_often(noisy, dim=2000, calls=300, seed=0)
    values = record.outputs[record.known & (record.inputs == 0)]
    assert np.unique(values).size < 0.99 * values.size
    assert noise_attacks._repeated_values(record, Layers({})) is None


def test_the_attacks_share_one_false_alarm_rate():
    own = [share for _, share in (*noise_attacks._STRUCTURE, *noise_attacks._ATTACKS)]
    shares = [*own, *noise_attacks._LATER_SHARES]
    assert sum(shares) == pytest.approx(1.0, abs=1e-12)


def alarms(kind, dim, seeds, rate):
    """How many of the correct mechanisms of a kind get a finding, of 60 calls each, and how many there are."""
    return sum(
        bool(findings(kind(dim, seed), dim=dim, calls=60, rate=rate, seed=seed, **CLAIMS[kind])) for seed in seeds
    )


def gaussian_of(after=lambda noisy: noisy):
    def make(dim, seed):
        rng = np.random.default_rng([seed, dim])
        return lambda total: after(total + rng.standard_normal(dim))

    return make


def laplace_of(dim, seed):
    rng = np.random.default_rng([seed, dim])
    return lambda total: total + rng.laplace(0, 1, dim)


def discrete_gaussian(dim, seed, grid=16):
    rng, points = np.random.default_rng([seed, dim]), np.arange(-8 * grid, 8 * grid + 1)
    chance = np.exp(-((points / grid) ** 2) / 2)
    draw = lambda: rng.choice(points, dim, p=chance / chance.sum())  # noqa: E731
    return lambda total: (np.floor(grid * total) + draw()) / grid


CLAIMS = {
    gaussian_of(): {"claim": UNIT},
    gaussian_of(lambda noisy: np.round(noisy, 1)): {"claim": UNIT},
    gaussian_of(lambda noisy: np.clip(noisy, -1, 1)): {"claim": UNIT},
    discrete_gaussian: {"claim": UNIT},
    laplace_of: {"claim": ApproximateDP(1.0, 0.0), "norm": "l1"},
}


def test_one_correct_mechanism_in_twenty_fails_at_most():
    """At 5%, of one number of coordinates and 40 mechanisms: more than 8 have a probability below 1e-3."""
    assert alarms(next(iter(CLAIMS)), 3, range(40), 0.05) <= 8


@pytest.mark.slow
@pytest.mark.parametrize("kind", CLAIMS)
def test_correct_mechanisms_of_any_size_fail_at_the_stated_rate(kind):
    """At 5%, 480 mechanisms of each kind: more than 44 have a probability below 1e-4."""
    assert sum(alarms(kind, dim, range(120), 0.05) for dim in (2, 3, 10, 33)) <= 44


@pytest.mark.parametrize("size", [1e10, 1e100, 1e200])
def test_astronomically_large_noise_passes(size):
    assert findings(added(lambda noise: size * noise), calls=50) == []


def test_a_single_call_with_half_of_its_noise_is_found():
    """Its canaries alone refute the claim; among those of all calls they are lost."""
    draw, call = normal(), itertools.count(1)
    (finding,) = findings(lambda total: total + draw(2000) * (0.5 if next(call) == 150 else 1), dim=2000)
    assert finding.check == "noise in every call"
    assert re.match(r"Call 150 carries 0\.(49|5|51) of the noise of the others", finding.sentence)


@pytest.mark.parametrize("dim", [300, 2000])
def test_noise_that_is_mostly_tiny_and_seldom_huge_has_a_wrong_shape_and_no_weak_stretches(dim):
    rng = np.random.default_rng(0)

    def noisy(total):
        return total + SIGMA * np.where(rng.random(dim) < 0.02, 5.0, 0.1) * rng.standard_normal(dim)

    (finding,) = findings(noisy, dim=dim)
    assert finding.check == "shape of the noise"
    assert "smaller than a tenth of its standard deviation" in finding.sentence


def test_one_draw_for_few_coordinates_and_places_without_noise_have_their_own_names():
    """Neither looks like a repeat: calls that share few numbers have a large correlation by chance."""
    draw, bare = normal(), np.random.default_rng(0).random(300) < 0.3
    (same,) = findings(lambda total: total + draw(1), dim=20, calls=1000)
    assert "20 of 20 coordinates share their noise" in same.sentence
    (places,) = findings(lambda total: total + draw(300) * ~bare, dim=300, calls=1000)
    assert places.sentence.startswith(f"{bare.sum()} of 300 coordinates")


@pytest.mark.parametrize("seeded", [np.random.default_rng, np.random.RandomState])
def test_noise_whose_seed_is_the_number_of_the_call_is_found_by_trying(seeded):
    call = itertools.count(100)
    (finding,) = findings(lambda total: total + SIGMA * seeded(next(call)).standard_normal(DIM))
    assert finding.check == "fresh noise"
    assert re.search(rf"is that of numpy.random.{seeded.__name__}\(1\d\d\)", finding.sentence)


def test_a_generator_that_is_seeded_once_is_no_finding():
    """The noise of its first call is that of its seed, as in most tests."""
    assert findings(added(lambda noise: noise)) == []
    record = call_often(added(lambda noise: noise), dim=DIM, calls=16, seed=0)
    shown = np.flatnonzero(record.known[0] & (record.inputs[0] == 0))
    assert best_seed(record.noise[0, shown], record.coordinates[shown]).name == "numpy.random.default_rng(0)"
    assert noise_attacks._small_seeds(record, Layers({})) is None


def test_torch_seeds_are_guessed():
    import torch

    noise = 2 * torch.randn(1000, generator=torch.Generator().manual_seed(17)).double().numpy()
    guess = best_seed(noise)
    assert guess.is_equal
    assert guess.name == "torch.manual_seed(17)"
    np.testing.assert_allclose(guess.noise, noise[: guess.noise.size], rtol=1e-6)
