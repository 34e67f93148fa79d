"""Local mechanisms: reports, their projections and densities, and the server."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from coalmine.errors import InputError
from coalmine.simulation.mechanisms.local import (
    LDPSGD,
    LDPServer,
    LocalGaussian,
    Normals,
    PrivUnit2,
    best_cap,
    cosine_quantile,
    cosine_tail,
)
from coalmine.stats import CosineNull

MECHANISMS = [LDPSGD, PrivUnit2, LocalGaussian]


def pair(dim, seed=0, lengths=(0.6, 2.0)):
    """Two gradients, one shorter and one longer than the clip norm of 1."""
    both = np.random.default_rng([dim, seed]).standard_normal((2, dim))
    return both / np.linalg.norm(both, axis=1, keepdims=True) * np.array(lengths)[:, None]


@pytest.mark.parametrize("kind", MECHANISMS)
@pytest.mark.parametrize("dim", [2, 3, 5, 50])
def test_projections_have_the_distribution_of_whole_reports(kind, dim):
    # Kolmogorov–Smirnov in eight directions of the plane, the two gradients' among them (Cramér and Wold), and on the
    # length in the plane. 216 tests at 1e-5 each: a false alarm in one of 460 runs with other seeds.
    mechanism, rng = kind(epsilon=1.5), np.random.default_rng(dim)
    gradients = pair(dim)
    basis, triangle = np.linalg.qr(gradients.T)
    angles = np.linspace(0, np.pi, 6, endpoint=False)
    directions = [*triangle.T, *np.stack([np.cos(angles), np.sin(angles)], axis=1)]
    for index in range(2):
        whole = mechanism.randomize(gradients[index], rng, 20_000) @ basis
        drawn = mechanism.projections(triangle[:, index], dim, rng, 20_000)
        for direction in directions:
            assert stats.ks_2samp(whole @ direction, drawn @ direction).pvalue > 1e-5
        lengths = [np.round(np.linalg.norm(reports, axis=1), 5) for reports in (whole, drawn)]
        assert stats.ks_2samp(*lengths).pvalue > 1e-5


@pytest.mark.parametrize("kind", MECHANISMS)
def test_dots_with_both_gradients_agree_jointly(kind):
    # The four quadrants of (⟨r, g1⟩, ⟨r, g2⟩): a χ² test on 2 × 4 counts.
    mechanism, rng, gradients = kind(epsilon=2.0), np.random.default_rng(5), pair(20)
    basis, triangle = np.linalg.qr(gradients.T)
    whole = mechanism.randomize(gradients[1], rng, 40_000) @ basis
    drawn = mechanism.projections(triangle[:, 1], 20, rng, 40_000)
    counts = [np.bincount((reports @ triangle > 0) @ [1, 2], minlength=4) for reports in (whole, drawn)]
    assert stats.chi2_contingency(counts).pvalue > 1e-4


@pytest.mark.parametrize("kind", [LDPSGD, PrivUnit2])
def test_in_one_plane_the_coordinates_are_whole_unit_vectors(kind):
    drawn = kind(epsilon=1.0).projections(np.array([0.3, 0.4]), 2, np.random.default_rng(0), 1000)
    np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), 1, atol=1e-12)


def test_in_one_dimension_ldp_sgd_is_randomized_response():
    mechanism = LDPSGD(epsilon=1.0)
    for reports in (
        mechanism.randomize([2.0], np.random.default_rng(0), 50_000),
        mechanism.projections([2.0], 1, np.random.default_rng(1), 50_000),
    ):
        assert set(np.unique(np.round(reports, 6))) == {-1.0, 1.0}
        assert np.mean(reports > 0) == pytest.approx(0.731059, abs=5 * 0.002)


@pytest.mark.parametrize("kind", MECHANISMS)
@pytest.mark.parametrize("length", [0.4, 1.0, 3.0])
def test_the_scaled_mean_of_reports_is_the_clipped_gradient(kind, length):
    mechanism, rng, count = kind(epsilon=2.0), np.random.default_rng(1), 100_000
    gradient = pair(5, lengths=(length, 1))[0]
    reports = mechanism.randomize(gradient, rng, count).astype(float) * mechanism.server_factor(5)
    clipped = gradient * min(1, 1 / length)
    error = reports.std(axis=0) / math.sqrt(count)
    assert np.all(np.abs(reports.mean(axis=0) - clipped) < 5 * error)


@pytest.mark.parametrize(("dim", "epsilon", "factor"), [(1000, 1.0, 0.0857431), (10**6, 4.0, 0.00130008088)])
def test_the_printed_server_factor_matches_reference_values(dim, epsilon, factor):
    assert LDPSGD(epsilon=epsilon).printed_factor(dim) == pytest.approx(factor, rel=1e-6)


@pytest.mark.parametrize("dim", [1, 2, 7, 100])
def test_the_printed_factor_is_the_papers_formula_and_a_dth_of_the_unbiased_one(dim):
    mechanism = LDPSGD(epsilon=0.7, norm=2.5)
    ratio = math.gamma((dim - 1) / 2 + 1) / math.gamma(dim / 2 + 1)
    formula = 2.5 * math.sqrt(math.pi) / 2 * ratio * (math.exp(0.7) + 1) / (math.exp(0.7) - 1)
    assert mechanism.printed_factor(dim) == pytest.approx(formula, rel=1e-12)
    assert mechanism.server_factor(dim) == pytest.approx(dim * formula, rel=1e-12)


def test_a_long_vector_needs_no_large_gamma():
    assert math.isfinite(LDPSGD(epsilon=1.0).server_factor(10**8))


def test_a_report_is_on_the_gradients_side_as_often_as_its_norm_and_epsilon_say():
    gradient = pair(10, lengths=(0.6, 1))[0]
    reports = LDPSGD(epsilon=2.0).randomize(gradient, np.random.default_rng(0), 100_000)
    right = 0.5 + 0.6 * (1 / (1 + math.exp(-2)) - 0.5)
    assert np.mean(reports @ gradient > 0) == pytest.approx(right, abs=5 * 0.0015)


@pytest.mark.parametrize("kind", MECHANISMS)
def test_a_gradient_beyond_the_clip_norm_counts_as_one_of_that_norm(kind):
    gradient = pair(6)[1]
    reports = [kind(epsilon=1.0).randomize(g, np.random.default_rng(3), 4) for g in (gradient, gradient / 2)]
    np.testing.assert_allclose(*reports, atol=1e-6)


def test_a_zero_gradient_gives_uniform_directions():
    cosines = LDPSGD(epsilon=3.0).randomize(np.zeros(3), np.random.default_rng(0), 20_000) @ np.array([1.0, 0, 0])
    assert stats.kstest(cosines, stats.uniform(-1, 2).cdf).pvalue > 1e-4


@pytest.mark.parametrize("kind", [LDPSGD, PrivUnit2])
@pytest.mark.parametrize("dim", [3, 40])
def test_no_report_is_more_than_e_to_the_epsilon_times_as_likely(kind, dim):
    mechanism, rng = kind(epsilon=1.3), np.random.default_rng(dim)
    reports = rng.standard_normal((20_000, dim))
    reports /= np.linalg.norm(reports, axis=1, keepdims=True)
    reports[:2] = np.eye(dim)[0], -np.eye(dim)[0]
    first = np.eye(dim)[0] * 5
    for second in (-first, np.eye(dim)[1] * 5, first * 0.05, rng.standard_normal(dim)):
        ratio = mechanism.log_density(reports, first, dim) - mechanism.log_density(reports, second, dim)
        assert np.max(np.abs(ratio)) <= 1.3 + 1e-9
    flipped = mechanism.log_density(reports, first, dim) - mechanism.log_density(reports, -first, dim)
    assert flipped.max() == pytest.approx(1.3, abs=1e-9)


@pytest.mark.parametrize("kind", [LDPSGD, PrivUnit2])
@pytest.mark.parametrize("length", [0.3, 1.0])
def test_densities_integrate_to_one_and_give_the_cosines_that_are_drawn(kind, length):
    # In three dimensions the cosine of a uniform direction is uniform on [−1, 1].
    mechanism, gradient = kind(epsilon=2.0), np.array([length])
    grid = np.linspace(-1, 1, 200_001)
    density = np.exp(mechanism.log_density(grid[:, None], gradient, 3)) / 2
    assert integrate.trapezoid(density, grid) == pytest.approx(1, abs=1e-4)
    cdf = integrate.cumulative_trapezoid(density, grid, initial=0)
    cosines = mechanism.projections(gradient, 3, np.random.default_rng(0), 20_000)[:, 0]
    assert stats.kstest(cosines, lambda t: np.interp(t, grid, cdf)).pvalue > 1e-4


def test_the_gaussian_density_is_that_of_normal_noise():
    mechanism, gradient = LocalGaussian(epsilon=1.0, delta=1e-3), np.array([0.5, 0.0])
    points = np.array([[0.1, 0.2], [3.0, -4.0]])
    expected = stats.norm(0, mechanism.noise).logpdf(points - gradient).sum(axis=1)
    actual = mechanism.log_density(points, gradient, 2)
    assert actual[0] - actual[1] == pytest.approx(expected[0] - expected[1])


@pytest.mark.parametrize(("epsilon", "sigma"), [(0.5, 7.03182667558), (1.0, 3.73063163482), (10.0, 0.499888619709)])
def test_the_gaussian_mechanism_has_the_least_noise_for_replacing_a_gradient(epsilon, sigma):
    mechanism = LocalGaussian(epsilon=epsilon, delta=1e-5, norm=3.0)
    assert mechanism.noise == pytest.approx(6 * sigma, rel=1e-9)
    claim = mechanism.claim()
    assert (claim.epsilon, claim.delta, claim.adjacency) == (epsilon, 1e-5, "replace-one")
    assert claim.noise_multiplier == pytest.approx(sigma, rel=1e-9)


@pytest.mark.parametrize("kind", [LDPSGD, PrivUnit2])
def test_sphere_mechanisms_claim_pure_epsilon(kind):
    claim = kind(epsilon=0.8).claim()
    assert (claim.epsilon, claim.delta, claim.accountant) == (0.8, 0.0, "pure")


@pytest.mark.parametrize("dim", [2, 3, 10, 10_000])
def test_tails_of_cosines_are_those_of_the_statistics_and_their_quantiles_invert_them(dim):
    cosines = np.array([-0.9, -0.01, 0.0, 0.003, 0.5]) * min(1, 5 / math.sqrt(dim))
    tails = cosine_tail(cosines, dim)
    np.testing.assert_allclose(tails, np.exp(CosineNull(dim).log_sf(cosines)), rtol=1e-9)
    np.testing.assert_allclose(cosine_quantile(tails, dim), cosines, atol=1e-9)


@pytest.mark.parametrize(("epsilon", "dim"), [(0.5, 3), (4.0, 100), (8.0, 10_000)])
def test_the_best_cap_spends_epsilon_and_beats_the_half_sphere(epsilon, dim):
    least, share, chance = best_cap(epsilon, dim)
    assert math.log(chance / (1 - chance) * (1 - share) / share) == pytest.approx(epsilon, abs=1e-9)
    assert 0 <= least < 1
    assert PrivUnit2(epsilon=epsilon).server_factor(dim) <= LDPSGD(epsilon=epsilon).server_factor(dim)


def test_a_cap_of_half_the_sphere_is_ldp_sgd():
    class Half(PrivUnit2):
        def cap(self, dim):
            return 0.0, 0.5, float(1 / (1 + math.exp(-self.epsilon)))

    assert Half(epsilon=1.7).server_factor(30) == pytest.approx(LDPSGD(epsilon=1.7).server_factor(30), rel=1e-9)


def test_the_server_scales_and_moves():
    mechanism, model = LDPSGD(epsilon=1.0), np.full(4, 0.5, dtype=np.float32)
    mean = np.array([[1.0, 0, 0, 0], [0, -1.0, 0, 0]], dtype=np.float32)
    plain = LDPServer(learning_rate=0.1).move(model, mean.copy(), mechanism)
    np.testing.assert_allclose(plain, model - 0.1 * mechanism.server_factor(4) * mean, rtol=1e-6)
    printed = LDPServer(learning_rate=0.1, scaling="printed").move(model, mean.copy(), mechanism)
    np.testing.assert_allclose(model - printed, (model - plain) / 4, atol=1e-6)


def test_lengths_of_long_rows_keep_their_digits():
    rows = np.random.default_rng(0).standard_normal((2, 3_000_000), dtype=np.float32)
    np.testing.assert_allclose(Normals(rows).lengths, np.linalg.norm(rows.astype(float), axis=1), rtol=1e-6)


@pytest.mark.parametrize("kind", MECHANISMS)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be a positive number, got 0"),
        ({"epsilon": -1.0}, "epsilon must be a positive number"),
        ({"epsilon": math.nan}, "epsilon must be a number, got nan"),
        ({"epsilon": math.inf}, "epsilon must be a positive number, got inf"),
        ({"epsilon": 1.0, "norm": 0.0}, "clip norm must be a positive number, got 0"),
        ({"epsilon": 1.0, "norm": -2.0}, "clip norm must be a positive number"),
    ],
)
def test_wrong_parameters_raise(kind, settings, message):
    with pytest.raises(InputError, match=message):
        kind(**settings)


def test_wrong_gradients_and_servers_raise():
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match="finite"):
        LDPSGD(epsilon=1.0).randomize([1.0, math.nan], rng)
    with pytest.raises(InputError, match="at least 2 dimensions"):
        PrivUnit2(epsilon=1.0).randomize([1.0], rng)
    with pytest.raises(InputError, match="delta must be in"):
        LocalGaussian(epsilon=1.0, delta=0.0)
    with pytest.raises(InputError, match="learning_rate must be a positive number"):
        LDPServer(learning_rate=0.0)


def test_a_subclass_that_makes_other_reports_is_not_judged_by_inherited_projections():
    class Honest(LDPSGD):
        def reports(self, gradient, normals, uniforms, *, out):
            out[:] = np.asarray(gradient)  # the bug: nothing is randomized
            return out

    gradient, rng = np.array([0.0, 2.0, 0.0]), np.random.default_rng(0)
    basis = np.array([[1.0, 0], [0, 1], [0, 0]])
    actual = Honest(epsilon=1.0).coordinates(gradient, basis, rng, 5)
    np.testing.assert_array_equal(actual, np.repeat([[0.0, 2.0]], 5, axis=0))
    drawn = LDPSGD(epsilon=1.0).coordinates(gradient, basis, rng, 5)
    assert np.all(np.linalg.norm(drawn, axis=1) <= 1)
    assert Honest(epsilon=1.0).coordinates(gradient, basis, rng, 0).shape == (0, 2)


class Odd(LDPSGD):
    """Reports that no server could use."""

    def reports(self, gradient, normals, uniforms, *, out):
        actual = super().reports(gradient, normals, uniforms, out=out)
        return {"short": actual[:, 1:], "scalar": np.float32(1), "nan": actual * np.nan}[self.kind]


class Silent(LDPSGD):
    """Makes new arrays of reports and does not write into the one it is given."""

    def reports(self, gradient, normals, uniforms, *, out):
        return np.repeat(np.asarray(gradient, dtype=np.float32)[None], len(normals.values), axis=0)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("short", r"Odd.*shape \(1, 650\), got shape \(1, 649\)"),
        ("scalar", r"Odd.*shape \(1, 650\), got shape \(\)"),
        ("nan", "Odd.*not finite"),
    ],
)
def test_reports_of_a_subclass_are_checked_where_they_are_used(kind, message):
    class OneKind(Odd):
        pass

    OneKind.kind, OneKind.__name__ = kind, "Odd"
    mechanism, rng = OneKind(epsilon=1.0), np.random.default_rng(0)
    out = np.empty((1, 650), np.float32)
    with pytest.raises(InputError, match=message):
        mechanism.sent(np.ones(650), Normals(np.ones((1, 650), np.float32)), rng.random((3, 1)), out=out)
    with pytest.raises(InputError, match=message):
        mechanism.coordinates(np.ones(650), np.eye(650)[:, :2], rng, 1)


def test_overriding_randomize_is_refused_because_no_audit_would_see_it():
    with pytest.raises(InputError, match=r"Sly overrides randomize.*reports"):
        type("Sly", (LDPSGD,), {"randomize": lambda self, gradient, rng, count=1: gradient})


def test_reports_that_are_a_new_array_are_what_is_sent():
    out, normals = np.full((2, 3), 7, np.float32), Normals(np.ones((2, 3), np.float32))
    Silent(epsilon=1.0).sent([1.0, 2.0, 3.0], normals, np.full((3, 2), 0.5), out=out)
    np.testing.assert_array_equal(out, [[1, 2, 3], [1, 2, 3]])


def test_a_users_function_is_a_mechanism_with_its_claim():
    from coalmine.simulation.mechanisms.local import OwnMechanism

    reference = LocalGaussian(epsilon=1.0, delta=1e-3)
    custom = OwnMechanism(
        function=lambda gradient, rng: reference.clipped(gradient) + rng.normal(0, reference.noise, gradient.size),
        epsilon=1.0, delta=1e-3,
    )  # fmt: skip
    assert (custom.claim().epsilon, custom.claim().delta, custom.name) == (1.0, 1e-3, "<lambda>")
    gradients = pair(4)
    basis, triangle = np.linalg.qr(gradients.T)
    actual = custom.coordinates(gradients[0], basis, np.random.default_rng(0), 4000)
    expected = reference.projections(triangle[:, 0], 4, np.random.default_rng(1), 4000)
    for axis in range(2):
        assert stats.ks_2samp(actual[:, axis], expected[:, axis]).pvalue > 1e-4


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda gradient, rng: gradient.nothing, "the mechanism <lambda> failed: AttributeError: "),
        (lambda gradient, rng: np.full(3, "a"), "<lambda>.*real numbers, got array"),
        (lambda gradient, rng: gradient * 1j, "real numbers, got array"),
        (lambda gradient: gradient, "<lambda> failed: TypeError"),
    ],
)
def test_faults_of_a_users_mechanism_raise_input_errors(function, message):
    from coalmine.simulation.mechanisms.local import OwnMechanism

    with pytest.raises(InputError, match=message):
        OwnMechanism(function=function, epsilon=1.0).randomize(np.ones(3), np.random.default_rng(0))


@pytest.mark.parametrize(("epsilon", "dim"), [(14.0, 2), (30.0, 2), (800.0, 9610)])
def test_the_best_cap_is_never_empty(epsilon, dim):
    least, share, chance = best_cap(epsilon, dim)
    assert 0 < least < 1
    assert 0 < share < 0.5
    assert 0.5 < chance <= 1
    factor = PrivUnit2(epsilon=epsilon).server_factor(dim)
    assert 1 - 1e-9 <= factor < 10
