"""``coalmine compare``: which differences are more than noise."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from coalmine.claims import Claim
from coalmine.errors import InputError
from coalmine.results.directory import RunDirectory
from coalmine.results.io import read_run_directory
from coalmine.runs.comparison import DIFFERS, WITHIN, Shift, compare, write_index
from coalmine.stats import Scores
from gate_runs import directory, measured, result


@pytest.mark.parametrize("kind", ["normal", "heavy", "skewed"])
@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_runs_that_do_not_differ_are_said_to_in_five_per_cent_of_cases(kind, shift):
    """500 pairs: 5% and 3.5 standard deviations of that count are 8.4% (one case in 2,000 beyond, each)."""
    rng = np.random.default_rng([len(kind), int(shift)])
    draw = {
        "normal": lambda: rng.normal(size=60),
        "heavy": lambda: rng.standard_t(5, size=60),
        "skewed": lambda: rng.gamma(2, size=60),
    }[kind]
    alarms = sum(Shift.of(shift + draw(), draw()).differs(Shift.of(shift + draw(), draw())) for _ in range(500))
    assert alarms <= 500 * 0.05 + 3.5 * np.sqrt(500 * 0.05 * 0.95)


def test_half_the_noise_is_told_apart():
    rng = np.random.default_rng(0)
    noisy = Shift.of(rng.normal(1, 1, 200), rng.normal(0, 1, 200))
    calm = Shift.of(rng.normal(2, 1, 200), rng.normal(0, 1, 200))
    assert noisy.differs(calm)
    assert calm.differs(noisy)
    assert not noisy.differs(noisy)


def test_the_jackknife_agrees_with_its_definition():
    rng = np.random.default_rng(1)
    members, nonmembers = rng.normal(1, 2, 30), rng.gamma(2, size=25)

    def shift(others):
        return (members.mean() - others.mean()) / others.std(ddof=1)

    left_out = np.array([shift(np.delete(nonmembers, i)) for i in range(25)])
    variance = 24 / 25 * np.sum((left_out - left_out.mean()) ** 2)
    variance += members.var(ddof=1) / 30 / nonmembers.var(ddof=1)
    found = Shift.of(members, nonmembers)
    assert (found.value, found.variance) == (pytest.approx(shift(nonmembers)), pytest.approx(variance))


@pytest.mark.parametrize("members", [[1.0, 2.0], [1.0] * 10, [1e200, 2e200, 3e200, 1.0]])
def test_scores_that_say_nothing_have_no_shift(members):
    assert Shift.of(np.array(members), np.ones(10)) is None


@pytest.fixture
def three(tmp_path):
    rng = np.random.default_rng(2)
    paths = []
    for name, shift, noise in (("a", 1.0, 2.0), ("b", 1.0, 2.0), ("c", 4.0, 0.5)):
        scores = rng.normal(shift, 1, 150), rng.normal(0, 1, 150)
        config = f"[training]\nnoise_multiplier = {noise}\nrounds = 40\n"
        results = measured("updates", *scores), result("exposure", "ranks", bound=0.1)
        saved_scores = {"one-shot-updates": scores}
        paths.append(directory(tmp_path / name, *results, config=config, scores=saved_scores))
    return paths


def test_settings_and_results_stand_side_by_side(three, run, tmp_path):
    code, out, _ = run("compare", *map(str, three), "--html", str(tmp_path / "page.html"))
    assert code == 0
    assert "training.noise_multiplier" in out
    assert "training.rounds" not in out
    comparison = compare([read_run_directory(path, scores=True) for path in three])
    differences = {m: [r.difference for r in comparison.rows if r.result.method == m] for m in ("one-shot", "exposure")}
    assert differences["one-shot"] == ["", WITHIN, DIFFERS]
    assert all("not compared" in difference for difference in differences["exposure"][1:])
    assert "1 of 2 comparisons" in comparison.sentence
    page = (tmp_path / "page.html").read_text()
    assert "<script" not in page
    assert "prefers-color-scheme: dark" in page
    assert DIFFERS in page


def test_the_page_escapes_what_the_runs_say(tmp_path):
    odd = "<script>alert(1)</script>"
    paths = [directory(tmp_path / name, result(view=odd), config=f'[run]\nx = "{odd}{name}"\n') for name in "ab"]
    page = compare([read_run_directory(path) for path in paths]).to_html()
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_the_index_lists_all_runs_with_their_reports(tmp_path):
    directory(tmp_path / "a", result(bound=9.0), config='[run]\ntitle = "<b>"\n')
    (tmp_path / "a" / "report.html").write_text("")
    with pytest.raises(ZeroDivisionError), RunDirectory(tmp_path / "b").claimed("x = 1"):
        raise ZeroDivisionError
    (tmp_path / "other").mkdir()
    page = write_index(tmp_path).read_text(encoding="utf-8")
    assert '<a href="a/report.html">a</a>' in page
    assert "refuted" in page
    assert "failed" in page
    assert "other" not in page


@pytest.mark.parametrize(("count", "message"), [(1, "two runs or more"), (2, "twice")])
def test_nothing_to_compare_is_refused(tmp_path, run, count, message):
    directory(tmp_path, result())
    code, _, err = run("compare", *[str(tmp_path)] * count)
    assert (code, message in err) == (2, True)


def test_a_directory_of_another_version_is_named_as_such(tmp_path):
    older = result().to_dict()
    del older["joint_bound"]
    with pytest.raises(InputError, match=r"another version of coalmine.*joint_bound"):
        read_run_directory(directory(tmp_path, older))


def test_another_delta_is_not_compared(tmp_path):
    other = result().to_dict()
    other["estimates"][0]["delta"] = 1e-6
    runs = [read_run_directory(directory(tmp_path / name, r)) for name, r in (("a", result()), ("b", other))]
    assert "different δ" in compare(runs).rows[1].difference


@pytest.fixture
def seeds(tmp_path):
    """Two settings with three seeds each."""
    rng = np.random.default_rng(3)
    paths = []
    for noise, shift in (("1.0", 2.0), ("none", 1.0)):
        for seed in range(3):
            scores = rng.normal(shift, 1, 150), rng.normal(0, 1, 150)
            config = f'[training]\nnoise = "{noise}"\nseed = {seed}\n'
            path = tmp_path / f"{noise}-{seed}"
            paths.append(
                directory(path, measured("updates", *scores), config=config, scores={"one-shot-updates": scores})
            )
    return paths


def test_groups_of_seeds_differ_by_welchs_interval(seeds):
    compared = compare(seeds, groups=["a"] * 3 + ["b"] * 3)
    one, other = (row.values("best_guess") for row in compared.rows)
    interval = stats.ttest_ind(other, one, equal_var=False).confidence_interval()
    expected = f"{other.mean() - one.mean():+.2f} ± {(interval.high - interval.low) / 2:.2f}"
    assert [row.difference for row in compared.rows] == ["", expected]
    *_, row = compared.to_dict()["rows"]
    assert (row["gap"], row["margin"], row["gap_of"]) == (
        pytest.approx(other.mean() - one.mean()), pytest.approx((interval.high - interval.low) / 2), "best_guess",
    )  # fmt: skip
    assert row["differs"] is None


def test_runs_without_a_best_guess_are_compared_by_their_lower_bounds():
    rng = np.random.default_rng(4)
    runs = []
    for _ in range(4):
        scores = rng.normal(2, 1, 30), rng.normal(0, 1, 30)
        runs.append(replace(measured("updates", *scores), scores=Scores(*scores)))
    assert "lower bounds" in compare(runs, groups="aabb").rows[1].difference
    assert "fewer than two runs" in compare(runs[:3], groups="aab").rows[1].difference


def test_runs_are_pooled_by_a_setting_and_drawn(seeds, run, tmp_path):
    figure = tmp_path / "figure.svg"
    code, out, _ = run("compare", *map(str, seeds), "--group-by", "training.noise", "--figure", str(figure))
    assert (code, "against 1.0" in out, "±" in out, "training.noise" in out) == (0, True, True, True)
    assert out == run("compare", str(tmp_path), "--group-by", "training.noise", "--figure", str(figure))[1]
    assert run("compare", str(tmp_path), "--only", "one-shot, updates", "--figure", str(tmp_path / "f.pdf"))[0] == 0
    code, _, err = run("compare", str(tmp_path), "--only", "final")
    assert (code, "'final'" in err) == (2, True)
    assert {"none", "claimed ε"} <= {text.strip() for text in figure.read_text().replace("<", ">").split(">")}


@pytest.mark.parametrize(("setting", "message"), [("training.nose", "training.noise"), ("training.same", "all runs")])
def test_groups_that_cannot_be_compared_are_refused(tmp_path, run, setting, message):
    config = "[training]\nnoise = 1.0\nsame = 2\n"
    paths = [str(directory(tmp_path / name, result(), config=config)) for name in "ab"]
    code, _, err = run("compare", *paths, "--group-by", setting)
    assert (code, message in err) == (2, True)


def test_runs_of_own_loops_are_grouped_by_their_claim_and_label(tmp_path, run):
    rng = np.random.default_rng(5)
    for i, noise in enumerate((1.0, 1.0, 2.0, 2.0)):
        scores = rng.normal(2 / noise, 1, 100), rng.normal(0, 1, 100)
        claim = Claim(noise_multiplier=noise, rounds=1, delta=1e-5)
        found = replace(measured("updates", *scores), scores=Scores(*scores), claim=claim, claim_test=None)
        found.save(tmp_path / str(i), facts={"label": "tree" if i % 2 else "Gaussian"})
    for setting, groups in (("claim.noise_multiplier", ("1.0", "2.0")), ("facts.label", ("Gaussian", "tree"))):
        code, out, _ = run("compare", tmp_path, "--group-by", setting, "--json")
        assert (code, tuple(json.loads(out)["runs"])) == (0, groups)
