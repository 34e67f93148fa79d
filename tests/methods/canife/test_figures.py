"""Figures and the report's section are drawn from results read back from disk, and tell bounds from estimates."""

import base64
import json
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest

from canary_models import CLIENT
from coalmine.claims import Claim, Poisson
from coalmine.methods.canife import method as section
from coalmine.methods.canife.audit import Canife
from coalmine.methods.canife.canaries import GivenUpdates
from coalmine.methods.canife.design import DesignSettings
from coalmine.methods.canife.designed_canaries import DesignedCanaries
from coalmine.report.page import method_section
from coalmine.results.result import MethodResults, Result
from coalmine.simulation import Mechanism, Training
from coalmine.simulation.data.text import Vocabulary
from federations import federation, mlp, texts, word_model

CLAIM = Claim(noise_multiplier=1.0, delta=1e-5)


def read_back(audit, **arguments):
    """The plain result that is read from disk after the audit's was written."""
    result = audit.result(claim=CLAIM, **arguments)
    content = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    return replace(Result.from_dict(content), scores=result.scores, arrays=result.arrays)


def audited(module, data, pool, count=2, **settings):
    canaries = DesignedCanaries(
        model=module, pool=pool, client=CLIENT, noise_multiplier=1.0, cohort=4, count=count,
        settings=DesignSettings(iterations=2),
    )  # fmt: skip
    audit = Canife(canaries=canaries, rounds=4, every=2, trials=12, **settings)
    mechanism = Mechanism(clip_norm=0.5, noise_multiplier=1.0)
    Training(
        model=module, data=data, rounds=4, sampling=Poisson(0.5), client=CLIENT, mechanism=mechanism,
        audits=[audit],
    ).run()  # fmt: skip
    return audit


@pytest.fixture(scope="module")
def images():
    return audited(mlp(), federation([2] * 8), federation([2] * 6, seed=3))


def section_of(*results):
    """The figures and the HTML of the report's section."""
    figures = {}
    return figures, method_section(MethodResults(method="canife", results=results), figures, {})


def test_the_section_shows_rounds_composition_and_samples_of_saved_results(images):
    typed = images.result(claim=CLAIM)
    plain = read_back(images)
    composed = typed.composed_result()
    figures, html = section_of(plain, composed)
    for part in (
        "data:image/png",
        "from gaussian-shift",
        "as in the paper",
        "canary present",
        "an adversary who knows",
    ):
        assert part in html
    assert section_of(typed, composed)[0] == figures
    _, spec = figures["canife-1-rounds"]
    drawn = [row["epsilon"] for row in spec["data"]["values"]]
    for period in plain.details["rounds"]:
        assert next(e["epsilon"] for e in period["estimates"] if e["valid"]) in drawn
    assert {row["claim"] for row in spec["layer"][0]["data"]["values"]} == {plain.claim.epsilon}


def test_canaries_are_pictures_with_their_pixels(images):
    result = read_back(images)
    shown = section.samples(result)
    content = base64.b64decode(shown[0]["png"].partition(",")[2])
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", content[16:24]) == (8, 8)
    start = content.index(b"IDAT") + 4
    lines = np.frombuffer(zlib.decompress(content[start : content.index(b"IEND")]), np.uint8).reshape(8, 9)
    low, high = result.details["canaries"][0]["range"]
    expected = np.round(255 * (result.arrays["inputs"][0, 0].astype(float) - low) / (high - low))
    assert np.array_equal(lines[:, 1:], expected)
    assert not lines[:, 0].any()
    assert f"class {int(result.arrays['targets'][0])}" in shown[0]["caption"]


def test_texts_are_shown_in_words():
    words = Vocabulary(["<pad>", "<begin>", "<end>", "<unknown>", *"abcdefg"])
    data, pool = texts([2] * 8), texts([2] * 6, seed=3)
    object.__setattr__(pool, "vocabulary", words)
    result = read_back(audited(word_model(), data, pool, count=1))
    (shown,) = section.samples(result)
    inputs, targets = result.arrays["inputs"][0], result.arrays["targets"][0]
    assert shown["text"] == words.decode([*inputs.tolist(), int(targets[-1])])


def test_vectors_have_figures_but_no_picture_and_infinite_values_end_at_the_edge():
    audit = Canife(canaries=GivenUpdates(np.eye(1, 5)), rounds=1, every=1, trials=20)
    for trial in range(20):
        inserted = audit.plant(0, clip_norm=1.0, trial=trial)
        total = np.zeros(5, dtype=np.float32) if inserted is None else inserted.total
        audit.observe(0, update=total + np.float32(0.001 * trial), trial=trial, divisor=1.0)
    result = read_back(audit)
    assert any(e["epsilon"] == "inf" for e in result.details["rounds"][0]["estimates"])
    figures, _ = section_of(result)
    assert section.samples(result) == []
    assert all(np.isfinite(row["epsilon"]) for row in figures["canife-1-rounds"][1]["data"]["values"])
