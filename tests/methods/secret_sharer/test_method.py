"""The method in a run: trained models, stored models, and settings that do not go together."""

import inspect
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from coalmine.config import SettingError
from coalmine.errors import InputError
from coalmine.methods import registry
from coalmine.methods.secret_sharer.audit import SecretSharer
from coalmine.methods.secret_sharer.method import SecretSharerSettings, TextTrainingSettings
from coalmine.results.io import write_scores
from coalmine.results.verdict import PHRASE, USER
from setting_texts import settings_from_texts

METHOD = registry.get("secret-sharer")
SMALL = [
    *("vocabulary_size=120", "rounds=3", "model_settings.embedding=8", "model_settings.units=12"),
    *("references=3000", "each=3", "clients=40"),
]
QUERY = ["references=3000", "model_settings.embedding=8", "model_settings.units=12"]


def settings_of(*texts):
    return settings_from_texts(texts, TextTrainingSettings, SecretSharerSettings)


def run_of(training, audit, table="training", **methods):
    """Return what a check reads of a run."""
    return SimpleNamespace(trainings={table: training}, methods={"secret-sharer": audit, **methods})


def run_method(*texts, directory=None):
    """Check, train and audit, as a run does."""
    training, audit = settings_of(*texts)
    METHOD.check(run_of(training, audit))
    job = METHOD(audit, training=training, directory=directory)
    trained = None
    if job.needs_training:
        splits = job.insert(training.splits())
        module = training.module(splits)
        trained = job.build_training(splits, module) or training.training(splits, module)
        trained.run()
    method_results = job.results(trained, {"perplexity": 12.0})
    if directory is not None:
        write_scores(method_results.results, directory, method_results.extras)
    return method_results


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    return run_method(*SMALL, directory=directory), directory


def stored(directory, *texts):
    return run_method(
        *QUERY, f"model_weights={directory / 'weights.safetensors'}", f"canaries={directory / 'canaries.json'}", *texts
    )


def test_results_name_their_unit_and_come_with_the_memorization(saved):
    method_results, directory = saved
    views = {result.view: result.unit for result in method_results.results}
    assert views == {
        "exposure:user": USER,
        "exposure:phrase": PHRASE,
        "loss:user": USER,
        "loss:phrase": PHRASE,
    }
    assert method_results.summary is None
    assert method_results.results[0].metrics["perplexity"] == 12.0
    assert method_results.results[0].config["rounds"] == 3
    assert json.loads((directory / "memorization.json").read_text()) == json.loads(
        json.dumps(method_results.extras["memorization"])
    )


def test_the_terminal_shows_what_was_memorized_and_then_the_main_views(saved):
    first, *others = METHOD.tables(saved[0])
    inserted = saved[0].results[0].metrics["inserted"]
    assert first.title.startswith(f"{inserted:.0f} inserted phrases")
    assert "3,000 random ones" in first.title
    assert len(first.rows) == 4
    assert [table.title.split()[1] for table in others] == ["exposure:user", "exposure:phrase"]


def test_the_settings_have_the_defaults_of_the_python_interface():
    parameters, settings = inspect.signature(SecretSharer).parameters, SecretSharerSettings()
    for name in ("prefix", "references", "limit", "width"):
        assert getattr(settings, name) == parameters[name].default


def test_a_stored_model_is_audited_without_training(saved):
    method_results, directory = saved
    weights = directory / "weights.safetensors"
    again = stored(directory, f"reference_weights={weights}")
    ranks, first = ([c["rank"] for c in f.extras["memorization"]["canaries"]] for f in (again, method_results))
    assert ranks == first
    assert {result.view for result in again.results} == {
        f"{score}:{unit}" for score in ("exposure", "loss", "calibrated") for unit in ("user", "phrase")
    }
    assert again.results[0].bound.epsilon == method_results.results[0].bound.epsilon


def test_settings_of_an_insertion_are_refused_for_a_stored_model(saved):
    with pytest.raises(SettingError, match="twins") as error:
        stored(saved[1], "twins=2")
    assert error.value.path[1] == "twins"
    with pytest.raises(SettingError, match="canaries"):
        METHOD.check(run_of(*settings_of("model_weights=w")))
    with pytest.raises(SettingError, match="model_weights"):
        METHOD.check(run_of(*settings_of("canaries=c")))


def test_any_model_can_be_audited(tmp_path):
    (tmp_path / "my.py").write_text(
        "from torch import nn\n\ndef build():\n"
        "    return nn.Sequential(nn.Embedding(30, 6), nn.Linear(6, 30))\n\n"
        "def wide():\n    return nn.Sequential(nn.Embedding(30, 6), nn.Linear(6, 31))\n"
    )
    torch.manual_seed(0)
    weights, canaries = tmp_path / "w.safetensors", tmp_path / "canaries.json"
    save_file(nn.Sequential(nn.Embedding(30, 6), nn.Linear(6, 30)).state_dict(), weights)
    rng = np.random.default_rng(0)
    entries = [{"tokens": rng.integers(4, 30, 4).tolist(), "planted": i < 5} for i in range(10)]
    content = {"size": 30, "canaries": entries}

    def audit(*texts, model="build"):
        return run_method(
            *(f"model={tmp_path}/my.py:{model}", f"model_weights={weights}", f"canaries={canaries}"),
            *("references=500", *texts),
        )

    canaries.write_text(json.dumps(content))
    assert [result.view for result in audit().results] == ["exposure:phrase", "loss:phrase"]  # the file has no users
    for texts, model, fact in (([], "wide", "31"), (["prefix=4"], "build", "prefix = 4")):
        with pytest.raises(InputError, match=fact):
            audit(*texts, model=model)
    canaries.write_text(json.dumps({"size": 30, "canaries": [entry | {"planted": True} for entry in entries]}))
    everything = audit()
    assert everything.results == []
    assert "held-out" in everything.summary
    canaries.write_text(json.dumps({"size": 30, "canaries": [{"tokens": [4, 5]}]}))
    with pytest.raises(InputError, match="planted"):
        audit()
    canaries.write_text(json.dumps(content))
    weights.write_bytes(b"nothing")
    with pytest.raises(InputError, match="safetensors"):
        audit()


@pytest.mark.parametrize(
    ("setting", "fact"),
    [
        ("p_u=1.5", "p_u"),
        ("p_e=-0.1", "p_e"),
        ("prefix=5", "prefix = 5"),
        ("width=1e9", "at most 10000"),
        ("data=digits", "digits"),
        ("positions=6,7", "positions"),
        ("length=40", "40 words"),
        ("reference_share=1", "reference_share"),
        ("widht=3", "width"),
    ],
)
def test_wrong_settings_are_errors(setting, fact):
    with pytest.raises(InputError, match=fact):
        run_method(*[text for text in SMALL if text.split("=")[0] != setting.split("=")[0]], setting)


@pytest.mark.parametrize(
    "more",
    [
        ["regime=central", "steps=5"],
        ["users=shuffled"],
        ["clip_norm=0.5", "noise_multiplier=1.0", "reference_share=0.3"],
    ],
)
def test_every_regime_has_its_views(more):
    results = {result.view: result for result in run_method(*SMALL, *more).results}
    assert ("calibrated:user" in results) == ("reference_share=0.3" in more)
    assert (results["exposure:user"].claim is not None) == ("noise_multiplier=1.0" in more)
    assert results["exposure:phrase"].claim is None


def test_central_training_is_refused_where_it_cannot_be():
    with pytest.raises(InputError, match="clip_norm = 1"):
        run_method(*SMALL, "regime=central", "clip_norm=1")
    training, audit = settings_of("regime=central")
    for name in ("one-shot", "canife"):
        with pytest.raises(SettingError, match=name) as error:
            METHOD.check(run_of(training, audit, **{name: None}))
        assert error.value.path == ("secret-sharer", "regime")
        METHOD.check(run_of(training, audit, table="text-training", **{name: None}))
