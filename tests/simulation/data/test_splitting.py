"""Partitions and splits by user."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coalmine.errors import InputError
from coalmine.simulation.data import FederatedData, Splits, Task
from coalmine.simulation.data.splitting import (
    SplitOptions,
    balanced,
    dirichlet,
    iid,
    parse_partition,
    repartition,
    split_by_user,
)


def users_of(sizes, *, classes=4, seed=0):
    """Data whose inputs are row numbers, so that each example can be identified."""
    count = sum(sizes)
    stops = np.cumsum(sizes)
    return FederatedData(
        inputs=np.arange(count, dtype=np.float64)[:, None],
        targets=np.random.default_rng(seed).integers(classes, size=count),
        bounds=np.stack([stops - sizes, stops], axis=1),
        names=[f"user-{i}" for i in range(len(sizes))],
        task=Task(input_shape=(1,), classes=classes),
    )


def held(data):
    return np.sort(data.pooled().inputs[:, 0]).astype(int).tolist()


many_sizes = st.lists(st.integers(1, 12), min_size=1, max_size=15)


@given(many_sizes, st.integers(1, 20), st.integers(0, 5), st.sampled_from(["iid", "dirichlet"]))
def test_every_example_goes_to_exactly_one_client_and_sizes_differ_by_at_most_one(sizes, clients, seed, kind):
    data = users_of(sizes)

    def deal():
        return iid(data, clients, seed) if kind == "iid" else dirichlet(data, 0.3, clients, seed)

    if clients > sum(sizes):
        with pytest.raises(InputError, match=rf"{clients} clients cannot share {sum(sizes)} examples"):
            deal()
        return
    dealt = deal()
    assert held(dealt) == list(range(sum(sizes)))
    assert len(dealt) == clients
    assert dealt.sizes.max() - dealt.sizes.min() <= 1
    assert dealt.inputs is data.inputs


@given(many_sizes, st.integers(1, 6))
def test_balanced_clients_have_one_size_one_user_and_no_common_example(sizes, size):
    data = users_of(sizes)
    if max(sizes) < size:
        with pytest.raises(InputError, match=f"leaves no client: the largest has {max(sizes)} examples"):
            balanced(data, size)
        return
    cut = balanced(data, size)
    assert (cut.sizes == size).all()
    assert len(cut) == sum(n // size for n in sizes)
    assert len(set(held(cut))) == len(held(cut))
    owner = np.repeat(np.arange(len(sizes)), sizes)
    for name, client in zip(cut.names, cut, strict=True):
        assert set(owner[client.inputs[:, 0].astype(int)]) == {int(name.split("-")[1].split("#")[0])}
        assert np.shares_memory(client.inputs, data.inputs)


@pytest.mark.parametrize(
    "deal", [lambda data, seed: iid(data, 5, seed), lambda data, seed: dirichlet(data, 1.0, 5, seed)]
)
def test_a_partition_is_a_function_of_its_seed(deal):
    data = users_of([50, 50])
    first, second, other = (deal(data, seed).indices for seed in (0, 0, 1))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_a_partition_of_some_clients_leaves_the_others_out():
    data = users_of([5, 5, 5]).subset([0, 2])
    assert held(iid(data, 4)) == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]


def test_a_partition_of_a_partition_keeps_every_example_once():
    data = iid(users_of([20, 10]), 6, 1)
    assert held(balanced(data, 5)) == list(range(30))
    assert held(dirichlet(data, 0.1, 7)) == list(range(30))


def label_skew(data):
    """Mean over clients of the share of a client's most frequent label."""
    return np.mean([np.bincount(client.targets).max() / len(client) for client in data])


def test_a_smaller_alpha_gives_fewer_labels_a_client():
    data = users_of([4000], classes=10)
    skews = [label_skew(dirichlet(data, alpha, 40)) for alpha in (0.1, 10.0, 1000.0)]
    assert skews[0] > 0.8 > skews[1] > 0.25 > skews[2]


def test_a_large_alpha_is_nearly_iid():
    # 100 clients of 100 examples, 4 equal labels: the share of a label has standard deviation 0.043 a client; the mean
    # over clients of the largest of four stays below 0.35 with a probability beyond any doubt.
    data = users_of([10_000])
    assert label_skew(dirichlet(data, 1e5, 100)) < 0.35


def test_a_tiny_alpha_still_deals_every_example():
    data = users_of([300], classes=5)
    assert held(dirichlet(data, 1e-300, 13)) == list(range(300))


def test_a_dirichlet_partition_needs_one_label_an_example():
    tokens = np.ones((4, 3), dtype=np.int16)
    data = FederatedData(
        inputs=tokens[:, :-1],
        targets=tokens[:, 1:],
        bounds=np.array([[0, 4]]),
        names=["a"],
        task=Task(input_shape=(2,), classes=5, tokens=5, per_position=True, ignored=0),
    )
    with pytest.raises(InputError, match="one label"):
        dirichlet(data, 0.1, 2)


@pytest.mark.parametrize(
    "text",
    [
        *("", "idd:5", "natural:3", "iid", "iid:", "iid:0", "iid:-1", "iid:1.5", "iid:3/4", "balanced:", "balanced:0"),
        *("dirichlet:0.1", "dirichlet:100/0", "dirichlet:0/5", "dirichlet:nan/5", "dirichlet:x/5"),
    ],
)
def test_a_partition_that_is_not_known_raises_with_those_that_are(text):
    with pytest.raises(InputError, match=r"natural, iid:CLIENTS|must be"):
        parse_partition(text)


@given(st.lists(st.integers(1, 5), min_size=5, max_size=30), st.floats(0.01, 0.4), st.floats(0, 0.4), st.integers(0, 9))
def test_splits_are_disjoint_complete_and_the_same_for_the_same_seed(sizes, test_fraction, pool_fraction, seed):
    options = SplitOptions(test_fraction=test_fraction, pool_fraction=pool_fraction, seed=seed)
    data = users_of(sizes)
    first, second = split_by_user(data, options), split_by_user(data, options)
    parts = [part for part in (first.train, first.test, first.pool) if part is not None]
    assert sorted(name for part in parts for name in part.names) == sorted(data.names)
    assert (first.pool is None) == (pool_fraction == 0)
    assert list(first.train.names) == list(second.train.names)
    assert list(first.test.names) == list(second.test.names)
    assert abs(len(first.test) - test_fraction * len(sizes)) <= 1


def test_another_seed_gives_other_test_users():
    data = users_of([1] * 100)
    assert split_by_user(data, SplitOptions(seed=0)).test.names != split_by_user(data, SplitOptions(seed=1)).test.names


def test_test_users_that_the_data_brings_are_kept():
    data, test = users_of([*[2] * 10, 3, 4]), {"user-10", "user-11"}
    splits = split_by_user(data, SplitOptions(pool_fraction=0.25, test_names=test))
    assert splits.test.sizes.tolist() == [3, 4]
    assert len(splits.train) + len(splits.pool) == 10
    with pytest.raises(InputError, match="comes with test users"):
        split_by_user(data, SplitOptions(test_fraction=0.2, test_names=test))


def test_users_with_too_few_examples_are_left_out():
    splits = split_by_user(users_of([1, 5, 2, 5, 5, 1]), SplitOptions(min_examples=5))
    assert sorted([*splits.train.names, *splits.test.names]) == ["user-1", "user-3", "user-4"]
    with pytest.raises(InputError, match=r"min_examples=6 .* largest of 6 has 5"):
        split_by_user(users_of([1, 5, 2, 5, 5, 1]), SplitOptions(min_examples=6))


@pytest.mark.parametrize(
    "settings",
    [
        {"test_fraction": 0.0},
        {"test_fraction": 1.0},
        {"test_fraction": float("nan")},
        {"pool_fraction": -0.1},
        {"pool_fraction": 1.0},
    ],
)
def test_invalid_split_options_raise(settings):
    with pytest.raises(InputError):
        split_by_user(users_of([9] * 9), SplitOptions(**settings))


def test_too_few_users_to_split_raise():
    with pytest.raises(InputError, match=r"1 users .* are too few"):
        split_by_user(users_of([9]), SplitOptions())
    with pytest.raises(InputError, match=r"2 users .* are too few .* pool"):
        split_by_user(users_of([9, 9]), SplitOptions(pool_fraction=0.1))


def test_test_and_pool_get_clients_of_the_size_that_training_clients_have():
    splits = Splits(train=users_of([40] * 10), test=users_of([40, 40]), pool=users_of([5]))
    for text in ("iid:20", "dirichlet:1/20"):
        dealt = repartition(splits, text)
        assert (len(dealt.train), len(dealt.test), len(dealt.pool)) == (20, 4, 1)
        assert held(dealt.test) == list(range(80))
    assert repartition(splits, "natural") is splits
    cut = repartition(splits, "balanced:5")
    assert (len(cut.train), len(cut.test), len(cut.pool)) == (80, 16, 1)
