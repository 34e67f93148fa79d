"""Designs of CANIFE and probes of the secret sharer on a device that exists in tests only (`fake_device`)."""

import numpy as np
import pytest

from coalmine.errors import InputError
from coalmine.methods.canife.design import DesignSettings
from coalmine.methods.canife.designed_canaries import DesignedCanaries
from coalmine.methods.secret_sharer.audit import SecretSharer
from coalmine.methods.secret_sharer.phrases import Language, draw_phrases, grid
from coalmine.simulation import SGD, LocalTraining, models
from coalmine.simulation.data import generated_text, load
from coalmine.simulation.flat import parameter_vector
from fake_device import FAKE


def designs(device=None):
    digits = load("digits", partition="iid:12", pool_fraction=0.5)
    return DesignedCanaries(
        model=models.build("logistic", digits.train.task), pool=digits.pool, clients=digits.train, cohort=20,
        client=LocalTraining(optimizer=SGD(learning_rate=0.1, momentum=0.5), batch_size=50), noise_multiplier=0.5,
        settings=DesignSettings(iterations=3), start="pool", target=1, device=device,
    )  # fmt: skip


def check_alike(here, there):
    facts = [each.design(None, clip_norm=1.0, round=0) for each in (here, there)]
    np.testing.assert_allclose(facts[1], facts[0], rtol=1e-3)
    np.testing.assert_allclose(there.samples.inputs, here.samples.inputs, atol=1e-3)
    crafted = [each.crafted(None, clip_norm=1.0) for each in (here, there)]
    np.testing.assert_allclose(crafted[1].updates, crafted[0].updates, atol=1e-4)
    np.testing.assert_allclose(crafted[1].directions, crafted[0].directions, atol=1e-3)


def test_canaries_designed_on_a_device_are_those_of_the_cpu_up_to_rounding():
    check_alike(designs(), designs(FAKE))


def test_texts_designed_on_a_device_are_those_of_the_cpu():
    texts = generated_text(users=12, sentences=4, vocabulary_size=50, positions=6).train
    here, there = (
        DesignedCanaries(
            model=models.build("word-lstm", texts.task, embedding=4, units=4).to(device), pool=texts,
            client=LocalTraining(optimizer=SGD(learning_rate=0.5)), noise_multiplier=0.5, cohort=20,
            settings=DesignSettings(iterations=3),
        )
        for device in ("cpu", FAKE)
    )  # fmt: skip
    check_alike(here, there)


def test_the_final_model_is_probed_on_a_device():
    data = generated_text(users=20, sentences=10, vocabulary_size=100, positions=8).train
    canaries = draw_phrases(Language.of(data), configurations=grid([0.2], [1.0]), each=4)
    model = models.build("word-lstm", data.task, embedding=4, units=4)
    final = parameter_vector(model).numpy()
    audits = [SecretSharer(model, canaries=canaries, references=500, device=device) for device in (None, FAKE)]
    for audit in audits:
        audit.observe(0, model=final)
    here, there = (audit.memorization() for audit in audits)
    np.testing.assert_allclose(there.losses, here.losses, rtol=1e-5)
    assert there.sampled.ranks.tolist() == here.sampled.ranks.tolist()
    assert there.beam_hits.tolist() == here.beam_hits.tolist()


def test_a_device_that_does_not_exist_is_an_error_before_the_training():
    with pytest.raises(InputError, match=r"device must be one that torch .*nonsense"):
        designs("nonsense")
