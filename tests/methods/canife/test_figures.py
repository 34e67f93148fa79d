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
from coalmine.drawing.files import BOUND, ESTIMATE, THEORY
from coalmine.drawing.pictures import png_uri
from coalmine.errors import InputError
from coalmine.methods.canife import figures
from coalmine.methods.canife.audit import Canife
from coalmine.methods.canife.canaries import GivenUpdates
from coalmine.methods.canife.design import DesignSettings
from coalmine.methods.canife.designed_canaries import DesignedCanaries
from coalmine.methods.canife.method import CanifeMethod
from coalmine.methods.canife.report_section import crafted_samples
from coalmine.results.result import MethodResults, Result
from coalmine.simulation import FixedClipping, Mechanism, Training
from coalmine.simulation.data.vocabulary import Vocabulary
from federations import federation, mlp, texts, word_model

CLAIM = Claim(noise_multiplier=1.0, delta=1e-5)


def read_back(audit, **arguments):
    """The plain result that is read from disk after the audit's was written."""
    result = audit.result(claim=CLAIM, **arguments)
    content = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    return Result.from_dict(content, scores=result.scores, arrays=result.arrays)


def audited(module, data, pool, count=2, **settings):
    canaries = DesignedCanaries(
        model=module, pool=pool, client=CLIENT, noise_multiplier=1.0, cohort=4, count=count,
        settings=DesignSettings(iterations=2),
    )  # fmt: skip
    audit = Canife(canaries=canaries, rounds=4, every=2, trials=12, **settings)
    mechanism = Mechanism(clipping=FixedClipping(0.5), noise_multiplier=1.0)
    Training(
        model=module, data=data, rounds=4, sampling=Poisson(0.5), client=CLIENT, mechanism=mechanism,
        audits=[audit],
    ).run()  # fmt: skip
    return audit


@pytest.fixture(scope="module")
def images():
    return audited(mlp(), federation([2] * 8), federation([2] * 6, seed=3))


def rows(chart, name):
    """All rows of a figure's data that have a field."""
    with_field = []

    def look(part):
        if isinstance(part, dict) and name in part:
            with_field.append(part)
        elif isinstance(part, dict | list):
            for value in part.values() if isinstance(part, dict) else part:
                look(value)

    look(chart.to_dict())
    return with_field


def values(chart, name):
    """All values of a field in a figure's data."""
    return [row[name] for row in rows(chart, name)]


def test_every_figure_is_drawn_from_a_saved_result(images):
    result = read_back(images)
    charts = CanifeMethod.charts(MethodResults(method="canife", results=[result]))
    assert set(charts) == {"canife-rounds", "canife-scores", "canife-composed", "canife-canaries"}
    drawing = json.dumps(charts["canife-rounds"].to_dict())
    assert all(color in drawing for color in (BOUND, ESTIMATE, THEORY))
    drawn = values(charts["canife-rounds"], "epsilon")
    for period in result.details["rounds"]:
        assert next(e["epsilon"] for e in period["estimates"] if e["valid"]) in drawn
        assert {period["ceiling"], period["rate_ceiling"]} <= set(drawn)
    assert result.claim.epsilon in drawn
    # Each histogram has an area of 1.
    area = sum(row["density"] * (row["right"] - row["left"]) for row in rows(charts["canife-scores"], "left"))
    assert area == pytest.approx(4, rel=1e-6)  # present and absent, two periods


def test_the_section_shows_rounds_composition_and_samples_of_saved_results(images):
    typed = images.result(claim=CLAIM)
    plain = read_back(images)
    composed = typed.composed_result()
    section = CanifeMethod.section(MethodResults(method="canife", results=[plain, composed]))
    assert section.key == "canife"
    assert "canife-1-rounds" in [figure.name for figure in section.figures]
    for part in (
        "data:image/png",
        "from gaussian-shift",
        "as in the paper",
        "canary present",
        "an adversary who knows",
    ):
        assert part in section.body
    same = CanifeMethod.section(MethodResults(method="canife", results=[typed, composed]))
    assert [figure.spec for figure in section.figures] == [figure.spec for figure in same.figures]


def test_the_tables_show_rounds_scores_and_composition(images):
    result = read_back(images)
    estimates, scores, composed = CanifeMethod.tables(MethodResults(method="canife", results=[result]))
    assert [row[0] for row in estimates.rows] == ["0–1", "2–3"]
    bound = next(e for e in result.details["rounds"][0]["estimates"] if e["valid"])
    assert estimates.rows[0][1] == f"{bound['epsilon']:.2f} of {result.details['rounds'][0]['ceiling']:.2f}"
    assert sum(map(int, scores.rows[0][1].split(" + "))) == 24
    assert [row[0] for row in composed.rows] == ["best-threshold", "gaussian-shift", "gdp", "ceiling"]


def test_canaries_are_pictures_with_their_pixels(images):
    result = read_back(images)
    shown = crafted_samples(result)
    assert [sample["kind"] for sample in shown] == ["image", "image"]
    assert shown[0]["target"] == int(result.arrays["targets"][0])
    content = base64.b64decode(shown[0]["png"].partition(",")[2])
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", content[16:24]) == (112, 112)
    start = content.index(b"IDAT") + 4
    lines = np.frombuffer(zlib.decompress(content[start : content.index(b"IEND")]), np.uint8).reshape(112, 113)
    low, high = result.details["canaries"][0]["range"]
    expected = np.round(255 * (result.arrays["inputs"][0, 0].astype(float) - low) / (high - low))
    assert np.array_equal(lines[::14, 1::14], expected)
    assert not lines[:, 0].any()
    assert f"class {shown[0]['target']}" in shown[0]["caption"]
    with pytest.raises(InputError, match="height, width"):
        png_uri(np.zeros((2, 8, 8)))


def test_texts_are_shown_in_words():
    words = Vocabulary(["<pad>", "<begin>", "<end>", "<unknown>", *"abcdefg"])
    data, pool = texts([2] * 8), texts([2] * 6, seed=3)
    object.__setattr__(pool, "vocabulary", words)
    result = read_back(audited(word_model(), data, pool, count=1))
    (shown,) = crafted_samples(result)
    assert shown["kind"] == "text"
    inputs, targets = result.arrays["inputs"][0], result.arrays["targets"][0]
    assert shown["text"] == words.decode([*inputs.tolist(), int(targets[-1])])
    assert "canife-canaries" not in figures.result_charts(result)


def test_vectors_have_figures_but_no_picture_and_infinite_values_end_at_the_edge():
    audit = Canife(canaries=GivenUpdates(np.eye(1, 5)), rounds=1, every=1, trials=20)
    for trial in range(20):
        inserted = audit.plant(0, clip_norm=1.0, trial=trial)
        total = np.zeros(5, dtype=np.float32) if inserted is None else inserted.total
        audit.observe(0, update=total + np.float32(0.001 * trial), trial=trial, divisor=1.0)
    result = read_back(audit)
    assert any(e["epsilon"] == "inf" for e in result.details["rounds"][0]["estimates"])
    charts = figures.result_charts(result)
    assert set(charts) == {"canife-rounds", "canife-scores", "canife-composed"}
    assert crafted_samples(result) == []
    assert all(np.isfinite(v) for v in values(charts["canife-rounds"], "epsilon"))


def test_labels_of_lines_are_spread():
    spread = figures._spread_labels([{"epsilon": 2.0}, {"epsilon": 1.9}, {"epsilon": 5.0}], gap=0.5)
    assert [row["label"] for row in spread] == [1.9, 2.4, 5.0]


def test_several_adversaries_have_a_directory_each_and_share_a_figure(images):
    result = read_back(images)
    both = [replace(result, view=view) for view in ("frozen, pool 3", "frozen, pool 6")]
    charts = CanifeMethod.charts(MethodResults(method="canife", results=both))
    assert {"canife-adversaries", "canife-sigma", "frozen-pool-3/canife-rounds"} <= set(charts)
    assert set(values(charts["canife-adversaries"], "adversary")) == {"frozen, pool 3", "frozen, pool 6"}
