"""Results in Python: what print, notebooks, plots, tables and files show of one result and of several."""

import dataclasses
import json
import math
import sys

import numpy as np
import pandas
import pytest

import coalmine as cm
from coalmine.claims import Claim
from coalmine.errors import InputError
from coalmine.report.page import PLOTS, write_report
from coalmine.results.result import Results
from coalmine.results.verdict import USER
from coalmine.stats import CosineNull, Scores, estimate


@pytest.fixture(scope="module")
def result():
    """A one-shot audit of a loop with half of the claimed noise."""
    rng = np.random.default_rng(0)
    audit = cm.OneShot(2_000, rounds=3, canaries=100, view="updates", participation="every-round")
    for t in range(3):
        planted = audit.plant(t, clip_norm=1.0)
        update = ((planted.total + rng.normal(0, 1.0, 2_000)) / planted.clients).astype(np.float32)
        audit.observe(t, update=update, divisor=planted.clients)
    return audit.result(claim=Claim(noise_multiplier=2.0, delta=1e-5))


def plain(**fields):
    members, nonmembers = [3.1, 2.7, 3.5, 2.9, 3.3], [0.1, -0.4, 0.3, 0.0, 0.2]
    return cm.Result(
        **{
            "method": "mine|too",
            "view": "final",
            "unit": USER,
            "adversary": "sees the final <model>",
            "score_name": "loss",
            "seed": 0,
            "estimates": estimate(members, nonmembers),
            "scores": Scores(members, nonmembers),
            **fields,
        }
    )


def test_print_shows_the_verdict_three_numbers_and_the_bug(result):
    lines = str(result).splitlines()
    assert lines[0] == "one-shot, updates: refuted"
    assert [line.split()[0] for line in lines[1:4]] == ["claimed", "proven", "best"]
    assert lines[4].startswith("Bug found")
    assert lines[5].startswith("Refuted (p = ")
    assert lines[6].startswith("Not tested: clipping.")
    assert len(lines) == 7
    assert len(str(plain()).splitlines()) == 5
    assert len(repr(result)) < 120
    assert repr(result).startswith("<Result one-shot, updates: refuted, claimed ε ≤ ")


def test_a_bound_is_not_said_to_exceed_its_ceiling(result):
    assert result.bound.method == "exact-null"
    assert result.ceiling is not None  # of counted scores
    assert "cannot be shown" not in str(result)
    assert f"more than {plain(ceiling=3.14159).ceiling:.3g} cannot be shown" in str(plain(ceiling=3.14159))


def test_scores_with_a_known_null_are_read_back_with_it(tmp_path):
    known = Scores([3.1, 2.7, 3.5], null=CosineNull(900))
    plain(scores=known, null="cosine:900").save(tmp_path)
    (read,) = cm.load(tmp_path)
    assert read.scores.members.tolist() == known.members.tolist()
    assert read.scores.nonmembers is None
    assert read.scores.null == known.null


def test_notebooks_show_escaped_html(result):
    html = Results([plain(variant="<b>"), plain()])._repr_html_()
    assert "<b>" not in html
    assert "&lt;b&gt;" in html
    assert "no claim" in html
    assert "refuted" in result._repr_html_()
    assert "<script" not in result._repr_html_()
    assert "No results" in Results()._repr_html_()


@pytest.mark.parametrize("kind", ["epsilon", "roc", "scores"])
def test_every_plot_can_be_written(result, kind, tmp_path):
    for name, several in (("one", result), ("two", Results([result, plain()]))):
        several.plot(kind).save(str(tmp_path / f"{name}.png"))
        assert (tmp_path / f"{name}.png").stat().st_size > 5_000
    assert kind in PLOTS


def test_plots_show_the_numbers_of_the_result(result):
    text = json.dumps(result.plot().to_dict())
    for number in (result.bound.epsilon, result.claim.epsilon, result.best_guess.epsilon):
        assert str(number) in text
    assert "var(--" not in text  # all colors are settled
    titles = [part["title"] for part in Results([result, plain()]).plot("roc").to_dict()["vconcat"]]
    assert titles == ["ROC curve: one-shot, updates", "ROC curve: mine|too, final"]


def legends(chart):
    """The names in the legends of a chart."""
    names = []
    for layer in chart.to_dict()["layer"]:
        for channel in layer["encoding"].values():
            if isinstance(channel, dict) and channel.get("legend"):
                names += [name for name in channel["scale"]["domain"] if name not in names]
    return names


@pytest.mark.slow
def test_every_color_of_a_plot_is_in_its_legend(result):
    assert any("refuted" in name for name in legends(result.plot()))
    assert not any("refuted" in name for name in legends(plain().plot()))
    assert set(legends(result.plot("roc"))) == {"counted", "chance", "claim allows", "exact null"}
    assert set(legends(plain().plot("roc"))) == {"counted", "chance"}
    assert set(legends(plain().plot("scores"))) == {"inserted", "held out"}


def test_the_axis_shows_intervals_unless_they_are_very_long(result):
    def end_and_arrows(shown):
        layers = shown.plot().to_dict()["layer"]
        arrows = [layer for layer in layers if layer["mark"].get("shape") == "triangle-right"]
        return layers[1]["encoding"]["x"]["scale"]["domain"][1], [p for a in arrows for p in a["data"]["values"]]

    best = result.best_guess
    end, arrows = end_and_arrows(result)
    assert best.upper < end
    assert not arrows
    long = dataclasses.replace(best, upper=100 * best.epsilon)
    others = [long if e is best else e for e in result.estimates]
    end, arrows = end_and_arrows(dataclasses.replace(result, estimates=others))
    assert (end < 3 * best.epsilon, len(arrows)) == (True, 1)


def test_a_report_without_a_name_is_titled_by_its_methods(result, tmp_path):
    for name, title, expected in (("report.html", "", "one-shot"), ("mine.html", "", "mine"), ("x.html", "T", "T")):
        assert f"<h1>{expected}</h1>" in result.report(tmp_path / name, title=title).read_text(encoding="utf-8")


def test_a_plot_that_cannot_be_drawn_is_a_sentence(result):
    with pytest.raises(cm.InputError, match='Did you mean "roc"'):
        result.plot("rok")
    with pytest.raises(cm.InputError, match="CANIFE"):
        result.plot("rounds")
    with pytest.raises(cm.InputError, match="at least one result"):
        Results().plot()
    with pytest.raises(cm.InputError, match="no results"):
        Results().report()


def test_a_data_frame_has_one_row_per_estimate(result):
    frame = Results([result, plain()]).to_dataframe()
    assert len(frame) == len(result.estimates) + len(plain().estimates)
    quoted = frame[frame.is_bound & (frame.method == "one-shot")].iloc[0]
    assert quoted.epsilon == result.bound.epsilon
    assert quoted.claimed_epsilon == result.claim.epsilon
    assert quoted.p_value == result.claim_test.p_value
    assert math.isnan(frame[frame.method == "mine|too"].claimed_epsilon.iloc[0])
    assert Results().to_dataframe().empty


def test_without_pandas_there_is_a_sentence(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(cm.InputError, match="pip install pandas"):
        result.to_dataframe()
    assert pandas is not None


def test_markdown_is_a_table_with_findings_below(result):
    lines = Results([result, plain()]).to_markdown().splitlines()
    assert lines[1] == "| --- " * 8 + "|"
    assert lines[3].startswith("| mine\\|too | final |")
    assert lines[4] == ""
    assert lines[5].startswith("- Bug found")


def test_saved_results_are_read_back(result, tmp_path):
    Results([result, plain(method="mine")]).save(tmp_path / "saved")
    again = cm.load(str(tmp_path / "saved"))
    assert isinstance(again, Results)
    assert repr(again[0]) == repr(result)
    np.testing.assert_array_equal(again[0].scores.members, result.scores.members)
    result.save(str(tmp_path / "alone"))
    assert repr(cm.load(tmp_path / "alone")) == f"Results([{result!r}])"


def test_saved_results_are_replaced_only_on_request(result, tmp_path):
    result.save(tmp_path)
    write_report(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InputError, match=r"holds results.*overwrite=True"):
        plain(method="mine").save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    plain(method="mine").save(tmp_path, overwrite=True)
    assert [again.method for again in cm.load(tmp_path)] == ["mine"]
    # Neither score files nor the report of the results before are left.
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "manifest.json", "provenance.json", "result.json", "scores-mine-final.npz",
    ]  # fmt: skip


def test_a_report_needs_no_run(result, tmp_path):
    path = result.report(tmp_path / "mine.html", title="My loop")
    assert "<h1>My loop</h1>" in path.read_text(encoding="utf-8")
    assert "of the claimed noise" in path.read_text(encoding="utf-8")


def test_results_and_directories_are_compared(result, tmp_path):
    quiet = plain(method="one-shot", view="updates")
    result.save(tmp_path / "saved")
    for runs in ({"a": result, "b": [quiet]}, {"a": tmp_path / "saved", "b": Results([quiet])}):
        comparison = cm.compare(runs)
        assert [row.run for row in comparison.rows] == ["a", "b"]
        frame = comparison.to_dataframe()
        assert list(frame.lower_bound) == [result.bound.epsilon, quiet.bound.epsilon]
        assert comparison.sentence in str(comparison)
        comparison.plot().save(str(tmp_path / "compared.svg"))
    assert cm.compare([result, quiet]).runs == ["run 1", "run 2"]
    with pytest.raises(cm.InputError, match="a run directory, a result or a list of results"):
        cm.compare([result, [3]])
