"""Charts that methods and runs fill with their data, and files of them."""

import pytest

from coalmine.errors import InputError
from coalmine.report import charts


def rows(*places):
    return [{"x": x, "bound": 1.0, "estimate": None, "low": None, "high": None} for x in places]


def test_points_have_an_axis_that_suits_their_places():
    def across(*places, **more):
        return charts.points(rows(*places), x="x", y="ε", **more)["layer"][0]["encoding"]["x"]

    assert across("a", "b")["type"] == "nominal"
    assert across(1, 2)["scale"]["type"] == "linear"
    assert across(1, 100)["scale"]["type"] == "log"
    assert across(0, 100)["scale"]["type"] == "linear"
    assert across(5)["scale"]["type"] == "linear"
    assert across(0.5, "none")["sort"] == ["0.5", "none"]  # an axis has values of one kind
    diagonal = [{"x": x, "claim": x} for x in (0.0, 4.0)]
    assert across(1, 4, claims=diagonal, square=True)["scale"]["domain"][1] > 4


def test_only_what_is_there_is_drawn_and_in_the_legend():
    drawn = [*rows(1), {"x": 2, "bound": 3.0, "estimate": 4.0, "low": 3.5, "high": 30.0, "refuted": True}]
    spec = charts.points(drawn, x="x", y="ε", claims=[{"x": 1, "claim": 2.0}])
    assert [mark["kind"] for mark in spec["data"]["values"]] == [
        "lower bound",
        "lower bound, claim refuted",
        "best guess",
    ]
    legend = spec["layer"][2]["encoding"]["color"]["scale"]
    assert dict(zip(legend["domain"], legend["range"], strict=True))["lower bound, claim refuted"] == charts.REFUTED
    assert spec["layer"][0]["encoding"]["y"]["scale"]["type"] == "symlog"  # an interval reaches beyond 20
    assert len(spec["layer"][1]["data"]["values"]) == 1


def test_a_curve_needs_two_finite_points():
    history = [{"round": t, "loss": value} for t, value in enumerate([1.0, "inf", None, 0.5])]
    assert charts.curve(history[:3], "loss", "loss") is None
    assert [point["round"] for point in charts.curve(history, "loss", "loss")["data"]["values"]] == [1, 4]


def test_outside_the_page_colors_are_settled_and_nothing_moves():
    spec = charts.points(rows(1, 2), x="x", y="ε")
    text = charts.as_altair({"a": spec, "b": spec}).to_json()
    assert "var(--" not in text
    assert '"name"' not in text


def test_files_of_charts_have_a_known_ending(tmp_path):
    with pytest.raises(InputError, match=r"\.html, \.svg, \.png, \.pdf, got 'x\.gif'"):
        charts.save(None, tmp_path / "x.gif")
    chart = charts.as_altair({"title": charts.heat_map([{"x": "a", "y": "b", "share": 0.5}], x="x", y="y")})
    assert charts.save(chart, tmp_path / "x.svg").read_text().startswith("<svg")
