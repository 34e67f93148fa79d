"""Figures of a CANIFE audit are drawn from what it wrote, and tell bounds from estimates."""

import base64
import json
import struct
import zlib

import numpy as np
import pytest

from coalmine.accounting.sampling import EveryRound
from coalmine.drawing.files import BOUND, ESTIMATE, THEORY
from coalmine.drawing.pictures import png_uri
from coalmine.errors import InputError
from coalmine.methods.canife import figures as canife_figures
from coalmine.methods.canife.audit import Canife
from coalmine.methods.canife.canaries import GivenUpdates
from coalmine.methods.canife.design.loop import DesignSettings
from coalmine.methods.canife.designed_canaries import DesignedCanaries
from coalmine.protocol import Release
from coalmine.simulation import SGD, FixedClipping, LocalTraining, Mechanism, PoissonCohorts, Training
from coalmine.simulation.data.vocabulary import Vocabulary
from federations import federation, mlp, texts, word_model

CLIENT = LocalTraining(optimizer=SGD(learning_rate=0.5))


def written(audit, **terms):
    """What a result is after it was written and read again."""
    found = audit.result(noise_multiplier=1.0, **terms)
    return json.loads(json.dumps(found.to_dict(), allow_nan=False)), found.arrays


def audited(module, data, pool, count=2, **settings):
    maker = DesignedCanaries(
        model=module, pool=pool, client=CLIENT, noise_multiplier=1.0, cohort=4, count=count,
        settings=DesignSettings(iterations=2),
    )  # fmt: skip
    audit = Canife(canaries=maker, rounds=4, every=2, trials=12, **settings)
    mechanism = Mechanism(clipping=FixedClipping(0.5), noise_multiplier=1.0)
    Training(
        model=module, data=data, rounds=4, cohorts=PoissonCohorts(0.5), client=CLIENT, mechanism=mechanism,
        audits=[audit],
    ).run()  # fmt: skip
    return audit


@pytest.fixture(scope="module")
def images():
    data, pool = federation([2] * 8), federation([2] * 6, seed=3)
    return audited(mlp(), data, pool)


def rows(chart, name):
    """All rows of a figure's data that have a field."""
    found = []

    def look(part):
        if isinstance(part, dict) and name in part:
            found.append(part)
        elif isinstance(part, dict | list):
            for value in part.values() if isinstance(part, dict) else part:
                look(value)

    look(chart.to_dict())
    return found


def values(chart, name):
    """Everything that a figure's data say of a field."""
    return [row[name] for row in rows(chart, name)]


def test_every_figure_of_a_run_is_drawn_from_its_files(images):
    result, arrays = written(images, sampling=EveryRound())
    charts = canife_figures.charts(result, arrays)
    assert set(charts) == {"canife-rounds", "canife-scores", "canife-composed", "canife-canaries"}
    rounds = charts["canife-rounds"].to_dict()
    for color in (BOUND, ESTIMATE, THEORY):
        assert color in json.dumps(rounds)
    drawn = values(charts["canife-rounds"], "epsilon")
    for stretch in result["rounds"]:
        valid = next(e["epsilon"] for e in stretch["estimates"] if e["valid"])
        assert valid in drawn
        assert {stretch["ceiling"], stretch["rate_ceiling"]} <= set(drawn)
    assert result["theory"]["epsilon"] in drawn
    # Each histogram has an area of 1.
    area = sum(row["density"] * (row["right"] - row["left"]) for row in rows(charts["canife-scores"], "left"))
    assert area == pytest.approx(4, rel=1e-6)  # with and without, two estimates


def test_canaries_come_as_pictures_that_hold_their_pixels(images):
    result, arrays = written(images)
    shown = canife_figures.canaries(result, arrays)
    assert [one["kind"] for one in shown] == ["image", "image"]
    assert shown[0]["target"] == int(arrays["targets"][0])
    content = base64.b64decode(shown[0]["png"].partition(",")[2])
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    assert (width, height) == (112, 112)
    start = content.index(b"IDAT") + 4
    lines = np.frombuffer(zlib.decompress(content[start : content.index(b"IEND")]), np.uint8).reshape(112, 113)
    low, high = result["canaries"][0]["range"]
    expected = np.round(255 * (arrays["inputs"][0, 0].astype(float) - low) / (high - low))
    assert np.array_equal(lines[::14, 1::14], expected)
    assert not lines[:, 0].any()
    assert "canary 1, as class" in shown[0]["caption"]
    with pytest.raises(InputError, match="height, width"):
        png_uri(np.zeros((2, 8, 8)))


def test_texts_come_as_they_read():
    words = Vocabulary(["<pad>", "<begin>", "<end>", "<unknown>", *"abcdefg"])
    data, pool = texts([2] * 8), texts([2] * 6, seed=3)
    object.__setattr__(pool, "vocabulary", words)
    result, arrays = written(audited(word_model(), data, pool, count=1))
    (shown,) = canife_figures.canaries(result, arrays)
    assert shown["kind"] == "text"
    assert shown["text"] == words.decode([*arrays["inputs"][0].tolist(), int(arrays["targets"][0, -1])])
    assert "canife-canaries" not in canife_figures.charts(result, arrays)
    with pytest.raises(InputError, match="no pictures"):
        canife_figures.pictures(result, arrays)


def test_vectors_have_figures_but_no_picture_and_infinite_figures_go_to_the_edge():
    audit = Canife(canaries=GivenUpdates(np.eye(1, 5)), rounds=1, every=1, trials=20)
    for trial in range(20):
        planted = audit.plant(0, clip_norm=1.0, trial=trial)
        total = np.zeros(5, dtype=np.float32) if planted is None else planted.total
        audit.observe(Release(0, "update", total + np.float32(0.001 * trial), trial=trial, divisor=1.0))
    result, arrays = written(audit)
    assert any(e["epsilon"] == "inf" for e in result["rounds"][0]["estimates"])
    charts = canife_figures.charts(result, arrays)
    assert set(charts) == {"canife-rounds", "canife-scores"}
    assert canife_figures.canaries(result, arrays) == []
    assert all(np.isfinite(v) for v in values(charts["canife-rounds"], "epsilon"))


def test_names_of_lines_stand_apart():
    placed = canife_figures._apart([{"epsilon": 2.0}, {"epsilon": 1.9}, {"epsilon": 5.0}], gap=0.5)
    assert [row["label"] for row in placed] == [1.9, 2.4, 5.0]


def test_several_adversaries_share_a_figure(images):
    result, _ = written(images)
    both = [result | {"view": name} for name in ("pool 3", "pool 6")]
    charts = canife_figures.adversaries(both)
    assert set(charts) == {"canife-adversaries", "canife-sigma"}
    assert set(values(charts["canife-adversaries"], "adversary")) == {"pool 3", "pool 6"}
    with pytest.raises(InputError, match="no adversary has an estimate"):
        canife_figures.adversaries([result | {"rounds": []}])
    with pytest.raises(InputError, match="no estimate of a single round"):
        canife_figures.rounds(result | {"rounds": []})
