"""The mechanism audit as the registry, a run and the command line use it."""

from types import SimpleNamespace

import pytest

from coalmine.config import SettingError
from coalmine.errors import InputError
from coalmine.methods import registry
from coalmine.methods.mechanism.method import MechanismSettings
from setting_texts import settings_from_texts

METHOD = registry.get("mechanism")


def result(*texts):
    (settings,) = settings_from_texts(texts, MechanismSettings)
    return METHOD(settings).results(None, {}).results[0]


def test_every_setting_is_an_option():
    assert list(METHOD.options) == list(MechanismSettings.model_fields)
    assert METHOD.training_type is None


def test_the_gaussian_mechanism_is_audited_against_its_own_guarantee():
    audited = result("noise_multiplier=1", "dim=20000", "canaries=500", "calls=16")
    assert audited.claim.epsilon == pytest.approx(4.377, abs=0.01)
    assert audited["gaussian-shift"].epsilon == pytest.approx(4.4, abs=1)
    assert audited.config["noise_multiplier"] == 1.0
    assert audited.config["family"] == "hadamard"


def test_a_function_is_audited_against_a_claim(tmp_path):
    (tmp_path / "mine.py").write_text("def leaky(total):\n    return total + 0.001\n")
    audited = result(f"function={tmp_path}/mine.py:leaky", "dim=20000", "calls=16", "claim=2")
    assert audited.claim.epsilon == 2.0
    assert audited.refuted
    assert result(f"function={tmp_path}/mine.py:leaky", "dim=20000").claim is None


@pytest.mark.parametrize(
    ("texts", "message", "name"),
    [
        ([], "noise_multiplier or function .* must be set", "noise_multiplier"),
        (["noise_multiplier=1", "function=mine.py:f", "claim=2"], "ε = 2 and a noise multiplier of 1", "claim"),
    ],
)
def test_a_mechanism_must_be_named_and_have_one_claim(texts, message, name):
    (settings,) = settings_from_texts(texts, MechanismSettings)
    run = SimpleNamespace(methods={"mechanism": settings}, trainings={})
    with pytest.raises(SettingError, match=message) as error:
        METHOD.check(run)
    assert error.value.path == ("mechanism", name)
    with pytest.raises(SettingError):
        METHOD(settings)


def test_a_function_is_held_to_its_claimed_noise_multiplier(tmp_path):
    """The claimed curve refutes what a pair of ε and δ leaves undecided."""
    code = "import numpy as np\nrng = np.random.default_rng(0)\n"
    code += "def half(total):\n    return total + rng.normal(0, 1, total.size)\n"
    (tmp_path / "mine.py").write_text(code)
    terms = [f"function={tmp_path}/mine.py:half", "dim=2000", "canaries=200"]
    refuted, honest = result(*terms, "noise_multiplier=2"), result(*terms, "noise_multiplier=1")
    assert (refuted.claim.noise_multiplier, refuted.verdict.value) == (2.0, "refuted")
    assert not honest.refuted


def test_laplace_noise_keeps_a_claim_for_updates_limited_in_l1_and_half_of_it_does_not(tmp_path):
    code = "import numpy as np\nrng = np.random.default_rng(0)\n"
    for name, scale in (("enough", 1.0), ("half", 0.5)):
        code += f"def {name}(total):\n    return total + rng.laplace(0, {scale}, total.size)\n"
    (tmp_path / "mine.py").write_text(code)
    terms = ["dim=500", "canaries=50", "claim=1", "delta=0"]
    enough, half = (result(f"function={tmp_path}/mine.py:{name}", *terms, "norm=l1") for name in ("enough", "half"))
    assert (enough.findings, enough.refuted, enough.config["norm"]) == ([], False, "l1")
    assert half.refuted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("norm=l3", "norm"),
        ("noise_multiplier=-1", "noise_multiplier .* at least 0"),
        ("dim=1", "dim .* at least 2"),
        ("function=nowhere.py:f", "nowhere.py"),
        ("function=nowhere", "path.py:function"),
    ],
)
def test_wrong_settings_are_errors(text, message):
    with pytest.raises(InputError, match=message):
        result(text)
