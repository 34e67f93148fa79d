"""Trainings on a device that is not the CPU, which exists in tests only (`fake_device`)."""

import numpy as np
import pytest

from coalmine import OneShot
from coalmine.claims import Poisson
from coalmine.errors import InputError
from coalmine.runs.running import run
from coalmine.runs.settings import run_from_text
from coalmine.simulation import SGD, Adam, CentralTraining, LocalTraining, Mechanism, Training, models
from coalmine.simulation.data import load
from coalmine.simulation.rounds import Rounds
from fake_device import FAKE

NUMBERS = """
[training]
data = "digits"
partition = "iid:20"
model = "logistic"
rounds = 3
noise_multiplier = 0.0
client = {epochs = 1, batch_size = "all"}

[one-shot]
view = ["updates", "final-change"]
canaries = 20

[canife]
every = 2
trials = 4
pool_clients = 4
design = {iterations = 2}
"""
TEXTS = """
[training]
data = "generated-text"
positions = 6
vocabulary_size = 50
clients = 12
model_settings = {embedding = 4, units = 4}
rounds = 3

[secret-sharer]
p_u = 0.2
p_e = 0.5
each = 2
length = 3
references = 50
regime = "central"
steps = 1
reference_share = 0.5
"""


def training(device=None, *, model="mlp", audits=(), **options):
    splits = load("digits")
    options = {"rounds": 3, "workers": 1, "client": LocalTraining()} | options
    return Training(
        model=models.build(model, splits.train.task), data=splits.train, test=splits.test, device=device, audits=audits,
        sampling=Poisson(0.2), mechanism=Mechanism(clip_norm=1.0, quantile=0.5, noise_multiplier=0.5),
        server=Adam(learning_rate=0.01), **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("client", "kernel"),
    [
        (LocalTraining(), "Layerwise"),
        (LocalTraining(batch_size=5), "Stacked"),
        (LocalTraining(optimizer=SGD(learning_rate=0.1, momentum=0.5), batch_size=8, epochs=2), "LeanLoop"),
    ],
)
def test_a_training_on_a_device_is_the_training_on_the_cpu_up_to_rounding(client, kernel):
    here, there = training(client=client), training(FAKE, client=client)
    assert here.kernel == there.kernel == kernel
    for each in (here, there):
        each.run()
    assert there.state.model.device == FAKE
    assert next(there.module().parameters()).device == FAKE
    np.testing.assert_allclose(there.state.model.cpu().numpy(), here.state.model.numpy(), atol=1e-4)
    for mine, its in zip(here.history, there.history, strict=True):
        assert mine == pytest.approx(its, rel=1e-3)


def test_audits_on_a_device_have_the_scores_of_the_cpu_and_resume(tmp_path):
    def audit():
        return OneShot(9610, rounds=3, canaries=20, view="updates", participation="every-round")

    here, there, resumed = (training(device, audits=[audit()]) for device in (None, FAKE, FAKE))
    assert here.dim == 9610
    here.run()
    there.run(until=2, checkpoints=tmp_path)
    resumed.run(checkpoints=tmp_path)
    assert resumed.history == there.load(tmp_path).history
    for mine, its in zip(here.audits[0].scores(), resumed.audits[0].scores(), strict=True):
        np.testing.assert_allclose(its, mine, atol=1e-4)


def test_central_training_runs_on_the_device_of_its_model():
    data = load("digits").train
    models_of = [models.build("logistic", data.task), models.build("logistic", data.task).to(FAKE)]
    here, there = (CentralTraining(model=model, data=data, rounds=2, steps=3) for model in models_of)
    for each in (here, there):
        each.run()
    np.testing.assert_allclose(there.state.model.cpu().numpy(), here.state.model.numpy(), atol=1e-5)


@pytest.mark.parametrize("text", [NUMBERS, TEXTS], ids=["numbers", "texts"])
def test_a_run_is_stopped_on_the_cpu_and_resumed_on_a_device(text, tmp_path, monkeypatch):
    here, directory, used = run(run_from_text(text, "audit.toml"), out=tmp_path / "here"), tmp_path / "there", []
    original = Rounds.run

    def stopped(training, **options):
        original(training, until=2, **options)
        raise KeyboardInterrupt

    def watched(training, **options):
        used.append(training.state.model.device)
        return original(training, **options)

    monkeypatch.setattr(Rounds, "run", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(run_from_text(text, "audit.toml"), out=directory)
    monkeypatch.setattr(Rounds, "run", watched)
    there = run(run_from_text(text, "audit.toml", ["training.device=fake"]), out=directory)
    assert set(used) == {FAKE}
    for mine, its in zip(here.results, there.results, strict=True):
        assert (mine.method, mine.view) == (its.method, its.view)
        if mine.scores is not None:
            np.testing.assert_allclose(its.scores.members, mine.scores.members, atol=1e-3)
    if text == TEXTS:
        check_the_stored_model_is_probed_on_a_device(directory, there.results)


def check_the_stored_model_is_probed_on_a_device(directory, results):
    settings = [
        'device="fake"', "model_settings={embedding = 4, units = 4}",
        f'model_weights="{directory}/weights.safetensors"', f'canaries="{directory}/canaries.json"', "references=50",
    ]  # fmt: skip
    tables = "\n".join(["[training]", *settings[:2], "[secret-sharer]", *settings[2:]])
    losses, again = (
        next(result.scores.members for result in each if result.view == "loss:phrase")
        for each in (results, run(run_from_text(tables, "stored.toml")).results)
    )
    np.testing.assert_allclose(again, losses, atol=1e-4)


def test_what_is_for_the_cpu_only_says_so():
    with pytest.raises(InputError, match="workers must be 1 on the device fake:0, got 2"):
        training(FAKE, workers=2)
    with pytest.raises(InputError, match=r"device must be one that torch .*nonsense"):
        training("nonsense")
