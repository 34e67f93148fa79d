"""Runs: several audits of one training, and what they leave in a directory."""

import json
import re

import numpy as np
import pytest

from coalmine.errors import InputError
from coalmine.results import directory as directory_module
from coalmine.results.directory import RunDirectory
from coalmine.results.io import read_run_directory
from coalmine.runs.running import run
from coalmine.runs.settings import run_from_text

TOGETHER = """\
[run]
title = "together"
baseline = true
checkpoint_every = 2

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
design.iterations = [5]

[secret-sharer]
references = 2000
each = 4
twins = 2
design = "fixed"

[ldp]
trials = 300
epsilon = [1.0]
crafter = ["dummy-gradient"]
view = ["white-box"]

[exposure]
"""


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "together"
    return run(run_from_text(TOGETHER, "audit.toml"), out=directory), directory


def test_all_audits_share_one_training(together):
    finished, directory = together
    saved = read_run_directory(directory)
    assert [r.method for r in saved.results] == [r.method for r in finished.results]
    assert saved.methods == ["one-shot", "canife", "secret-sharer", "ldp", "exposure"]
    assert saved.title == "together"
    assert len(saved.trainings["training"]["history"]) == 4
    assert "recall@1 without canaries" in saved.trainings["training"]["metrics"]
    assert list(saved.content["summaries"]) == ["ldp"]
    assert saved.of("secret-sharer", ["memorization"]).extras["memorization"]["canaries"]
    assert saved.config == run_from_text(TOGETHER, "").to_toml()


def test_scores_and_trials_are_kept_for_each_view(together):
    finished, directory = together
    saved = read_run_directory(directory, scores=True)
    for result, stored in zip(finished.results, saved.results, strict=True):
        assert (stored.scores is None) is (result.scores is None)
        if result.scores is not None:
            assert np.array_equal(stored.scores.members, result.scores.members)
    rounds, composed = saved.of("canife").results
    assert len(rounds.arrays["scores"]) == 24
    assert (composed.view, composed.unit.name) == ("frozen, composed", "one user, whole training")


def test_the_result_has_no_clock_in_it(together):
    finished, directory = together
    assert "timing" not in (directory / "result.json").read_text()
    assert all("audit_s" in result.timing for result in finished.results)


def test_a_run_that_is_done_is_read_and_not_run_again(together):
    finished, directory = together
    before = (directory / "result.json").read_bytes()
    again = run(run_from_text(TOGETHER, "audit.toml"), out=directory)
    assert (directory / "result.json").read_bytes() == before
    assert [r.to_dict() for r in again.results] == json.loads(json.dumps([r.to_dict() for r in finished.results]))
    assert np.array_equal(again.results[0].scores.members, finished.results[0].scores.members)


def test_another_config_is_refused_and_named(together):
    _, directory = together
    with pytest.raises(InputError, match=r"noise_multiplier = 1.0 .*noise_multiplier = 0.5"):
        run(run_from_text(TOGETHER, "audit.toml", ["training.noise_multiplier=0.5"]), out=directory)
    run(run_from_text(TOGETHER, "audit.toml", ["training.workers=2", "training.device=cpu"]), out=directory)


def test_a_directory_in_use_is_refused(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    with directory.claimed("x = 1"):
        assert directory.in_use()
        with (
            pytest.raises(InputError, match="in use"),
            RunDirectory(tmp_path / "run").claimed("x = 1"),
        ):
            pass
    assert not directory.in_use()
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
    (tmp_path / "run.json").write_text('{"format": 2, "coalmine": "9.1"}')
    with pytest.raises(InputError, match=r"coalmine 9.1 \(format 2\).*format 1"):
        RunDirectory(tmp_path).about()


def test_files_of_somebody_else_are_not_overwritten(tmp_path):
    (tmp_path / "result.json").write_text("precious")
    with pytest.raises(InputError, match=r"holds result\.json"), RunDirectory(tmp_path).claimed("x = 1"):
        pass
    assert (tmp_path / "result.json").read_text() == "precious"


def test_what_an_audit_would_say_now_is_logged(together):
    _, directory = together
    rounds = [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines() if '"round"' in line]
    assert any("ε̂ᵣ" in word for entry in rounds for word in entry.get("live", []))
    assert any("(updates)" in word for entry in rounds for word in entry.get("live", []))


def test_a_directory_in_which_nothing_was_computed_can_be_used_again(tmp_path):
    wrong = run_from_text(TOGETHER, "audit.toml", ["training.rounds=0"])
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
        (["canife.every=20"], r"\[canife\] every must be at most the number of rounds, 10, got 20"),
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


def test_a_lock_that_its_holder_removed_is_opened_again(tmp_path, monkeypatch):
    lock, attempts = directory_module._lock, []

    def lock_after_removal(file, path, **options):
        if not attempts:
            (path / ".lock").unlink()
        attempts.append(file)
        lock(file, path, **options)

    monkeypatch.setattr(directory_module, "_lock", lock_after_removal)
    directory = RunDirectory(tmp_path / "run")
    with directory._locked():
        assert len(attempts) == 2
        assert directory.in_use()
    assert not directory.path.exists()
