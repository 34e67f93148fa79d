"""Runs: several audits of one training, and what they leave in a directory."""

import json
import re

import numpy as np
import pytest

from coalmine.errors import InputError
from coalmine.results.directory import RunDirectory
from coalmine.results.io import read_run_directory
from coalmine.runs.running import run
from coalmine.runs.settings import run_from_text
from finished_runs import EVERY_METHOD, ONE_METHOD


def test_all_audits_share_one_training(every_method):
    finished, directory = every_method
    saved = read_run_directory(directory)
    assert [r.method for r in saved.results] == [r.method for r in finished.results]
    assert saved.methods == ["one-shot", "canife", "secret-sharer", "ldp", "exposure", "mechanism"]
    assert saved.title == "together"
    assert len(saved.training_runs["training"]["history"]) == 4
    assert "recall@1 without canaries" in saved.training_runs["training"]["metrics"]
    assert list(saved.content["summaries"]) == ["ldp"]
    assert saved.of("secret-sharer", ["memorization"]).extras["memorization"]["canaries"]
    assert saved.config == run_from_text(EVERY_METHOD, "").to_toml()


def test_scores_and_trials_are_kept_for_each_view(every_method):
    finished, directory = every_method
    saved = read_run_directory(directory, scores=True)
    for result, stored in zip(finished.results, saved.results, strict=True):
        assert (stored.scores is None) is (result.scores is None)
        if result.scores is not None:
            assert np.array_equal(stored.scores.members, result.scores.members)
    rounds, composed = saved.of("canife").results
    assert len(rounds.arrays["scores"]) == 24
    assert (composed.view, composed.unit.name) == ("frozen, composed", "one user, whole training")


def test_the_result_has_no_clock_in_it(every_method):
    _, directory = every_method
    assert "seconds" not in (directory / "result.json").read_text()


def test_a_run_that_is_done_is_read_and_not_run_again(every_method):
    finished, directory = every_method
    before = (directory / "result.json").read_bytes()
    again = run(run_from_text(EVERY_METHOD, "audit.toml"), out=directory)
    assert (directory / "result.json").read_bytes() == before
    assert [r.to_dict() for r in again.results] == json.loads(json.dumps([r.to_dict() for r in finished.results]))
    assert np.array_equal(again.results[0].scores.members, finished.results[0].scores.members)


def test_another_config_is_refused_and_named(every_method):
    _, directory = every_method
    with pytest.raises(InputError, match=r"noise_multiplier = 1.0 .*noise_multiplier = 0.5"):
        run(run_from_text(EVERY_METHOD, "audit.toml", ["training.noise_multiplier=0.5"]), out=directory)
    run(run_from_text(EVERY_METHOD, "audit.toml", ["training.workers=2", "training.device=cpu"]), out=directory)


def test_a_directory_in_use_is_refused(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    with directory.claimed("x = 1"):
        assert directory.standing()[0] == "running"
        with (
            pytest.raises(InputError, match="in use"),
            RunDirectory(tmp_path / "run").claimed("x = 1"),
        ):
            pass
    assert directory.about()["state"] == "done"


def test_a_failure_is_written_down(tmp_path):
    directory = RunDirectory(tmp_path)
    with pytest.raises(ZeroDivisionError), directory.claimed("x = 1"):
        raise ZeroDivisionError("by zero")
    assert directory.about()["state"] == "failed"
    assert directory.about()["message"] == "by zero"
    with pytest.raises(InputError, match=r"failed: by zero.*coalmine resume"):
        read_run_directory(tmp_path)


def test_a_run_whose_process_was_killed_is_not_said_to_go_on(tmp_path):
    directory = RunDirectory(tmp_path)
    with directory.claimed("x = 1"):
        with pytest.raises(InputError, match=r"running.*wait"):
            read_run_directory(tmp_path)
        kept = (tmp_path / "run.json").read_bytes()
    (tmp_path / "run.json").write_bytes(kept)  # as a kill leaves it
    with pytest.raises(InputError, match=r"stopped.*coalmine resume"):
        read_run_directory(tmp_path)


def test_a_directory_of_a_newer_version_is_refused_with_both_versions(tmp_path):
    (tmp_path / "run.json").write_text('{"format": 9, "coalmine": "9.1"}')
    with pytest.raises(InputError, match=r"coalmine 9.1 \(format 9\).*format 2"):
        RunDirectory(tmp_path).about()


def test_files_of_somebody_else_are_not_overwritten(tmp_path):
    (tmp_path / "result.json").write_text("precious")
    with pytest.raises(InputError, match=r"holds result\.json"), RunDirectory(tmp_path).claimed("x = 1"):
        pass
    assert (tmp_path / "result.json").read_text() == "precious"


def test_what_an_audit_would_say_now_is_logged(every_method):
    _, directory = every_method
    rounds = [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines() if '"round"' in line]
    assert {"canife", "one-shot"} <= {name.partition("/")[0] for entry in rounds for name in entry["figures"]}


def test_a_directory_in_which_nothing_was_computed_can_be_used_again(tmp_path):
    wrong = run_from_text(EVERY_METHOD, "audit.toml", ["training.rounds=0"])
    with pytest.raises(InputError, match="rounds"):
        run(wrong, out=tmp_path / "run")
    with RunDirectory(tmp_path / "run").claimed("x = 1"):
        pass


def test_a_wrong_setting_of_the_second_model_is_reported_before_the_first_training(tmp_path, run):
    (tmp_path / "audit.toml").write_text(
        "[training]\nrounds = 100000\n[one-shot]\ncanaries = 10\n[text-training]\nmodel_settings = {no_such = 3}\n"
        "[secret-sharer]\n"
    )
    code, _, err = run("run", tmp_path / "audit.toml", "--out", tmp_path / "run", "--quiet")
    assert code == 2
    assert "no_such" in err
    assert not (tmp_path / "run" / "checkpoint").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["training.data=nowhere.npz"], r"\[training\] there is no data set and no file .nowhere.npz"),
        (["training.model=nonesuch"], r"\[training\] there is no model 'nonesuch'"),
    ],
)
def test_a_run_that_never_began_names_the_table_and_leaves_nothing(changes, message, tmp_path, run):
    file = tmp_path / "audit.toml"
    file.write_text('[training]\npartition = "iid:12"\nrounds = 10\nmodel_settings = {}\n[canife]\n')
    sets = [text for change in changes for text in ("--set", change)]
    code, _, err = run("run", str(file), "--out", str(tmp_path / "new" / "run"), *sets)
    assert code == 2
    assert re.search(message, " ".join(err.split()))
    assert [path.name for path in tmp_path.iterdir()] == ["audit.toml"]


def test_a_refused_run_leaves_a_directory_of_the_user_as_it_was(tmp_path, run):
    mine = tmp_path / "mine"
    (mine / "parts").mkdir(parents=True)
    file = tmp_path / "audit.toml"
    file.write_text('[ldp]\ncrafter = "dummy-gradient"\ntrials = 60\n')
    assert run("run", str(file), "--out", str(mine))[0] == 2
    assert [path.name for path in mine.iterdir()] == ["parts"]


def test_a_run_whose_directory_is_moved_stops_and_goes_on_where_it_is(one_method, tmp_path):
    def move(round, measured):
        (tmp_path / "there").rename(tmp_path / "here")

    with pytest.raises(InputError, match="there was moved or deleted"):
        run(run_from_text(ONE_METHOD, "tiny"), out=tmp_path / "there", watch=move)
    assert not (tmp_path / "there" / "result.json").exists()
    run(run_from_text(ONE_METHOD, "tiny"), out=tmp_path / "here")
    assert (tmp_path / "here" / "result.json").read_bytes() == (one_method / "result.json").read_bytes()


def test_a_method_without_luck_keeps_no_other_from_its_results(tmp_path, run):
    """Both coins of this seed hold the canary out, which shows only after the training."""
    settings = ONE_METHOD.replace("rounds = 3", "rounds = 1") + "\n[canife]\ntrials = 2\ndesign.iterations = 0\n"
    (tmp_path / "audit.toml").write_text(settings)
    code, out, err = run("run", tmp_path / "audit.toml", "--out", tmp_path / "run", "--quiet")
    assert (code, "[canife] has no result: the coin flips" in err, "final-change" in out) == (2, True, True)
    assert {result.method for result in read_run_directory(tmp_path / "run").results} == {"one-shot"}
    code, out, _ = run("check", tmp_path / "run")
    assert (code, "config.toml has [canife], but there is no result of it: frozen" in out) == (1, True)


def test_phrases_that_coins_insert_all_or_none_of_are_refused_before_the_training(tmp_path, run):
    settings = "[text-training]\nvocabulary_size = 120\nclients = 40\n[secret-sharer]\neach = 3\np_u = 0.1\np_e = 1.0\n"
    (tmp_path / "audit.toml").write_text(settings)
    code, _, err = run("run", tmp_path / "audit.toml", "--out", tmp_path / "run", "--quiet")
    assert (code, "the coin flips insert all of the 6 phrases" in err) == (2, True)
    assert not (tmp_path / "run").exists()
