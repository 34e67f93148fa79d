"""The LDP audit as a method of a run: results, tables, sentences, figures, and its section of the report."""

import json
from dataclasses import replace

import numpy as np
import pytest

from coalmine.errors import InputError
from coalmine.methods import registry
from coalmine.methods.ldp.crafters import DummyGradient, GradientFlip
from coalmine.methods.ldp.method import summary
from coalmine.report.page import method_section
from coalmine.results.io import write_scores
from coalmine.results.result import MethodResults, Result
from coalmine.simulation.mechanisms.local import LDPSGD
from ldp_games import EPSILONS, DoubledEpsilon, digits_audit, method_results
from setting_texts import settings_from_texts

METHOD = registry.get("ldp")


@pytest.fixture(scope="module")
def audited():
    return method_results(
        "epsilon=1,2", "trials=300", "crafter=dummy-gradient", "gradient_norm=0.5,1", "measurements=2"
    )


def saved(audited):
    """The same results as they are read back from disk."""
    contents = json.loads(json.dumps([r.to_dict() for r in audited.results], allow_nan=False))
    results = [Result.from_dict(content) for content in contents]
    return MethodResults(method="ldp", results=results, summary=audited.summary)


def test_there_is_a_result_for_each_adversary_claim_and_view(audited):
    assert [r.label for r in audited.results][:5] == [
        "dummy-gradient of norm 0.5, ε = 1, white-box",
        "dummy-gradient of norm 0.5, ε = 1, black-box",
        "dummy-gradient of norm 0.5, ε = 1, likelihood-ratio",
        "dummy-gradient of norm 0.5, ε = 1, parameter-change",
        "dummy-gradient of norm 0.5, ε = 2, white-box",
    ]
    assert len(audited.results) == len({r.file_stem for r in audited.results}) == 16
    assert audited.results[0].config["data"] == "digits"
    assert audited.results[0].config["clip_norm"] == 1.0


def test_scores_are_saved_for_each_result(audited, tmp_path):
    write_scores(audited.results, tmp_path)
    result = audited.results[4]
    with np.load(tmp_path / f"scores-{result.file_stem}.npz", allow_pickle=False) as scores:
        assert scores["members"].size + scores["nonmembers"].size == 2 * 300
    assert len(list(tmp_path.glob("scores-*.npz"))) == 16


def test_tables_have_a_row_per_adversary_and_claim_and_a_column_per_view():
    shown = METHOD.tables(method_results("trials=500", "epsilon=1,4", "crafter=benign,dummy-gradient"))
    empirical, bounds, guesses = shown
    assert "not a bound): ldp-sgd, 500 trials, δ = 0" in empirical.title
    assert "95% confidence" in bounds.title
    for table in shown:
        views = ["white-box", "black-box", "likelihood-ratio", "parameter-change"]
        assert table.columns == ["adversary", "claimed ε", *views]
        assert [row[:2] for row in table.rows] == [[c, e] for c in ("benign", "dummy-gradient") for e in ("1", "4")]
    assert guesses.rows[0][4].endswith("%")
    assert " of " in guesses.rows[0][4]


def test_a_single_result_shows_all_its_estimates_and_its_own_summary():
    single = method_results("epsilon=1", "crafter=dummy-gradient", "view=white-box")
    *_, estimates = METHOD.tables(single)
    assert [row[0] for row in estimates.rows] == [e.method for e in single.results[0].estimates]
    assert single.summary == single.results[0].summary
    assert single.summary.startswith("Not refuted")
    assert "ε ≥ 0.9" in single.summary


def test_tables_and_panels_show_an_infinite_estimate():
    results = digits_audit(
        crafters=[DummyGradient()], mechanisms=[LDPSGD(epsilon=30.0)], views=["white-box"], trials=100, measurements=2
    ).run()
    perfect = MethodResults(method="ldp", results=results)
    assert results[0].metrics["empirical"] == results[0].metrics["empirical_std"] == np.inf
    assert results[0]["empirical"].lower is None
    assert 2 < results[0].bound.lower < 30
    assert METHOD.tables(perfect)[0].rows == [["dummy-gradient", "30", "∞ ± ∞"]]
    for shown in (perfect, saved(perfect)):
        (row,) = METHOD.section(shown)["panels"]["dummy-gradient"]["rows"]
        assert (row["x"], row["estimate"]) == (30.0, None)


def test_results_without_a_guess_or_a_leak_say_so():
    results = digits_audit(crafters=[DummyGradient()], views=["white-box", "likelihood-ratio"], trials=200).run()
    metrics = {name: value for name, value in results[0].metrics.items() if name != "accuracy"} | {"guessed": 0.0}
    silent = [
        replace(r, metrics=metrics, joint_bound=0.0, estimates=[replace(r.estimates[0], epsilon=0.0, lower=0.0)])
        for r in results
    ]
    assert METHOD.tables(MethodResults(method="ldp", results=silent))[2].rows == [
        ["dummy-gradient", "1", "no guesses", "no guesses"]
    ]
    assert "All lower bounds are 0 (95% confidence for all 2 together)" in summary(silent)


def test_claims_are_tested_together_and_a_bug_is_still_found():
    settings = {"crafters": [GradientFlip(), DummyGradient()], "views": ["white-box"], "trials": 3000}
    correct = digits_audit(mechanisms=[LDPSGD(epsilon=e) for e in EPSILONS], **settings).run()
    assert all(r.joint_bound <= min(r.bound.lower, r.config["epsilon"]) for r in correct)
    closest = max(correct, key=lambda r: r.joint_bound / r.config["epsilon"])
    text = summary(correct)
    assert text.startswith("Not refuted: none of 8 tests")
    assert f"ε ≥ {closest.joint_bound:.3g} of ε = {closest.config['epsilon']:g}" in text
    broken = digits_audit(mechanisms=[DoubledEpsilon(epsilon=e) for e in EPSILONS], **settings | {"trials": 1000}).run()
    assert summary(broken).startswith("Refuted: 8 of 8 tests")


def test_the_section_has_a_panel_per_adversary_and_all_joint_bounds(audited):
    for shown in (audited, saved(audited)):
        figures = {}
        html = method_section(shown, figures, {})
        titles = [title for title, _ in figures.values()]
        assert titles == ["dummy-gradient of norm 0.5.", "dummy-gradient."]
        assert html.count("<tr>") == 1 + 4
        assert f"≥ {audited.results[-1].joint_bound:.3g}" in html


def test_estimators_of_the_method_have_caveats(audited):
    assert {"ldp", "ranks", "empirical"} <= set(METHOD.caveats)
    assert set(METHOD.caveats) <= {e.method for e in audited.results[0].estimates}


def test_a_wrong_crafter_is_refused_before_any_training():
    (settings,) = settings_from_texts(["crafter=benin"], METHOD.settings_type)
    with pytest.raises(InputError, match="benin"):
        METHOD(settings)


def test_a_crafter_from_a_file_is_audited(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "from coalmine.methods.ldp.crafters import Benign\n"
        "def loud(model, pair):\n"
        "    first, second = Benign()(model, pair)\n"
        "    return 10 * first, -10 * first\n"
        "def silent(model, pair):\n"
        "    first, second = Benign()(model, pair)\n"
        "    return first, np.zeros_like(first)\n"
    )
    settings = ("epsilon=1", "trials=2000", "view=white-box")
    (result,) = method_results(*settings, f"crafter={tmp_path}/mine.py:loud").results
    assert result.variant == "loud, ε = 1"
    with pytest.raises(InputError, match="g2 of crafter silent"):
        method_results(*settings, f"crafter={tmp_path}/mine.py:silent")


@pytest.mark.parametrize("mechanism", [pytest.param("gaussian", marks=pytest.mark.slow), "privunit"])
def test_the_other_mechanisms_are_audited_too(mechanism):
    shown = method_results("epsilon=1", "trials=500", "crafter=benign,dummy-gradient", f"mechanism={mechanism}")
    assert mechanism in METHOD.tables(shown)[0].title


def test_a_mechanism_from_a_file_is_audited_as_it_is(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "def noisy(gradient, rng):\n"
        "    clipped = gradient / max(1, np.linalg.norm(gradient))\n"
        "    return clipped + rng.normal(0, 0.3, gradient.size)\n"
        "def short(gradient, rng):\n"
        "    return gradient[:3]\n"
    )
    settings = ("epsilon=1", "delta=1e-5", "trials=400", "view=white-box", "crafter=dummy-gradient")
    (result,) = method_results(*settings, f"mechanism={tmp_path}/mine.py:noisy").results
    assert result.refuted
    assert "Refuted" in result.summary
    assert "ε = 1 at δ = 1e-05" in result.summary
    with pytest.raises(InputError, match=r"short .*9610"):
        method_results(*settings, f"mechanism={tmp_path}/mine.py:short")


def test_several_clients_are_a_setting():
    settings = ("epsilon=2", "trials=200", "crafter=benign", "clients=3")
    assert method_results(*settings).results[0].config["clients"] == 3
