"""``coalmine verify``: every number of a result again from its scores, to the digit."""

import json
import math
import re
import shutil
from itertools import cycle

import jsonschema
import numpy as np
import pytest

from coalmine.results import manifest
from coalmine.results.io import save
from coalmine.results.io import read_run_directory
from coalmine.runs.running import run as run_all
from coalmine.runs.settings import run_from_text
from coalmine.runs.verification import Outcome, recompute
from coalmine.stats.nulls import (
    CosineNull,
    LargestOfNull,
    LikelihoodRatioNull,
    NormalNull,
    OrthogonalCosineNull,
    null_text,
    parse_null,
)
from gate_runs import result

ALL = """
[training]
data = "generated-text"
vocabulary_size = 120
positions = 6
clients = 40
rounds = 4
cohort = "poisson:1.0"
clip_norm = 0.5
noise_multiplier = 1.0
model_settings = {embedding = 8, units = 12}
[one-shot]
view = ["final-change", "updates"]
canaries = 40
[canife]
every = 2
trials = 12
design.iterations = [3]
[secret-sharer]
references = 500
each = 4
[ldp]
trials = 300
measurements = 2
epsilon = [1.0]
crafter = ["dummy-gradient"]
[exposure]
[mechanism]
noise_multiplier = 1.0
claim = 2.0
dim = 2000
canaries = 50
calls = 16
"""

ONE = """
[training]
partition = "iid:10"
rounds = 3
noise_multiplier = 0.5
model_settings = {hidden = 4}
client = {epochs = 1, batch_size = "all"}
[one-shot]
view = ["final-change", "updates"]
canaries = 10
"""

STOPPING = """
[ldp]
trials = 400
measurements = 2
epsilon = [1.0]
crafter = ["dummy-gradient"]
view = ["white-box"]
stop_when_refuted = true
"""


@pytest.fixture(scope="module")
def one_method(tmp_path_factory):
    path = tmp_path_factory.mktemp("one-method") / "run"
    run_all(run_from_text(ONE, "one"), out=path)
    return path


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    path = tmp_path_factory.mktemp("verification") / "run"
    run_all(run_from_text(ALL, "all"), out=path)
    return path


def test_every_method_is_recomputed_to_the_digit(everything):
    verification = recompute(read_run_directory(everything, scores=True))
    assert {entry.result.method for entry in verification.recomputed} == {
        "one-shot", "canife", "secret-sharer", "ldp", "exposure", "mechanism",
    }  # fmt: skip
    assert len(verification.recomputed) == 15
    for entry in verification.recomputed:
        assert (entry.outcome, entry.differences) == (Outcome.SAME, []), entry.result.label


def test_what_cannot_be_recomputed_is_named(everything):
    by_method = {
        entry.result.method: entry.not_recomputed
        for entry in recompute(read_run_directory(everything, scores=True)).recomputed
    }
    assert any("checks" in sentence for sentence in by_method["mechanism"])
    assert any("claimed ε" in sentence for sentence in by_method["ldp"])
    assert not by_method["exposure"]


def test_games_that_may_stop_early_are_recomputed_in_the_order_of_their_bets(tmp_path):
    run_all(run_from_text(STOPPING, "stopping"), out=tmp_path / "run")
    verification = recompute(read_run_directory(tmp_path / "run", scores=True))
    assert verification.outcome is Outcome.SAME


def changes(content):
    """Yield one change to each kind of number in the results, with a word that must be in the sentence about it."""
    for i, one in enumerate(content["results"]):
        where = f"{one['method']} {one['view']}"
        yield where, i, ("estimates", 0, "epsilon"), "epsilon"
        yield where, i, ("verdict",), "verdict"
        if one["claim_test"] is not None and one["claim_test"]["p_value"] is not None:
            yield where, i, ("claim_test", "p_value"), "p_value"
        if one["claim"] is not None and one["claim"]["accountant"] == "pld":
            yield where, i, ("claim", "epsilon"), "claim.epsilon"


def test_any_changed_number_is_found_although_the_manifest_fits(everything, tmp_path, run):
    """One recomputation finds changes in all results at once: each is compared with its own scores."""
    copy = shutil.copytree(everything, tmp_path / "run")
    content = json.loads((copy / "result.json").read_text())
    changed = []
    for where, i, path, word in list(changes(content)):
        place = content["results"][i]
        for key in path[:-1]:
            place = place[key]
        old = place[path[-1]]
        new = {"verdict": "refuted" if old != "refuted" else "not refuted"}.get(path[-1])
        place[path[-1]] = new or (0.5 if old in (0, "inf") else old * (1 - 1e-6))
        if path[0] == "estimates" and place["valid"]:
            place["lower"] = place["epsilon"]  # otherwise it could not even be read
        changed.append((where, i, word))
    (copy / "result.json").write_text(json.dumps(content))
    manifest.Manifest.of_files(copy).write()
    entries = recompute(read_run_directory(copy, scores=True)).recomputed
    for where, i, word in changed:
        assert entries[i].outcome is Outcome.DIFFERENT, where
        assert any(word in sentence for sentence in entries[i].differences), (where, word, entries[i].differences)
    assert run("check", str(copy))[0] in (0, 1)  # the manifest alone does not notice


def test_rounding_is_told_from_a_change(everything, tmp_path):
    copy = shutil.copytree(everything, tmp_path / "run")
    content = json.loads((copy / "result.json").read_text())
    estimate = content["results"][0]["estimates"][0]
    estimate["epsilon"] = estimate["lower"] = math.nextafter(estimate["epsilon"], math.inf)
    (copy / "result.json").write_text(json.dumps(content))
    manifest.Manifest.of_files(copy).write()
    verification = recompute(read_run_directory(copy, scores=True))
    assert (verification.recomputed[0].outcome, verification.outcome) == (Outcome.ROUNDED, Outcome.ROUNDED)


def test_a_result_without_a_recipe_is_said_to_be_taken_on_trust(tmp_path, run):
    save(result(), tmp_path)
    code, out, _ = run("verify", str(tmp_path))
    assert code == 1
    assert "None of the 1 results could be recomputed" in out
    assert run("verify", str(tmp_path), "--adopt")[0] == 0
    assert "recipe" in out


def test_the_json_follows_the_schema(everything, run):
    from importlib import resources

    schema = json.loads((resources.files("coalmine.results") / "schema.json").read_text(encoding="utf-8"))
    code, out, _ = run("verify", str(everything), "--json")
    assert code == 0
    jsonschema.validate(json.loads(out), schema)


@pytest.mark.parametrize(
    "null",
    [
        CosineNull(7), OrthogonalCosineNull(900), NormalNull(0.1, 2.5), LikelihoodRatioNull(),
        LargestOfNull(OrthogonalCosineNull(50), 3),
    ],
)  # fmt: skip
def test_a_null_distribution_is_read_back_from_its_text(null):
    assert parse_null(null_text(null)) == null


def drop_a_result(copy, content):
    del content["results"][0]


def drop_a_method(copy, content):
    content["results"] = [one for one in content["results"] if one["method"] != "ldp"]
    for path in [copy / "parts" / "ldp.json", *copy.glob("scores-ldp-*"), *copy.glob("arrays-ldp-*")]:
        path.unlink(missing_ok=True)


def drop_the_stricter_bounds(copy, content):
    for one in content["results"]:
        for estimate in one["estimates"]:
            estimate.pop("stricter", None)


def loosen_delta(copy, content):
    content["results"][0]["recipe"]["delta"] = 0.5


def state_another_noise(copy, content):
    content["results"][0]["config"]["noise_multiplier"] = 0.1


def take_the_settings_of_another_run(copy, content):
    settings = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text(settings.replace("noise_multiplier = 1.0", "noise_multiplier = 9.0"))


def repeat_a_result(copy, content):
    content["results"].append(content["results"][0])


def drop_the_recipe(copy, content):
    for one in content["results"]:
        if one["method"] == "one-shot":
            one["recipe"] = {}
            one["estimates"][0] |= {"epsilon": 0.0, "lower": 0.0}


def state_another_unit(copy, content):
    """A limit on ε does not apply to single rounds."""
    for one in content["results"]:
        one["unit"] = "one user, one round"


def take_the_scores_of_another_run(copy, content):
    """As if a quiet training had given these results."""
    path = copy / "scores-one-shot-updates.npz"
    rng = np.random.default_rng(0)
    sides = {name: np.sort(rng.normal(size=side.size)) for name, side in np.load(path).items()}
    np.savez(path, **sides)


def round_to_nothing(copy, content):
    for one in content["results"]:
        for number, estimate in zip(cycle(["-0.0", "1e-999"]), one["estimates"], strict=False):
            estimate |= {"epsilon": float(number), "lower": float(number)}


def state_another_name(copy, content):
    """A Greek letter: the scores go along, and nobody sees the difference."""
    for one in content["results"]:
        one["method"] = one["method"].replace("one-shot", "\u03bfne-shot")
    for path in copy.glob("*-one-shot-*.npz"):
        path.rename(path.with_name(path.name.replace("one-shot", "\u03bfne-shot")))


@pytest.mark.parametrize(
    "attack",
    [
        drop_a_result, drop_a_method, drop_the_stricter_bounds, loosen_delta, state_another_noise,
        take_the_settings_of_another_run, repeat_a_result,
    ],
)  # fmt: skip
def test_changes_with_a_fitting_manifest_are_noticed(attack, everything, tmp_path, run):
    assert verified_after(attack, everything, tmp_path, run) == 1


@pytest.mark.parametrize(
    "attack",
    [drop_the_recipe, state_another_unit, take_the_scores_of_another_run, round_to_nothing, state_another_name],
)
def test_changes_of_all_results_with_a_fitting_manifest_are_noticed(attack, one_method, tmp_path, run):
    assert verified_after(attack, one_method, tmp_path, run) == 1


def verified_after(attack, source, tmp_path, run):
    """Return the exit code of ``verify`` on a changed copy of a run."""
    copy = shutil.copytree(source, tmp_path / "run")
    content = json.loads((copy / "result.json").read_text())
    attack(copy, content)
    (copy / "parts" / "one-shot.json").unlink()  # it would give some of them away
    (copy / "result.json").write_text(json.dumps(content))
    manifest.Manifest.of_files(copy).write()
    return run("verify", str(copy))[0]


@pytest.mark.parametrize(("before", "after"), [('"seed": ', '"seed": 1, "seed": '), ('"seed": 0', '"seed": NaN')])
def test_names_that_occur_twice_and_numbers_that_are_none_are_refused(before, after, everything, tmp_path, run):
    copy = shutil.copytree(everything, tmp_path / "run")
    text = (copy / "result.json").read_text()
    (copy / "result.json").write_text(text.replace(before, after, 1))
    manifest.Manifest.of_files(copy).write()
    code, _, err = run("check", str(copy))
    assert code == 2
    assert "result.json is damaged" in " ".join(err.split())


@pytest.mark.parametrize(
    ("name", "pattern", "after", "words"),
    [
        ("run.json", r'"format": \d+', '"format": 99', "use the newer version"),
        ("result.json", r'"schema": \d+', '"schema": 99', "has schema 99"),
        ("result.json", r'"epsilon": [\d.e+-]+', '"epsilon": 1e999', "result 0 has a claim without ε"),
        ("result.json", r'"epsilon": [\d.e+-]+', '"epsilon": -1e-3', "result 0 has a claim without ε"),
        ("result.json", r'"p_value": [\d.e+-]+', '"p_value": 1e999', "p-value"),
        ("result.json", r'"p_value": [\d.e+-]+', '"p_value": -1', "p-value"),
    ],
)
def test_other_versions_and_impossible_numbers_are_refused(name, pattern, after, words, one_method, tmp_path, run):
    copy = shutil.copytree(one_method, tmp_path / "run")
    text, changed = re.subn(pattern, after, (copy / name).read_text(), count=1)
    assert changed
    (copy / name).write_text(text)
    manifest.Manifest.of_files(copy).write()
    code, _, err = run("check", str(copy))
    assert (code, words in " ".join(err.split())) == (2, True), err
