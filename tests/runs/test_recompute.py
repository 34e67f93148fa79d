"""The gate recomputes: a changed file is refused, and with a fitting manifest the stored numbers still do not count."""

import json
import math
import os
import re
import shutil

import numpy as np
import pytest

from coalmine import Claim, OneShot, files
from coalmine.errors import InputError
from coalmine.results import Results
from coalmine.results.gate import judge
from coalmine.results.io import MANIFEST, check_manifest, read_run_directory, write_manifest
from coalmine.runs.recompute import recompute
from coalmine.runs.running import run as run_all
from coalmine.runs.settings import run_from_text
from finished_runs import EVERY_METHOD, ONE_METHOD
from gate_runs import result


@pytest.fixture
def copy(one_method, tmp_path):
    return shutil.copytree(one_method, tmp_path / "copy")


def changed(directory, change):
    """Change the content of ``result.json``, and make the manifest fit."""
    content = json.loads((directory / "result.json").read_text())
    change(content)
    (directory / "result.json").write_text(json.dumps(content))
    write_manifest(directory)
    return directory


def test_every_method_is_recomputed_to_the_digit(every_method):
    finished, directory = every_method
    again = recompute(read_run_directory(directory, scores=True))
    assert (again.differences, again.not_recomputed) == ([], [])
    assert {r.method for r in again.results} == {
        "one-shot", "canife", "secret-sharer", "ldp", "exposure", "mechanism",
    }  # fmt: skip
    for stored, now in zip(finished.results, again.results, strict=True):
        assert now.to_dict()["estimates"] == stored.to_dict()["estimates"], now.label
        assert now.verdict is stored.verdict


@pytest.mark.slow
def test_claims_for_replacing_a_client_agree_with_the_settings(tmp_path):
    text = (
        ONE_METHOD.replace("rounds = 3", 'rounds = 2\ncohort = "fixed:5"')
        + "\n[canife]\ntrials = 8\ndesign.iterations = 0\n"
    )
    finished = run_all(run_from_text(text, "fixed.toml"), out=tmp_path / "run")
    assert recompute(read_run_directory(tmp_path / "run", scores=True)).differences == []
    # A canary is added to a round, a client is replaced in a training: the same noise, over one or two clip norms.
    noise = {(r.claim.noise_multiplier, r.claim.adjacency) for r in finished.results}
    assert noise == {(0.5, "add-or-remove-one"), (0.25, "replace-one")}


def test_stored_numbers_are_ignored_and_any_changed_one_is_named(every_method, tmp_path, run):
    """One recomputation finds changes in all results at once: each is compared with its own scores."""
    finished, directory = every_method
    copy, places = shutil.copytree(directory, tmp_path / "run"), []

    def change(content):
        for one in content["results"]:
            name, first, test = f"{one['method']}, {one['view']}", one["estimates"][0], one["claim_test"]
            first["epsilon"] = 0.5 if first["epsilon"] in (0, "inf") else first["epsilon"] * (1 - 1e-6)
            if first["valid"]:
                first["lower"] = first["epsilon"]  # otherwise it could not even be read
            one["verdict"] = "refuted" if one["verdict"] != "refuted" else "not refuted"
            places.extend([(name, "epsilon"), (name, "verdict")])
            if test is not None and test["p_value"] is not None:
                test["p_value"] = test["p_value"] / 2
                places.append((name, "p_value"))

    run_read = read_run_directory(changed(copy, change), scores=True)
    again = recompute(run_read)
    labels = {f"{r.method}, {r.view}": f"{r.method}, {r.label}" for r in again.results}
    for name, word in places:
        assert any(text.startswith(labels[name]) and word in text for text in again.differences), (name, word)
    assert judge(again.results).to_dict() == judge(finished.results).to_dict()
    assert run("check", copy)[0] == 1


def test_rounding_is_no_difference(one_method, tmp_path):
    copy = shutil.copytree(one_method, tmp_path / "copy")

    def change(content):
        estimate = next(e for e in content["results"][0]["estimates"] if not e["valid"] and e["epsilon"])
        estimate["epsilon"] = math.nextafter(estimate["epsilon"], math.inf)

    assert recompute(read_run_directory(changed(copy, change), scores=True)).differences == []


def test_a_changed_epsilon_of_a_claim_may_be_shown_but_stops_the_gate(one_method, tmp_path, run):
    copy = shutil.copytree(one_method, tmp_path / "copy")

    def change(content):
        content["results"][0]["claim"]["epsilon"] = 99.0

    changed(copy, change)
    assert read_run_directory(copy, as_stored=True).results[0].claim.epsilon == 99
    assert read_run_directory(copy).results[0].claim.epsilon < 99
    assert run("check", copy)[0] == 1


def drop_a_view(copy, content):
    del content["results"][0]
    for path in copy.glob("*-final-change.npz"):
        path.unlink()


def drop_a_method(copy, content):
    content["results"] = [one for one in content["results"] if one["method"] != "ldp"]
    for path in copy.glob("*-ldp-*"):
        path.unlink()


def drop_a_result_but_not_its_scores(copy, content):
    del content["results"][0]


def drop_the_stricter_bounds(copy, content):
    for one in content["results"]:
        for estimate in one["estimates"]:
            estimate.pop("stricter", None)


def drop_the_terms(copy, content):
    content["results"][0]["recipe"] = {}


def drop_the_scores(copy, content):
    (copy / "scores-one-shot-updates.npz").unlink()


def take_the_settings_of_another_run(copy, content):
    settings = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text(settings.replace("noise_multiplier = 0.5", "noise_multiplier = 9.0"))


def repeat_a_result(copy, content):
    content["results"].append(content["results"][0])


def state_another_unit(copy, content):
    """A limit on ε does not apply to single rounds."""
    for one in content["results"]:
        one["unit"] = "one user, one round"


def take_the_scores_of_another_run(copy, content):
    """As if a quiet training had given these results."""
    path = copy / "scores-one-shot-updates.npz"
    rng = np.random.default_rng(0)
    np.savez(path, **{name: rng.normal(size=side.size) for name, side in np.load(path).items()})


def state_another_name(copy, content):
    """A Greek letter: the scores go along, and nobody sees the difference."""
    for one in content["results"]:
        one["method"] = one["method"].replace("one-shot", "\u03bfne-shot")
    for path in copy.glob("*-one-shot-*.npz"):
        path.rename(path.with_name(path.name.replace("one-shot", "\u03bfne-shot")))


ATTACKS = [
    drop_a_view, drop_a_result_but_not_its_scores, drop_the_stricter_bounds, drop_the_terms,
    drop_the_scores, take_the_settings_of_another_run, repeat_a_result, state_another_unit,
    take_the_scores_of_another_run, state_another_name,
]  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_changes_with_a_fitting_manifest_are_differences(attack, copy):
    changed(copy, lambda content: attack(copy, content))
    assert recompute(read_run_directory(copy, scores=True)).differences


def forget_the_claim(content):
    for one in content["results"]:
        one |= {"claim": None, "claim_test": None, "verdict": "no claim"}


def claim_rare_participation(content):
    for one in content["results"]:
        for holder in (one, one["claim_test"]):
            holder["claim"]["sampling"] = "poisson:0.01"


def claim_what_nobody_settled(content):
    for one in content["results"]:
        one |= {"claim": {**one["claim"], "noise_multiplier": None, "stated": True, "epsilon": 3.0}, "claim_test": None}


def say_that_fewer_took_part(content):
    for one in content["results"]:
        one["config"]["cohort"] = "poisson:0.01"


def say_that_there_was_no_mechanism(content):
    content["training_runs"]["training"]["private"] = False


def forget_the_training(content):
    content["training_runs"] = {}


def state_another_seed(content):
    for one in content["results"]:
        one["seed"] += 1


def state_another_number_of_canaries(content):
    for one in content["results"]:
        one["config"]["canaries"] = 1000


def take_another_title(content):
    content["title"] = "Another run"


def name_another_auditor(content):
    content["auditor"] = "Somebody Else"


FORGERIES = [
    forget_the_claim, claim_rare_participation, claim_what_nobody_settled, say_that_fewer_took_part,
    say_that_there_was_no_mechanism, forget_the_training, state_another_seed, state_another_number_of_canaries,
    take_another_title, name_another_auditor,
]  # fmt: skip


@pytest.mark.parametrize("forge", FORGERIES)
def test_forgeries_that_fit_the_scores_differ_from_the_settings(forge, copy):
    """What is stored is exactly what the scores give for the forged claim, which only the settings contradict."""
    changed(copy, forge)
    forged = recompute(read_run_directory(copy, scores=True)).results
    changed(copy, lambda content: content.update(results=[result.to_dict() for result in forged]))
    again = recompute(read_run_directory(copy, scores=True))
    assert [result.to_dict() for result in again.results] == [result.to_dict() for result in forged]
    assert again.differences


def test_every_configured_result_and_document_must_be_there(every_method, tmp_path):
    copy = shutil.copytree(every_method[1], tmp_path / "run")
    gone = {"white-box": "dummy-gradient, ε = 1, white-box", "frozen, composed": "frozen, composed"}
    gone["loss:user"] = "loss:user"

    def drop(content):
        content["results"] = [one for one in content["results"] if one["view"] not in gone]
        for path in [*copy.glob("*-white-box.npz"), *copy.glob("*-loss-user.npz"), copy / "memorization.json"]:
            path.unlink()

    differences = recompute(read_run_directory(changed(copy, drop), scores=True)).differences
    missing = [text.partition("there is no ")[2] for text in differences if "there is no " in text]
    assert sorted(missing) == sorted(["memorization.json", *(f"result of it: {label}" for label in gone.values())])


def test_numbers_on_the_page_are_compared_and_other_html_is_not(copy, run):
    """The page of another version may look different, but not show other numbers, and none may be cut out of it."""
    assert run("report", copy)[0] == 0
    page = (copy / "report.html").read_text(encoding="utf-8")
    (copy / "report.html").write_text(page.replace("How private is it?", "A new heading"), encoding="utf-8")
    assert run("check", copy)[0] == 0
    (claimed,) = set(re.findall(r'(?<=updates: claimed_epsilon">≤ )[\d.]+', page))
    for other in (
        page.replace(f"≤ {claimed}<", "≤ 1.5<"),
        page.replace('data-number="one-shot, updates: verdict"', ""),
        page.replace("data-number", "data-digit"),
        re.sub(r'(class="headline".*?>)[^<]+', r"\1Suspicious", page),
        re.sub(r'(updates: p_value">)[^<]+', r"\g<1>0.77", page),
    ):
        (copy / "report.html").write_text(other, encoding="utf-8")
        code, out, _ = run("check", copy)
        assert (code, "report.html" in out) == (1, True)


def drop_the_findings(one):
    one["findings"] = []


def change_its_p_value(one):
    one["findings"][0]["p_value"] *= 2


def call_it_a_warning(one):
    one["findings"][0]["refutes"] = False


def flip_the_verdict(one):
    one["verdict"] = "not refuted"


def add_a_finding(one):
    one["findings"].append({**one["findings"][0], "sentence": "The noise is not fresh", "check": "fresh noise"})


@pytest.fixture(scope="module")
def without_noise_on_the_bias(tmp_path_factory):
    """A training whose second tensor has no noise: a check finds it, and no other number in the result shows it."""
    layers, rng = {"weight": (40, 50), "bias": (500,)}, np.random.default_rng(0)
    audit = OneShot(2500, rounds=2, canaries=20, view="updates", participation="every-round", layers=layers)
    for t in range(2):
        total = audit.plant(t, clip_norm=1.0).total + np.where(np.arange(2500) < 2000, rng.normal(0, 5, 2500), 0)
        audit.observe(t, update=total.astype(np.float32), divisor=1.0)
    found = audit.result(claim=Claim(noise_multiplier=5.0, delta=1e-5))
    assert [finding.check for finding in found.bugs][:1] == ["noise on every tensor"]
    directory = tmp_path_factory.mktemp("saved")
    found.save(directory)
    again = recompute(read_run_directory(directory, scores=True))
    assert again.differences == []
    assert again.results[0].findings == found.findings
    return directory


CHANGES = [drop_the_findings, add_a_finding, change_its_p_value, call_it_a_warning, flip_the_verdict]


@pytest.mark.parametrize("change", CHANGES)
def test_findings_and_verdicts_that_were_changed_are_differences(change, without_noise_on_the_bias, tmp_path, run):
    copy = shutil.copytree(without_noise_on_the_bias, tmp_path / "copy")
    findings = read_run_directory(copy).results[0].findings
    changed(copy, lambda content: change(content["results"][0]))
    after = recompute(read_run_directory(copy, scores=True))
    assert after.results[0].findings == findings
    assert [text for text in after.differences if "findings" in text or "verdict" in text]
    code, out, err = run("check", copy)
    assert (code, "stored as" in out + err) == (1, True)


def test_other_words_are_no_difference(without_noise_on_the_bias, one_method, every_method, tmp_path, run):
    """A run that was written before a change of wording is judged like any other."""

    def reword(content):
        for one in content["results"]:
            for place in (*one["estimates"], one["claim_test"] or {}):
                place["assumes"] = "other words"
            for finding in one["findings"]:
                finding |= {"sentence": "other words", "example": "other words"}
            one["summary"] = "other words"

    for number, directory in enumerate((one_method, without_noise_on_the_bias, every_method[1])):
        copy = changed(shutil.copytree(directory, tmp_path / f"{number}"), reword)
        assert recompute(read_run_directory(copy, scores=True)).differences == []
        if directory != every_method[1]:  # would be computed twice more
            assert run("check", copy)[0] == run("check", directory)[0]
    assert run("check", tmp_path / "0")[0] == 0


def test_a_method_or_unit_that_the_settings_do_not_give_is_a_difference(every_method, tmp_path):
    copy = shutil.copytree(every_method[1], tmp_path / "run")

    def change(content):
        drop_a_method(copy, content)
        state_another_unit(copy, content)

    differences = recompute(read_run_directory(changed(copy, change), scores=True)).differences
    assert any("[ldp]" in text for text in differences)
    assert sum("unit is stored as" in text for text in differences) >= 5


def test_a_loosened_delta_does_not_count_beside_the_settings(copy):
    before = recompute(read_run_directory(copy, scores=True))
    changed(copy, lambda content: content["results"][0]["recipe"].update(delta=0.5, confidence=0.5))
    after = recompute(read_run_directory(copy, scores=True))
    assert after.differences == []
    assert after.results[0].estimates == before.results[0].estimates


def test_results_without_terms_are_judged_as_stored_and_said_to_be(tmp_path, run):
    result().save(tmp_path)
    code, out, _ = run("verify", tmp_path)
    assert code == 0
    assert "Judged as stored" in out


def settings_changed(path):
    config = path / "config.toml"
    config.write_text(config.read_text().replace("noise_multiplier = 0.5", "noise_multiplier = 5.0"))
    return "config.toml was changed"


def scores_missing(path):
    (path / "scores-one-shot-updates.npz").unlink()
    return "scores-one-shot-updates.npz is missing"


def arrays_added(path):
    np.savez(path / "arrays-one-shot-other.npz", scores=np.zeros(3))
    return "arrays-one-shot-other.npz was added"


def result_edited(path):
    (path / "result.json").write_text((path / "result.json").read_text().replace("one-shot", "one-shoe", 1))
    return "result.json was changed"


@pytest.mark.parametrize("change", [settings_changed, scores_missing, arrays_added, result_edited])
def test_every_command_refuses_a_changed_run_and_names_the_file(copy, one_method, run, change):
    named = change(copy)
    for command in (["check"], ["report"], ["verify"], ["compare", one_method]):
        code, _, err = run(*command, copy)
        assert (code, named in err, err.count("\n")) == (2, True, 1), (command, err)
    code, _, err = run("resume", copy)
    assert code == 2


def test_an_untouched_run_is_accepted_by_every_command(copy, one_method, run):
    for command in (["check"], ["report"], ["resume", "--quiet"], ["verify"], ["compare", one_method]):
        assert run(*command, copy)[0] == 0
    assert check_manifest(copy) == check_manifest(one_method)


def test_a_directory_without_a_manifest_is_refused(copy, run):
    (copy / MANIFEST).unlink()
    code, _, err = run("check", copy)
    assert (code, MANIFEST in err) == (2, True)


def test_saved_results_have_a_manifest_too_and_leave_other_files_alone(tmp_path, run):
    (tmp_path / "package.json").write_text("{}")
    result().save(tmp_path)
    (tmp_path / "package.json").write_text('{"mine": 1}')
    assert run("check", tmp_path)[0] == 0
    assert read_run_directory(tmp_path).provenance["date"].endswith("+00:00")
    result().save(tmp_path, overwrite=True)
    assert (tmp_path / "package.json").read_text() == '{"mine": 1}'


def test_results_with_one_file_for_their_scores_are_refused_before_anything_is_written(tmp_path):
    for view in ("final", "Final", "final:"):
        with pytest.raises(InputError, match=r"scores-.*npz"):
            Results([result(view="final"), result(view=view)]).save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_results_state_when_and_with_what_they_were_computed(one_method, run):
    origin = read_run_directory(one_method).provenance
    assert origin["seeds"] == {"training": 0}
    assert {"date", "coalmine", "python", "platform", "numpy", "torch"} <= origin.keys()
    assert os.uname().nodename not in json.dumps(origin)
    code, out, _ = run("verify", one_method, "--json")
    assert (code, json.loads(out)["provenance"]) == (0, origin)
    assert origin["date"] not in (one_method / "result.json").read_text()


@pytest.mark.slow
def test_a_kill_at_any_rename_leaves_a_run_that_resumes_to_the_same_bytes(one_method, tmp_path, monkeypatch):
    """The directory before and after every rename is what a kill at that moment leaves."""
    out, rename, moments = tmp_path / "run", os.replace, []

    def watched(path, *arguments, **more):
        if str(out) not in str(path):
            return rename(path, *arguments, **more)
        moments.append(shutil.copytree(out, tmp_path / f"killed-{len(moments)}"))
        rename(path, *arguments, **more)
        return moments.append(shutil.copytree(out, tmp_path / f"killed-{len(moments)}"))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", watched)
        run_all(run_from_text(ONE_METHOD, "tiny"), out=out)
    assert len(moments) > 20
    for killed in moments:
        run_all(run_from_text(ONE_METHOD, "tiny"), out=killed)
        assert (killed / "result.json").read_bytes() == (one_method / "result.json").read_bytes()
        assert not list(killed.rglob(".*.new"))


def test_a_run_without_its_last_parts_recomputes_them_from_the_checkpoint(every_method, tmp_path):
    _, directory = every_method
    copy = shutil.copytree(directory, tmp_path / "run")
    for path in [copy / "parts" / "one-shot.json", copy / "parts" / "ldp.json", copy / "result.json", copy / MANIFEST]:
        path.unlink()
    run_all(run_from_text(EVERY_METHOD, "audit.toml"), out=copy)
    assert (copy / "result.json").read_bytes() == (directory / "result.json").read_bytes()
    assert check_manifest(copy) == check_manifest(directory)


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    files.write_text(tmp_path / "one.json", "old")
    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(InputError, match="No space left"):
        files.write_text(tmp_path / "one.json", "new")
    assert (tmp_path / "one.json").read_text() == "old"
