"""``coalmine audit one-shot`` and ``coalmine audit mechanism`` as people run them."""

import json

import numpy as np
import pytest

FAST = [
    "--set",
    "partition=iid:40",
    "--set",
    "rounds=4",
    "--set",
    "client.epochs=1",
    "--set",
    "model_settings.hidden=70",
]


def test_the_output_has_the_claim_bounds_estimates_and_what_they_mean(run):
    code, out, _ = run("audit", "one-shot", *FAST, "--view", "final-change", "--baseline")
    assert code == 0
    for part in ("exact-null", "gaussian-shift", "lower bound", "Lower bound ε ≥", "without canaries"):
        assert part in out


def test_several_views_come_from_one_training_as_json(run):
    code, out, err = run(
        "audit", "one-shot", *FAST, "--view", "final", "--view", "updates", "--view", "every:2", "--json"
    )
    assert (code, err) == (0, "")
    found = json.loads(out)["results"]
    assert [(r["view"], r["config"]["score"]) for r in found] == [
        ("final", "cosine"), ("updates", "likelihood-ratio"), ("every:2", "max"),
    ]  # fmt: skip
    assert len({r["metrics"]["accuracy"] for r in found}) == 1
    assert all(r["claim"]["sampling"] == "poisson:0.5" for r in found)
    assert all(r["estimates"][0]["valid"] for r in found)


def test_a_directory_keeps_result_scores_and_checkpoint_and_is_gone_on_from(run, tmp_path):
    code, _, _ = run("audit", "one-shot", *FAST, "--view", "updates", "--out", str(tmp_path))
    assert code == 0
    first = json.loads((tmp_path / "result.json").read_text())
    scores = np.load(tmp_path / "scores-one-shot-updates.npz", allow_pickle=False)
    assert len(scores["members"]) == first["results"][0]["metrics"]["inserted"]
    code, _, _ = run("audit", "one-shot", *FAST, "--view", "updates", "--out", str(tmp_path))
    second = json.loads((tmp_path / "result.json").read_text())
    assert code == 0
    assert second == first
    code, _, err = run("audit", "one-shot", *FAST, "--set", "seed=1", "--view", "updates", "--out", str(tmp_path))
    assert code == 2
    assert "seed = 0" in err


def test_scores_of_a_run_can_be_estimated_again(run, tmp_path):
    run("audit", "one-shot", *FAST, "--out", str(tmp_path))
    code, out, _ = run("estimate", str(tmp_path / "scores-one-shot-final.npz"), "--design", "coin-flips")
    assert code == 0
    assert "one-run" in out


def test_a_training_without_noise_has_no_claim_and_a_large_bound(run):
    code, out, _ = run(
        "audit", "one-shot", *FAST, "--set", "canaries=100", "--set", "noise_multiplier=0", "--view", "updates",
        "--set", "participation=every-round", "--set", "score=likelihood-ratio", "--json",
    )  # fmt: skip
    (found,) = json.loads(out)["results"]
    assert code == 0
    assert (found["claim"], found["verdict"]) == (None, "no claim")
    assert found["estimates"][0]["epsilon"] > 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "canary=3"], "canaries"),
        (["--set", "canaries=0"], "canaries = '0'"),
        (["--view", "everything"], "everything"),
        (["--set", "score=max"], "final"),
        (["--set", "clip_norm=none", "--set", "noise_multiplier=0"], "norm"),
        (["--set", "clip_norm=none", "--set", "norm=1"], "noise_multiplier"),
        (["--set", "noise_multiplier=-1"], "noise_multiplier = '-1'"),
        (["--set", "noise=1"], "noise_multiplier"),
        (["--set", "view=updates", "--view", "final"], "view is set twice"),
        (["--view", "rounds:3,99"], "99"),
        (["--set", "canaries=1"], "canaries"),
        (["--set", "cohort=bla"], "cohort"),
        (["--set", "cohort=fixed:few"], "cohort"),
        (["--set", "canaries=1e6"], "2,000,000"),
        (["--set", "cohort=epoch:3"], "epochs:N"),
        (["--set", "delta=2"], "delta = '2'"),
        (["--set", "data=nowhere"], "nowhere"),
        (["--set", "rounds=0"], "rounds"),
        (["--set", "device=gpu"], "'gpu'"),
        (["--set", "device=meta"], "'meta'"),
        (["--set", "device=mtia"], "'mtia'"),
        (["--set", "device=cpu:x"], "cpu:x"),
    ],
)
def test_bad_input_is_a_sentence_and_exit_code_2(run, arguments, message):
    code, out, err = run("audit", "one-shot", *FAST[:2], *FAST[4:], *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_views_of_chosen_rounds_can_be_set_beside_others(run):
    code, out, _ = run("audit", "one-shot", *FAST, "--set", "view=rounds:0,2,updates", "--json")
    assert code == 0
    assert [r["view"] for r in json.loads(out)["results"]] == ["rounds:0,2", "updates"]


def test_a_bound_above_what_is_allowed_fails_the_command(run, tmp_path):
    (tmp_path / "mine.py").write_text("def leaky(total):\n    return total + 0.001\n\ndef broken(total):\n    1 / 0\n")
    common = ("audit", "mechanism", "--dim", "20000", "--function")
    code, out, err = run(*common, f"{tmp_path}/mine.py:leaky", "--max-epsilon", "4", "--claim", "2")
    assert code == 1
    assert "limit of 4" in err
    assert "Refuted" in out
    assert "too small everywhere" in out
    quiet = ("--claim", "2", "--calls", "0", "--quiet", "--out", str(tmp_path / "run"))
    code, _, err = run(*common, f"{tmp_path}/mine.py:leaky", *quiet)
    assert (code, err.count("\n")) == (1, 1)
    assert "the claim of ε = 2 is refuted" in err
    assert (tmp_path / "run" / "report.html").stat().st_size > 1000
    code, _, err = run(*common, f"{tmp_path}/mine.py:broken")
    assert code == 2
    assert "ZeroDivisionError" in err


def test_one_application_of_a_mechanism(run, tmp_path):
    code, out, _ = run(
        "audit",
        "mechanism",
        "--noise-multiplier",
        "1.0",
        "--dim",
        "20000",
        "--canaries",
        "500",
        "--seed",
        "1",
        "--json",
    )
    (found,) = json.loads(out)["results"]
    assert (code, found["unit"]) == (0, "one user, one application of the mechanism")
    assert found["claim"]["epsilon"] == pytest.approx(4.377, abs=0.01)
    assert next(e for e in found["estimates"] if e["method"] == "gaussian-shift")["epsilon"] == pytest.approx(
        4.4, abs=1
    )
    (tmp_path / "mine.py").write_text("def leaky(total):\n    return total + 0.001\n")
    code, out, _ = run("audit", "mechanism", "--function", f"{tmp_path}/mine.py:leaky", "--dim", "20000", "--json")
    assert json.loads(out)["results"][0]["estimates"][0]["epsilon"] > 50


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "noise_multiplier"),
        (["--noise-multiplier", "-1"], "noise_multiplier"),
        (["--function", "nowhere.py:f"], "nowhere.py"),
        (["--function", "nowhere"], "path.py:function"),
        (["--noise-multiplier", "1", "--dim", "1"], "dim"),
    ],
)
def test_bad_mechanisms_are_sentences_too(run, arguments, message):
    code, _, err = run("audit", "mechanism", *arguments)
    assert code == 2
    assert message in err


@pytest.mark.parametrize("method", ["one-shot", "canife", "ldp", "secret-sharer"])
def test_a_model_without_trainable_parameters_is_refused_by_every_method(method, tmp_path, run):
    source = "def frozen(task, *, embedding=4, units=8):\n"
    source += "    name = 'mlp' if task.tokens is None else 'word-lstm'\n"
    source += "    return build(name, task).requires_grad_(False)\n"
    (tmp_path / "mine.py").write_text(f"from coalmine.simulation.models import build\n\n{source}")
    code, _, err = run("audit", method, "--set", f"model={tmp_path}/mine.py:frozen", "--quiet")
    assert (code, err.count("\n")) == (2, 1)
    assert "no trainable parameters" in err
