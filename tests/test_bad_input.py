"""Input that would silently mean something else gets a sentence; verdicts say what would help."""

import numpy as np
import pytest
import torch

import coalmine as cm
from coalmine import vectors
from coalmine.claims.claim import parse_claim
from coalmine.testing import assert_private


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("noise=1,rounds=0", "rounds of a claim .* at least 1, got 0"),
        ("noise=inf", "finite numbers, got 'noise=inf'"),
        ("epsilon=inf", "finite numbers"),
        ("noise=1,rounds=5,noise=2", "must look like"),
        ("epsilon=3,epsilon=3", "must look like"),
        ("four", "must look like .* epsilon=8, .* got 'four'"),
    ],
)
def test_claims_that_mean_nothing_are_refused(text, fact):
    with pytest.raises(cm.InputError, match=fact):
        parse_claim(text, delta=1e-5)


def test_a_bare_number_is_a_claimed_epsilon():
    assert parse_claim("4", delta=1e-5) == parse_claim("epsilon=4", delta=1e-5)


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"model": np.zeros(3)}, "either update=.* or model="),
        ({"divisor": 0}, "divisor must be a positive number, got 0"),
        ({"divisor": np.inf}, "divisor must be a positive number"),
        ({"round": -1}, "round .* got -1"),
    ],
)
def test_a_release_is_checked_where_it_is_made(change, fact):
    with pytest.raises(cm.InputError, match=fact):
        cm.Audit().observe(**{"round": 0, "update": np.zeros(3, dtype=np.float32)} | change)


def test_a_complex_update_is_refused():
    with pytest.raises(cm.InputError, match="real numbers, got complex"):
        vectors.flat(np.ones(3, dtype=complex))


@pytest.mark.parametrize("update", ["abc", None, 3])
def test_a_client_without_arrays_is_refused(update):
    with pytest.raises(cm.InputError, match="floating-point"):
        cm.replay(lambda clients: np.zeros(3), [cm.checks.Client(update)] * 3, clip_norm=1.0, noise_multiplier=1.0)


def test_rounds_are_planted_in_order():
    audit = cm.OneShot(200, rounds=3, canaries=5, view="updates", participation="every-round")
    with pytest.raises(cm.InputError, match="round 1 before round 0"):
        audit.plant(1, clip_norm=1.0)
    audit.plant(0, clip_norm=1.0)
    audit.skip(1)
    assert audit.plant(2, clip_norm=1.0) is not None


def test_a_mechanism_is_a_function():
    with pytest.raises(cm.InputError, match=r"mechanism must be a function, got int"):
        assert_private(5, epsilon=1.0)


@pytest.mark.parametrize(("dim", "kind"), [(None, "NoneType"), ({1, 2}, "set"), (object(), "object")])
def test_a_dim_without_parameters_is_refused(dim, kind):
    with pytest.raises(cm.InputError, match=f"model must be the number of parameters, or what has them .* got {kind}"):
        cm.OneShot(dim, rounds=2)


def test_parameters_of_a_module_are_its_dim():
    module = torch.nn.Linear(30, 20)
    assert cm.OneShot(module.parameters(), rounds=2, canaries=10).dim == 620


@pytest.mark.parametrize("clip_norm", [None, "1.0"])
def test_a_clip_norm_that_is_no_number_is_refused(clip_norm):
    with pytest.raises(cm.InputError, match=f"clip_norm must be a number, got {clip_norm!r}"):
        cm.OneShot(50, rounds=2, canaries=10).plant(0, clip_norm=clip_norm)


def test_a_count_in_quotes_is_shown_with_them():
    with pytest.raises(cm.InputError, match=r"the number of parameters .* at least 2, got '5000'"):
        cm.OneShot("5000", rounds=2)


@pytest.mark.parametrize("vector", [[None, np.ones(20)], [np.ones(30), None]])
def test_a_release_without_a_tensor_is_refused(vector):
    audit = cm.OneShot(50, rounds=2, canaries=10, view="updates")
    audit.plant(0, clip_norm=1.0)
    with pytest.raises(cm.InputError, match="got None"):
        audit.observe(0, update=vector)


def test_clients_in_a_dict_are_refused_with_what_to_pass():
    clients = {"ann": np.ones(3), "bob": np.ones(3)}
    with pytest.raises(cm.InputError, match=r"clients must be a list .* got dict"):
        cm.replay(sum, clients, clip_norm=1.0, noise_multiplier=1.0)


def test_a_model_without_numbers_is_not_probed():
    from coalmine.methods.secret_sharer.audit import SecretSharer  # the canaries are not looked at

    for module, device in ((torch.nn.Linear(3, 2), "meta"), (torch.nn.Linear(3, 2, device="meta"), None)):
        with pytest.raises(cm.InputError, match="'meta'"):
            SecretSharer(module, canaries=None, device=device)
