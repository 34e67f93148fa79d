"""Vectors of any kind: sums agree with float64, and models are read in the order of their parameters."""

import numpy as np
import pytest
import torch
from torch import nn

from coalmine import InputError, OneShot
from coalmine.claims import Claim
from coalmine.testing import assert_private
from coalmine.vectors import check_flat, dot, flat

LENGTHS = [1, 5, 4095, 4096, 4097, 3 * 4096 + 17]
SCALES = [1e-40, 1e-25, 1.0, 1e18, 1e37]


def numbers(length, scale, seed=0):
    return (scale * np.random.default_rng(seed).normal(size=length)).astype(np.float32)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("scale", SCALES)
def test_sums_agree_with_float64(length, scale):
    one, other = numbers(length, scale), numbers(length, scale, seed=1)
    exact, size = one.astype(np.float64) @ other.astype(np.float64), np.abs(one.astype(float)) @ np.abs(other)
    assert dot(one, other) == pytest.approx(exact, abs=1e-5 * size)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_number_makes_a_vector_infinite(value):
    vector = numbers(5000, 1e30)
    assert check_flat(vector, "it", 5000) is vector  # although the squares are infinite
    vector[4321] = value
    with pytest.raises(InputError, match="finite"):
        check_flat(vector, "it", 5000)


MODEL = nn.Sequential(nn.Linear(40, 30), nn.BatchNorm1d(30), nn.Linear(30, 10))
NAMES = [name for name, _ in MODEL.named_parameters()]


def state(vector):
    sizes = [value.numel() for value in MODEL.parameters()]
    pieces = torch.as_tensor(vector).split(sizes)
    return {name: piece.view_as(value) for (name, value), piece in zip(MODEL.named_parameters(), pieces, strict=True)}


def module(vector):
    model = nn.Sequential(nn.Linear(40, 30), nn.BatchNorm1d(30), nn.Linear(30, 10))
    model.load_state_dict(state(vector), strict=False)
    return model


@pytest.mark.parametrize(
    "give",
    [
        lambda v: dict(reversed(state(v).items())),
        lambda v: {"1.running_mean": torch.zeros(30), **state(v), "1.num_batches_tracked": torch.tensor(3)},
        module,
        lambda v: module(v).parameters(),
    ],
    ids=["reversed", "with buffers", "module", "parameters"],
)
def test_a_release_is_read_in_the_order_of_the_parameters(give):
    def scores(give):
        audit = OneShot(MODEL, rounds=1, canaries=20, view="updates", participation="every-round")
        total = np.asarray(audit.plant(0, clip_norm=1.0).total) + numbers(audit.dim, 0.1)
        audit.observe(0, update=give(total), divisor=20)
        return audit.scores()[0]

    np.testing.assert_array_equal(scores(give), scores(lambda total: total))


def test_other_names_are_read_in_their_own_order():
    values = {f"module.{name}": np.full(2, i, np.float32) for i, name in enumerate(NAMES)}
    np.testing.assert_array_equal(flat(values, NAMES), np.repeat(np.arange(len(NAMES)), 2))


def release_of(vector):
    audit = OneShot(5000, rounds=1, canaries=20, view="updates", participation="every-round")
    audit.plant(0, clip_norm=1.0)
    audit.observe(0, update=vector, divisor=20)
    return audit


def test_a_sparse_tensor_is_read_like_a_dense_one():
    vector = numbers(5000, 1.0) * (np.arange(5000) % 7 == 0)
    scores = [release_of(v).scores()[0] for v in (vector, torch.from_numpy(vector).to_sparse())]
    np.testing.assert_array_equal(*scores)


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64])
@pytest.mark.parametrize("give", [lambda v: v, lambda v: [v]])
def test_canaries_in_numbers_that_cannot_hold_them_are_refused(dtype, give):
    with pytest.raises(InputError, match=f"{dtype}"):
        OneShot(give(torch.zeros(5000, dtype=dtype)), rounds=1, canaries=20)


def test_canaries_that_half_precision_rounds_to_0_are_refused():
    half = torch.zeros(5000, dtype=torch.float16)
    audit = OneShot(half, rounds=2, canaries=20, participation="every-round")
    planted = audit.plant(0, clip_norm=1e-4)
    norms = [float(canary.double().norm()) for canary in planted.each()]
    np.testing.assert_allclose(norms, 1e-4, rtol=0.01)
    with pytest.raises(InputError, match=r"1e-06 .*float16"):
        audit.plant(1, clip_norm=1e-6)


def test_canaries_add_to_integers_as_fractions_and_in_lists():
    total = OneShot(5000, rounds=1, canaries=20, participation="every-round").plant(0, clip_norm=1.0).total
    counts, expected = torch.ones(5000, dtype=torch.int64), torch.ones(5000) + torch.from_numpy(np.array(total))
    for added in (counts + total, total + counts, torch.add(input=counts, other=total)):
        torch.testing.assert_close(added, expected)
    for dtype in (torch.float32, torch.bfloat16):
        rows = torch.stack([torch.zeros(5000, dtype=dtype), total])
        assert rows.dtype == dtype
        torch.testing.assert_close(rows[1], torch.from_numpy(np.array(total)).to(dtype))


@pytest.mark.parametrize("scale", [1e25, 1e-25])
def test_a_release_of_another_scale_than_its_canaries_is_refused(scale):
    with pytest.raises(InputError, match="divisor"):
        release_of(numbers(5000, scale))


def test_a_release_far_shorter_than_its_canaries_has_a_result():
    """The expected cosine of a canary is then 1, up to rounding, which may exceed 1."""
    audit = release_of(numbers(5000, 1e-15))
    assert audit.result(claim=Claim(noise_multiplier=1.0, delta=1e-5)).claim_test is not None


def test_a_clip_norm_without_clients_is_refused():
    with pytest.raises(InputError, match=r"clip_norm=5 .*clients="):
        assert_private(lambda total: total, epsilon=1.0, dim=100, clip_norm=5.0)
