"""CANIFE in a run: from settings over its job to results, and settings that do not go together."""

from types import SimpleNamespace

import pytest

from coalmine.config import SettingError
from coalmine.errors import InputError
from coalmine.methods.canife.method import CanifeMethod, CanifeSettings
from coalmine.results.verdict import ROUND, USER
from coalmine.simulation.settings import TrainingSettings
from setting_texts import settings_from_texts

FAST = ["partition=iid:40", "rounds=4", "every=2", "client.epochs=1", "client.batch_size=all"]
FAST += ["model_settings.hidden=16", "design.iterations=5", "cohort=every-round"]


def results_of(*texts):
    """The results of a run with these settings, and its job."""
    by_key = {text.partition("=")[0]: text for text in (*FAST, *texts)}
    training, settings = settings_from_texts(list(by_key.values()), TrainingSettings, CanifeSettings)
    job = CanifeMethod(settings, training=training)
    splits = training.splits(pool_fraction=job.pool_fraction)
    module = training.module(splits)
    trained = training.training(splits, module, job.audits(splits, module))
    trained.run()
    return job.results(trained, {"accuracy": 0.5}).results


def test_a_run_has_a_result_for_one_round_and_one_for_all_rounds_composed():
    one_round, composed = results_of("trials=12")
    assert (one_round.unit, one_round.view) == (ROUND, "frozen")
    assert (composed.unit, composed.view) == (USER, "frozen, composed")
    assert one_round.claim.rounds == 1
    assert composed.claim.rounds == 4
    assert one_round.arrays["scores"].shape == one_round.arrays["present"].shape == (24, 1)
    assert one_round.config["trials"] == composed.config["trials"] == 12
    assert one_round.metrics["accuracy"] == 0.5
    assert one_round.unit.name == "one user, one round"


def test_a_running_training_gives_one_score_per_round_and_canary():
    results = results_of("mode=running", "trials=4", "canaries=3", "pool_clients=3", "noise_multiplier=0")
    (result,) = (result for result in results if result.unit is ROUND)
    assert result.view == "running"
    assert result.claim is None
    assert result.details["training_claim"] is None
    (period,) = result.details["rounds"]
    assert period["with_scores"] + period["without_scores"] == 12
    assert result.estimates[0].method == "one-run"
    assert result.ceiling >= result.estimates[0].epsilon
    assert any("could exceed 0" in warning for warning in result.warnings) == (result.ceiling == 0)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("trial=3", "trials"),
        ("mode=thawed", "mode"),
        ("trials=1", "trials = '1'.*at least 2"),
        ("canaries=1e6", "canaries.*1000"),
        ("pool_fraction=0", "pool_fraction"),
        ("pool_clients=999", "pool_clients must be between 1 and"),
        ("design.target=seven", "design.target"),
        ("client.optimizer=adam", "SGD"),
    ],
)
def test_bad_settings_raise_an_error(setting, message):
    with pytest.raises(InputError, match=message):
        results_of(setting)


def run_settings(training, **methods):
    return SimpleNamespace(trainings={"training": training}, methods=methods)


def test_settings_are_checked_together():
    with pytest.raises(SettingError, match="clip_norm") as error:
        CanifeMethod.check(run_settings(TrainingSettings(clip_norm="none"), canife=CanifeSettings()))
    assert error.value.path == ("training", "clip_norm")
    CanifeMethod.check(run_settings(TrainingSettings(), canife=CanifeSettings(mode="running")))
