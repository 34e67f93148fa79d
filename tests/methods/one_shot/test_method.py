"""The one-shot audit as the registry and a run use it."""

from types import SimpleNamespace

import pytest

from audits_of import audits_of
from coalmine.claims import Poisson
from coalmine.config import SettingError
from coalmine.errors import InputError
from coalmine.methods import registry
from coalmine.methods.one_shot.method import OneShotSettings
from coalmine.simulation.settings import TrainingSettings
from setting_texts import settings_from_texts

METHOD = registry.get("one-shot")


def settings(*texts):
    return settings_from_texts(texts, TrainingSettings, OneShotSettings)


def test_a_run_has_one_result_per_view():
    training, audit = settings(
        "partition=iid:40", "rounds=3", "client.epochs=1", "model_settings.hidden=70", "view=final,updates,every:2"
    )
    job = METHOD(audit, training=training)
    splits = training.splits()
    module = training.module(splits)
    trained = training.training(splits, module, job.audits(splits, module))
    trained.run()
    results = job.results(trained, {"accuracy": 0.5}).results
    assert [(r.view, r.score_name) for r in results] == [
        ("final", "cosine"), ("updates", "likelihood-ratio"), ("every:2", "max"),
    ]  # fmt: skip
    assert all(r.claim.sampling == Poisson(0.5) and r.metrics["accuracy"] == 0.5 for r in results)
    assert results[0].config["rounds"] == 3
    assert results[1].config["canaries"] == 20


@pytest.mark.parametrize(("cohort", "sampling"), [("fixed:20", "fixed:20/40"), ("poisson:0.5", "fixed:20/40")])
def test_added_canaries_test_the_noise_over_one_clip_norm(cohort, sampling):
    training, audit = settings(
        f"cohort={cohort}", f"participation={sampling}", "partition=iid:40", "rounds=2", "client.epochs=1",
        "noise_multiplier=2.0", "model_settings.hidden=4", "canaries=20", "view=updates",
    )  # fmt: skip
    job = METHOD(audit, training=training)
    splits = training.splits()
    module = training.module(splits)
    trained = training.training(splits, module, job.audits(splits, module))
    trained.run()
    (result,) = job.results(trained, {}).results
    assert (str(result.tested.sampling), result.tested.adjacency) == (sampling, "add-or-remove-one")
    assert result.tested.noise_multiplier * result.tested.sensitivity == 2.0
    # The claim is that of the training: for replacing a client if cohorts have a fixed size.
    assert result.claim == trained.claim(audit.delta)
    assert f"gives ε = {result.tested.epsilon:.3g}" in str(result)
    assert result.about_claim == cohort.startswith("fixed")
    assert ("canaries that are added" in str(result)) == result.about_claim


@pytest.mark.parametrize(
    ("cohort", "participation"), [("poisson:0.3", "poisson:0.3"), ("fixed:5", "fixed:5/50"), ("epochs:2", "epochs:2")]
)
def test_canaries_take_part_like_clients(cohort, participation):
    training, audit = settings(f"cohort={cohort}", "rounds=10", "canaries=20")
    explicit = audit.model_copy(update={"participation": participation})
    like_clients, other = (audits_of(s, training, dim=500, population=50)[0] for s in (audit, explicit))
    assert like_clients.participation == other.participation


def test_without_clipping_the_canaries_need_a_norm():
    training, audit = settings("clip_norm=none", "noise_multiplier=0")
    run = SimpleNamespace(methods={"one-shot": audit}, trainings={"training": training})
    with pytest.raises(SettingError, match="norm") as error:
        METHOD.check(run)
    assert error.value.path == ("one-shot", "norm")
    run.methods["one-shot"] = audit.model_copy(update={"norm": 1.0})
    METHOD.check(run)


@pytest.mark.parametrize(
    ("text", "message"), [("view=everything", "everything"), ("participation=never", "never"), ("score=", "score")]
)
def test_wrong_settings_are_errors(text, message):
    with pytest.raises(InputError, match=message):
        audits_of(settings(text)[1], settings()[0], dim=500, population=50)
