"""``coalmine sweep``: runs for all combinations of values and seeds, and what they show together."""

import dataclasses
import json
from importlib import resources

import jsonschema
import numpy as np
import pytest

import coalmine
from coalmine.claims import Claim
from coalmine.errors import InputError
from coalmine.results.gate import judge
from coalmine.runs import sweep
from coalmine.runs.comparison import compare
from coalmine.runs.sweep import Sweep, SweptResult, values_from_texts
from gate_runs import measured

LOCAL = '[ldp]\nepsilon = 2\ncrafter = "dummy-gradient"\nview = "white-box"\nseed = 5\n'
TRAINING = """
[training]
partition = "iid:12"
rounds = 2
cohort = "poisson:1.0"
model_settings = {hidden = 4}
client = {epochs = 1, batch_size = "all"}

[one-shot]
view = "updates"
canaries = 5
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "audit.toml"
    path.write_text(LOCAL)
    return path


def results(directory):
    """What each run found, without the seconds it took."""
    found = {}
    for path in sorted(directory.glob("*/result.json")):
        content = json.loads(path.read_text())["results"]
        found[path.parent.name] = [{k: v for k, v in result.items() if k != "timing"} for result in content]
    return found


def test_a_grid_has_a_run_directory_for_every_combination_and_seed(file, run, tmp_path):
    out = tmp_path / "swept"
    arguments = ("--set", "ldp.trials=100,200", "--set", "ldp.clients=1", "--seeds", 2, "--out", out)
    code, text, err = run("sweep", file, *arguments, "--quiet")
    assert (code, err) == (0, "")
    assert "4 runs, of which 0 have a refuted claim" in text
    rows = json.loads((out / "sweep.json").read_text())["sweep"]["rows"]
    points = [(row["ldp.trials"], row["seed"]) for row in rows]
    assert points == [(trials, seed) for trials in (100, 200) for seed in (5, 6)]
    assert [row["claimed_epsilon"] for row in rows] == [2] * 4
    first = coalmine.load(out / "trials=100,seed=5")[0]
    assert (first.seed, first.bound.epsilon) == (5, rows[0]["lower_bound"])
    assert (out / "trials=100,seed=5" / "report.html").is_file()
    for ending in ("html", "png", "svg"):
        assert (out / f"epsilon.{ending}").stat().st_size > 1000
    code, text, _ = run("sweep", file, *arguments, "--json")
    assert (code, json.loads(text)["sweep"]["rows"]) == (0, rows)
    schema = json.loads((resources.files("coalmine.results") / "schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(json.loads(text), schema)


def test_a_grid_has_all_combinations(file, tmp_path):
    cells = sweep._cells(file, {"ldp.trials": ["100", "200"], "ldp.clients": ["1", "2"]}, 2, tmp_path)
    assert [cell.directory.name for cell in cells][:3] == [
        f"trials=100,clients={c},seed={s}" for c, s in ((1, 5), (1, 6), (2, 5))
    ]
    settings = [cell.settings.methods["ldp"] for cell in cells]
    assert [(s.trials, s.clients, s.seed) for s in settings] == [
        (t, c, s) for t in (100, 200) for c in (1, 2) for s in (5, 6)
    ]


@pytest.mark.slow
def test_several_workers_find_the_same(file, tmp_path):
    values = {"ldp.trials": [100, 200]}
    for workers in (1, 2):
        coalmine.runs.sweep.sweep(file, values, seeds=2, workers=workers, out=tmp_path / str(workers))
    assert results(tmp_path / "1") == results(tmp_path / "2")
    assert len(results(tmp_path / "1")) == 4


@pytest.mark.slow
def test_a_stopped_sweep_continues_with_what_is_missing(file, tmp_path, monkeypatch):
    values, ran = {"ldp.trials": [100, 200, 300]}, []
    whole = coalmine.runs.sweep.sweep(file, values, out=tmp_path / "whole")
    real = sweep.run

    def stopping(settings, out):
        if len(ran) == 2:
            raise KeyboardInterrupt
        ran.append(out.name)
        return real(settings, out=out)

    monkeypatch.setattr(sweep, "run", stopping)
    with pytest.raises(KeyboardInterrupt):
        coalmine.runs.sweep.sweep(file, values, out=tmp_path / "stopped")
    finished = (tmp_path / "stopped" / "trials=100" / "parts" / "ldp.json").stat().st_mtime_ns
    monkeypatch.setattr(sweep, "run", real)
    again = coalmine.runs.sweep.sweep(file, values, out=tmp_path / "stopped")
    assert (tmp_path / "stopped" / "trials=100" / "parts" / "ldp.json").stat().st_mtime_ns == finished
    assert results(tmp_path / "stopped") == results(tmp_path / "whole")
    assert str(again) == str(whole)
    more = coalmine.runs.sweep.sweep(file, {"ldp.trials": [100, 200, 300, 400]}, out=tmp_path / "stopped")
    assert [row.point["ldp.trials"] for row in more.rows] == ["100", "200", "300", "400"]


def test_the_figure_shows_every_run_and_what_the_accountant_claims(tmp_path):
    file = tmp_path / "audit.toml"
    file.write_text(TRAINING)
    swept = coalmine.runs.sweep.sweep(file, {"training.noise_multiplier": [2, 20]}, seeds=2, out=tmp_path / "swept")
    chart = swept.plot().to_dict()
    tables = [layer["data"]["values"] for layer in chart["layer"] if "data" in layer]
    claims = next(table for table in tables if table and "claim" in table[0])
    sampling = coalmine.Poisson(1.0)
    expected = [Claim(noise_multiplier=z, sampling=sampling, rounds=2, delta=1e-5).epsilon for z in (2, 20)]
    assert [point["x"] for point in claims] == ["2", "20"]  # two runs each stand side by side
    assert [point["claim"] for point in claims] == pytest.approx(expected, rel=1e-4)
    bounds = [mark["epsilon"] for mark in chart["datasets"][chart["data"]["name"]]]
    assert sorted(bounds) == pytest.approx(sorted(row.result.bound.epsilon for row in swept.rows), rel=1e-4)


def test_every_seed_has_its_own_interval_and_refutations_are_red(tmp_path):
    rng = np.random.default_rng(0)
    rows = []
    for value, seed, shift in (("1", "0", 1.0), ("1", "1", 1.2), ("2", "0", 12.0), ("2", "1", 0.5)):
        found = measured("updates", rng.normal(shift, 1, 200), rng.normal(0, 1, 200))
        found = dataclasses.replace(found, claim=Claim(epsilon=2.0, delta=1e-5), claim_test=None)
        point = {"training.noise_multiplier": value, "seed": seed}
        rows.append(SweptResult(point=point, title="updates", result=found, directory=tmp_path / f"{value},{seed}"))
    gates = {row.directory.name: judge([row.result]) for row in rows}
    axes = {"training.noise_multiplier": ["1", "2"], "seed": ["0", "1"]}
    swept = Sweep(axes=axes, rows=rows, gates=gates, directory=tmp_path)
    chart = swept.plot().to_dict()
    tables = [layer["data"]["values"] for layer in chart["layer"] if "data" in layer]
    intervals = [point for table in tables for point in table if "low" in point]
    best = [row.result.best_guess for row in rows]
    assert sorted(p["low"] for p in intervals) == pytest.approx(sorted(guess.lower for guess in best), rel=1e-4)
    red = [
        mark["about"]
        for mark in chart["datasets"][chart["data"]["name"]]
        if mark["kind"] == "lower bound, claim refuted"
    ]
    assert red == ["2,0"]
    assert "4 runs, of which 1 has a refuted claim. If all claims were true, up to 0.2 would" in swept.sentence


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to sweep"),
        (("--set", "ldp.epsilon=1"), "nothing to sweep"),
        (("--set", "ldp.epsilon"), "table.key=A,B"),
        (("--set", "ldp.epsilon=1,1"), "different values"),
        (("--set", "ldp.epsilon=1,1.0"), "different values"),
        (("--set", "ldp.crafter=gradient-flip,gradient-flop"), "crafter=gradient-flop"),
        (("--set", "ldp.view=white-box,grey-box"), "view = 'grey-box'"),
        (("--set", "ldp.epsilon=1,,2"), "different values"),
        (("--set", "ldp.epsilon=1,2", "--set", "ldp.epsilon=3"), "set twice"),
        (("--set", "ldp.epsilon=1,x"), "epsilon = 'x'"),
        (("--set", "ldp.epsilo=1,2"), '"epsilon"'),
        (("--set", "epsilon=1,2"), "ldp.epsilon"),
        (("--set", "ldp.seed=1,2", "--seeds", "2"), "set twice"),
        (("--seeds", "0"), "--seeds"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_runs(file, run, tmp_path, arguments, message):
    code, _, err = run("sweep", file, "--out", tmp_path / "swept", *arguments)
    assert (code, message in err) == (2, True), err
    assert not (tmp_path / "swept").exists()


@pytest.mark.parametrize(
    "values",
    ["bug=noise:0.5,noisy", "bug=noise:0.5,bare:9.bias", "model=mlp,mpl", "data=digits,digitz", "clients=4,4000"],
)
def test_what_only_building_finds_is_found_before_anything_is_trained(run, tmp_path, values):
    file = tmp_path / "audit.toml"
    file.write_text(TRAINING)
    code, _, err = run("sweep", file, "--out", tmp_path / "swept", "--set", f"training.{values}")
    assert (code, values.split(",")[1].removeprefix("bare:") in err) == (2, True), err
    assert not (tmp_path / "swept").exists()


def test_values_that_are_not_numbers_have_an_axis_in_their_order(tmp_path):
    file = tmp_path / "audit.toml"
    file.write_text(TRAINING)
    for values, names in (([True, False], ["True", "False"]), (["adaptive:1", 2.0], ["adaptive:1", "2.0"])):
        setting = "run.baseline" if names[0] == "True" else "training.clip_norm"
        swept = coalmine.runs.sweep.sweep(file, {setting: values}, out=tmp_path / setting)
        across = swept.plot().to_dict()["layer"][-1]["encoding"]["x"]
        assert (across["type"], across["sort"]) == ("nominal", names)
        assert [row.point[setting] for row in swept.rows] == names
    several = coalmine.runs.sweep.sweep(
        file, {"one-shot.view": ["final", ["updates", "final"]]}, out=tmp_path / "views"
    )
    assert [row.result.view for row in several.rows] == ["final", "final", "updates"]


def test_a_failing_run_is_named(file, tmp_path):
    swept = tmp_path / "swept"
    (swept / "trials=200").mkdir(parents=True)
    (swept / "trials=200" / "result.json").write_text("{}")
    for workers in (1, 2):
        with pytest.raises(InputError, match=r"trials=200: .*result\.json"):
            coalmine.runs.sweep.sweep(file, {"ldp.trials": [100, 200]}, workers=workers, out=swept)


def test_values_are_separated_by_commas():
    assert values_from_texts(["a.b = 1, 2", "c=x"]) == {"a.b": ["1", "2"], "c": ["x"]}


def test_variants_of_an_attack_stand_in_one_row_per_claim(tmp_path):
    """A row and a panel per claimed ε, with the same crafter and view in all runs, out of 2 × 2 × 2 results a run."""
    file = tmp_path / "audit.toml"
    file.write_text(
        '[ldp]\nepsilon = [1, 4]\ncrafter = ["benign", "gradient-flip"]\nview = ["white-box", "black-box"]\n'
    )
    values = {"ldp.mechanism": ["ldp-sgd", "privunit"], "ldp.trials": [100]}
    swept = coalmine.runs.sweep.sweep(file, values, out=tmp_path / "swept")
    assert [row.result.claim.epsilon for row in swept.rows] == [1, 1, 4, 4]
    labels = [row.result.label for row in swept.rows]
    assert labels[0] == labels[1]
    assert labels[2] == labels[3]
    assert len(swept.plot().to_dict()["vconcat"]) == 2
    compared = compare([row.directory for row in swept.rows[:2]])
    assert [row.result.label for row in compared.rows] == labels
    # Of a swept ε, all values stand in one panel.
    swept = coalmine.runs.sweep.sweep(file, {"ldp.epsilon": [1, 4], "ldp.trials": [100]}, out=tmp_path / "claims")
    assert {row.title.count("ε = ") for row in swept.rows} == {0}
    assert len({row.title for row in swept.rows}) == 1


def test_the_exit_code_is_1_if_a_run_refutes_its_claim(run, tmp_path):
    file = tmp_path / "audit.toml"
    file.write_text(TRAINING)
    arguments = ("--set", "training.bug=bare:1.weight,noise:1", "--quiet", "--out", tmp_path / "swept")
    code, out, err = run("sweep", file, *arguments, "--set", "training.noise_multiplier=1")
    assert (code, "2 runs, of which 1 has a refuted claim" in out) == (1, True)
    assert "bug=bare-1.weight: one-shot, updates: noise missing" in err
