"""Audits of NumPy arrays and of tensors of any device and float type see the same canaries."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import hadamard as sylvester
from torch import nn

from coalmine import OneShot, vectors
from coalmine.claims import Claim
from coalmine.errors import InputError
from coalmine.methods.one_shot import families
from coalmine.methods.one_shot.canaries import update_canaries
from coalmine.methods.one_shot.families import HadamardCanaries
from coalmine.protocol import Contribution, checked_contribution
from coalmine.vectors import VectorKind
from fake_device import FAKE

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# Half a unit in the last place of numbers below 1, but canaries and scores are float32 themselves.
ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-6, torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}


def plain_transform(length):
    """The transform of q · 2ʲ as a matrix: Hartley's (Sylvester's if q is a power of two) times Sylvester's."""
    power = 2 ** max(0, length.bit_length() - 6)
    odd = length // power
    angles = 2 * np.pi * np.outer(np.arange(odd), np.arange(odd)) / odd
    first = (np.cos(angles) + np.sin(angles)) if odd & (odd - 1) else sylvester(odd)
    return np.kron(first, sylvester(power)) / length**0.5


def dense_matrix(canaries):
    """All canaries by their definition S₀ · B · S₃ · T₂ · S₂ · T₁ · S₁, with plain matrices in float64."""
    dim, rows = canaries.dim, canaries._rows
    random = canaries._draw(0, dim)
    signs = [2.0 * (random >> layer & 1) - 1 for layer in (0, 1, 2)]
    first, last = np.eye(dim), np.eye(dim)
    for mixing, place in ((first, canaries._first), (last, canaries._last)):
        mixing[place, place] = plain_transform(len(range(*place.indices(dim))))
    places = np.arange(dim)
    whole = places < dim // rows * rows  # B rotates the residues of these, each chunk of coordinates by its own turn
    turns = np.append(canaries._turns, 0)[np.where(whole, places // canaries._chunk, -1)]
    residues = (places + turns) % rows
    fold = np.zeros((rows, dim))
    fold[residues, places] = canaries._scale[residues]
    head = plain_transform(rows) @ fold
    return canaries._flips[:, None] * (head * signs[2] @ (last * signs[1]) @ (first * signs[0]))[: canaries.count]


@pytest.mark.parametrize("piece", [1000, 1 << 17])
@pytest.mark.parametrize("least_last", [1, 1 << 17])  # T₂ covers an eighth of the coordinates, or as many as T₁
@pytest.mark.parametrize(("dim", "count"), [(200, 16), (1025, 30), (2049, 100)])
def test_hadamard_canaries_are_what_plain_matrices_give_however_the_work_is_cut(
    dim, count, least_last, piece, monkeypatch
):
    monkeypatch.setattr(vectors, "_CPU_PIECE", piece)
    monkeypatch.setattr(families, "_LEAST_LAST", least_last)
    canaries, draw = HadamardCanaries(dim=dim, count=count, seed=dim), np.random.default_rng(0)
    matrix = dense_matrix(canaries)
    update, weights = draw.standard_normal(dim).astype(np.float32), draw.standard_normal(count)
    np.testing.assert_allclose(canaries.dots(update), matrix @ update, atol=2e-5)
    np.testing.assert_allclose(canaries.total(weights), weights @ matrix, atol=2e-5)
    np.testing.assert_allclose(canaries.canary(3), matrix[3], atol=2e-6)


@pytest.mark.parametrize(("family", "dim"), [("hadamard", 4099), ("gaussian", 70_001), ("orthogonal", 300)])
def test_canaries_are_the_same_on_a_device_and_nothing_is_left_on_the_cpu(family, dim):
    draw = np.random.default_rng(0)
    update, weights = draw.standard_normal(dim).astype(np.float32), draw.standard_normal(20)
    here, there = (update_canaries(family, dim=dim, count=20, seed=3) for _ in range(2))
    np.testing.assert_allclose(there.dots(torch.tensor(update, device=FAKE)), here.dots(update), atol=1e-4)
    total = there.total(weights, FAKE)
    assert total.device == FAKE
    np.testing.assert_allclose(total.cpu().numpy(), here.total(weights), atol=1e-5)
    for one, other in zip(here.each([1, 4]), there.each([1, 4], FAKE), strict=True):
        np.testing.assert_allclose(other.cpu().numpy(), one, atol=1e-6)


def test_the_fake_device_refuses_what_hardware_refuses():
    tensor = torch.ones(3, device=FAKE)
    with pytest.raises(RuntimeError, match="mixes tensors"):
        tensor + torch.ones(3)
    with pytest.raises((RuntimeError, TypeError)):
        tensor.numpy()


def audited(dim, convert, *, view="updates", rounds=3, seed=1, **options):
    """Return a finished audit of plain noise, whose sums and releases pass through ``convert``."""
    draw = np.random.default_rng(0)
    audit = OneShot(dim, rounds=rounds, canaries=40, view=view, participation="every-round", seed=seed, **options)
    model = convert(np.zeros(audit.dim, np.float32))
    for t in range(rounds):
        planted = audit.plant(t, clip_norm=1.0)
        total = planted.total + convert(draw.normal(0, 0.5, audit.dim).astype(np.float32))
        average = total / planted.clients
        model = model + average
        for shown in audit.views:
            if shown.shows(t, rounds):
                vector = average if shown.kind == "update" else model
                audit.observe(t, **{shown.kind: vector}, divisor=planted.clients)
    return audit


def network(width=60):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 70), nn.ReLU(), nn.Linear(70, 9))


@pytest.mark.parametrize("view", ["updates", "final", "every:2", "final-change"])
def test_a_loop_on_a_device_has_the_scores_of_a_loop_in_numpy(view):
    module = network()
    dim = sum(p.numel() for p in module.parameters())
    initial = np.zeros(dim, np.float32) if view in ("every:2", "final-change") else None
    options = {"view": view, "initial": initial}
    plain = audited(dim, lambda x: x, layers=module, **options)
    there = audited(network().to(FAKE), lambda x: torch.tensor(x, device=FAKE), **options)
    for ours, theirs in zip(plain.scores(), there.scores(), strict=True):
        np.testing.assert_allclose(theirs, ours, atol=2e-6)
    claim = Claim(noise_multiplier=0.5, delta=1e-5)
    one, other = plain.result(claim=claim), there.result(claim=claim)
    assert one.verdict == other.verdict
    assert (one.checks, [f.check for f in one.findings]) == (other.checks, [f.check for f in other.findings])
    resumed = OneShot(network().to(FAKE), rounds=3, canaries=40, participation="every-round", seed=1, **options)
    resumed.restore(there.state())
    np.testing.assert_allclose(resumed.scores()[0], there.scores()[0], atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("device", ["cpu", FAKE])
def test_canaries_have_the_device_and_float_type_of_the_module(dtype, device):
    audit = OneShot(network().to(device=device, dtype=dtype), rounds=1, canaries=40)
    planted = audit.plant(0, clip_norm=1.0)
    exact = OneShot(audit.dim, layers=network(), rounds=1, canaries=40).plant(0, clip_norm=1.0)
    for mine, its in zip([planted.total, *planted.each()], [exact.total, *exact.each()], strict=True):
        assert (mine.dtype, mine.device.type) == (dtype, torch.device(device).type)
        np.testing.assert_allclose(mine.cpu().double().numpy(), its, atol=1e-7, rtol=2 * ROUNDING[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_releases_of_every_float_type_are_scored(dtype):
    plain = audited(5000, lambda x: x)
    rounded = audited(5000, lambda x: torch.from_numpy(x).to(dtype))
    # Rounding is noise of at most half a unit in the last place: far below the noise of the release.
    np.testing.assert_allclose(rounded.scores()[0], plain.scores()[0], atol=3 * ROUNDING[dtype])


@given(
    numbers=st.lists(st.floats(-4, 4, width=16), min_size=5, max_size=5),
    dtype=st.sampled_from(DTYPES),
    device=st.sampled_from([torch.device("cpu"), FAKE]),
)
def test_sums_add_to_tensors_in_both_orders_and_take_their_kind(numbers, dtype, device):
    total = VectorKind().give(np.arange(5, dtype=np.float32))
    tensor = torch.tensor(np.array(numbers, np.float32), device=device).to(dtype)
    expected = np.arange(5) + np.array(numbers)  # numbers up to 4 are rounded, then sums up to 8
    in_place = tensor.clone()
    in_place += total
    for both in (total + tensor, tensor + total, torch.add(tensor, total), in_place, tensor.clone().add_(total)):
        assert (both.dtype, both.device) == (dtype, tensor.device)
        np.testing.assert_allclose(both.cpu().double().numpy(), expected, atol=12 * ROUNDING[dtype] + 1e-6)
    difference = (total - tensor).cpu().double().numpy()
    np.testing.assert_allclose(difference, np.arange(5) - np.array(numbers), atol=12 * ROUNDING[dtype] + 1e-6)
    array = np.array(numbers)
    for both in (total + array, array + total):
        assert type(both) is np.ndarray
        np.testing.assert_array_equal(both, expected)
    assert type(total.sum()) is np.float32


def shards(vector, kinds):
    """Cut a vector into tensors or arrays of different shapes."""
    parts = np.split(vector, [100, 700, 701])
    shaped = [parts[0].reshape(10, 10), parts[1].reshape(2, -1, 3), parts[2].reshape(()), parts[3]]
    return [part if kind is None else torch.tensor(part).to(kind) for part, kind in zip(shaped, kinds, strict=True)]


@given(kinds=st.lists(st.sampled_from([None, "cpu", FAKE]), min_size=4, max_size=4))
@settings(max_examples=20)
def test_a_list_of_tensors_is_the_vector_of_all_their_numbers_on_the_first_device(kinds):
    vector = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    pieces = shards(vector, kinds)
    whole = vectors.flat(pieces)
    assert whole.device == (FAKE if kinds[0] == FAKE else "cpu")
    np.testing.assert_array_equal(vectors.on("cpu", whole), vector)
    named = {f"layer {i}": piece for i, piece in enumerate(pieces)} | {"batches": torch.tensor(3)}
    np.testing.assert_array_equal(vectors.on("cpu", vectors.flat(named)), vector)
    contribution = Contribution(pieces, clients=40.0)
    assert checked_contribution(contribution, dim=1000, clip_norm=1.0, round=0) is contribution
    with pytest.raises(InputError, match="30 clients can reach only 30"):
        checked_contribution(Contribution(pieces, clients=30.0), dim=1000, clip_norm=1.0, round=0)


def test_a_tensor_that_is_spread_over_processes_says_what_to_give():
    class Distributed(torch.Tensor):
        def full_tensor(self):
            return self

    with pytest.raises(InputError, match=r"a Distributed is spread over several processes: give value.full_tensor"):
        vectors.flat(torch.zeros(5).as_subclass(Distributed))


def test_a_vector_is_not_copied_where_it_can_be_used_as_it_is():
    vector = np.zeros(10, np.float32)
    assert vectors.flat(vector) is vector
    tensor = torch.zeros(10)
    assert np.shares_memory(vectors.flat(tensor), tensor.numpy())
    fake = torch.zeros(10, device=FAKE)
    assert vectors.flat(fake).data_ptr() == fake.data_ptr()


@pytest.mark.parametrize("length", [1, 4095, 4096, 4097, 10_000])
def test_norms_on_a_device_are_summed_as_exactly_as_on_the_cpu(length):
    vector = np.random.default_rng(length).standard_normal(length).astype(np.float32) + 1000
    for each in (vector, torch.tensor(vector, device=FAKE)):
        assert vectors.dot(each, each) == pytest.approx(np.sum(vector.astype(np.float64) ** 2), rel=2e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused_on_every_device(bad):
    for device in ("cpu", FAKE):
        audit = OneShot(torch.zeros(5000, device=device), rounds=1, canaries=10, view="updates")
        audit.plant(0, clip_norm=1.0)
        release = torch.ones(5000)
        release[77] = bad
        with pytest.raises(InputError, match=r"round 0 must be finite"):
            audit.observe(0, update=release.to(device))


def test_the_dimension_may_be_a_number_a_module_a_state_dict_or_a_list_of_parameters():
    module = network()
    module[0].bias.requires_grad_(False)
    trained = [p for p in module.parameters() if p.requires_grad]
    size = sum(p.numel() for p in trained)
    for dim in (size, np.int64(size), module, trained, torch.zeros(size), {"all": torch.zeros(size)}):
        assert OneShot(dim, rounds=1, canaries=10).dim == size
    with pytest.raises(InputError, match="at least 2, got 1"):
        OneShot(nn.Linear(1, 1, bias=False), rounds=1, canaries=10)
    with pytest.raises(InputError, match="Generator"):
        OneShot(torch.Generator(), rounds=1, canaries=10)


def test_the_length_of_a_module_is_not_its_dimension():
    module = network()
    audit = OneShot(len(module), rounds=1, canaries=10, view="updates")  # 3 layers
    audit.plant(0, clip_norm=1.0)
    with pytest.raises(InputError, match=r"\(3,\), got \(4909,\).*dim=3"):
        audit.observe(0, update=nn.utils.parameters_to_vector(module.parameters()))


def test_orders_of_loops_with_tensors_and_a_number_as_the_dimension():
    audits = [audited(5000, torch.from_numpy), audited(5000, lambda x: x), audited(torch.zeros(5000), torch.from_numpy)]
    for one, other in itertools.pairwise(audits):
        np.testing.assert_allclose(one.scores()[0], other.scores()[0], atol=1e-6)
