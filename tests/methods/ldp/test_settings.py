"""Settings of the LDP audit: users' functions, and what is refused."""

import pytest

from coalmine.errors import InputError
from coalmine.methods.ldp.crafters import CRAFTERS
from coalmine.methods.ldp.settings import LDPSettings
from setting_texts import settings_from_texts


def read(*texts):
    (settings,) = settings_from_texts(texts, LDPSettings)
    return settings


def test_what_is_listed_twice_is_audited_once():
    settings = read("epsilon=1,2,1.0", "crafter=all,benign", "gradient_norm=2,2")
    assert [mechanism.epsilon for mechanism in settings.mechanisms()] == [1.0, 2.0]
    assert [crafter.name for crafter in settings.crafters()] == list(CRAFTERS)


def test_the_clip_norm_is_the_mechanisms_and_the_dummy_gradients():
    settings = read("clip_norm=2.5", "crafter=dummy-gradient", "epsilon=1")
    assert settings.mechanisms()[0].norm == settings.crafters()[0].norm == 2.5


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("epsilon=1,-2", "epsilon = '-2' .*more than 0"),
        ("epsilon=nan", "epsilon = 'nan' .*more than 0"),
        ("epsilon=1,one", "epsilon = 'one'"),
        ("gradient_norm=1,long", "gradient_norm = 'long'"),
        ("trials=1.5e0", "trials = '1.5e0'"),
        ("trials=1", "trials = '1' .*at least 2"),
        ("trials=many", "trials = 'many'"),
        ("clip_norm=0", "clip_norm = '0' .*more than 0"),
        ("clip_norm=-1", "clip_norm = '-1' .*more than 0"),
        ("view=gray-box", "view"),
        ("learning_rate=0", "learning_rate = '0' .*more than 0"),
        ("epsilons=1", "epsilon"),
        ("confidence=1.5", "confidence = '1.5' .*less than 1"),
    ],
)
def test_wrong_settings_are_refused_when_read(setting, message):
    with pytest.raises(InputError, match=message):
        read(setting)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("crafter=benin", 'unknown crafter "benin". Did you mean "benign"'),
        ("mechanism=laplace", 'unknown mechanism "laplace".*ldp-sgd, privunit, gaussian, path.py:function'),
        ("delta=0.1", "ldp-sgd .*delta = 0.1"),
        ("data=digit", "digits"),
    ],
)
def test_settings_that_do_not_work_are_refused_before_the_first_trial(setting, message):
    with pytest.raises(InputError, match=message):
        read(setting).audit()


def test_a_norm_of_the_dummy_gradient_needs_the_dummy_gradient():
    with pytest.raises(InputError, match=r"gradient_norm .*dummy-gradient"):
        read("crafter=benign", "gradient_norm=2").crafters()


def test_a_users_mechanism_makes_a_single_claim(tmp_path):
    (tmp_path / "mine.py").write_text("def noisy(gradient, rng): return gradient\n")
    with pytest.raises(InputError, match="epsilon to one number"):
        read(f"mechanism={tmp_path}/mine.py:noisy", "epsilon=1,2").mechanisms()
