"""The command line as people and machines use it."""

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoints
from pathlib import Path

import numpy as np
import pytest

from coalmine import __version__

SCORES = str(Path(__file__).parents[2] / "examples" / "scores.csv")


@pytest.fixture
def golden(tmp_path):
    """1,000 + 1,000 scores whose true ε is 4.377 at δ = 1e-5."""
    rng = np.random.default_rng([20230208, 1000, 10])
    members, nonmembers = rng.normal(1, 1, 1000), rng.normal(0, 1, 1000)
    np.savez(tmp_path / "golden.npz", members=members, nonmembers=nonmembers)
    return tmp_path / "golden.npz"


def test_estimate_prints_every_method_and_what_the_number_means(run, golden):
    code, out, err = run("estimate", golden)
    assert (code, err) == (0, "")
    for word in ("simultaneous", "lower bound", "gaussian-shift", "estimate", "ε ≥ 2.11"):
        assert word in " ".join(out.split())


def test_estimate_asks_whether_a_stated_epsilon_follows_from_its_terms(run, golden):
    terms = "noise=0.4,sampling=poisson:0.2,rounds=10,epsilon="
    code, out, _ = run("estimate", golden, "--claim", f"{terms}0.95")
    assert code == 1
    assert "The claimed ε = 0.95 is below what this mechanism gives" in " ".join(out.split())
    code, out, _ = run("estimate", golden, "--claim", f"{terms}50")
    assert (code, "below what" in out) == (0, False)


def test_estimate_as_json_is_the_result_and_nothing_else(run, golden):
    code, out, _ = run("estimate", golden, "--json", "--delta", "1e-6", "--method", "simultaneous")
    content = json.loads(out)
    (result,) = content["results"]
    assert code == 0
    assert (content["schema"], content["coalmine"], result["config"]["members"]) == (3, __version__, 1000)
    (estimate,) = result["estimates"]
    assert estimate["method"] == "simultaneous"
    assert (estimate["delta"], estimate["confidence"], estimate["valid"]) == (1e-6, 0.95, True)
    assert result["ceiling"] > estimate["lower"] > 1.8


def test_infinite_estimates_are_valid_json(run, tmp_path):
    (tmp_path / "s.csv").write_text("members,nonmembers\n2,0\n3,1\n")
    _, out, _ = run("estimate", tmp_path / "s.csv", "--json", "--method", "best-threshold")
    assert json.loads(out)["results"][0]["estimates"][0]["epsilon"] == "inf"


def test_losses_and_known_nulls(run, tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "losses.npz", members=-rng.normal(2, 1, 500), nonmembers=rng.normal(0, 1, 500))
    _, out, _ = run("estimate", tmp_path / "losses.npz", "--lower-is-member", "--json", "--method", "simultaneous")
    assert json.loads(out)["results"][0]["estimates"][0]["lower"] > 2
    np.savez(tmp_path / "cosines.npz", members=rng.normal(1, 1, 500) / 1000)
    _, out, _ = run("estimate", tmp_path / "cosines.npz", "--null", "cosine:1000000", "--json")
    (found,) = json.loads(out)["results"]
    assert found["estimates"][0]["method"] == "exact-null"
    assert found["config"]["nonmembers"] is None
    _, out, _ = run("estimate", tmp_path / "cosines.npz", "--null", "normal:0,0.001", "--json")
    assert json.loads(out)["results"][0]["estimates"][0]["lower"] == pytest.approx(
        found["estimates"][0]["lower"], rel=0.01
    )


def test_account_prints_the_secret_sharer_papers_settings(run):
    arguments = (
        "account",
        "--noise-multiplier",
        "1",
        "--sampling",
        "poisson:5000/392000",
        "--rounds",
        "800",
        "--delta",
        "1e-7",
    )
    _, out, _ = run(*arguments, "--json")
    epsilon = {t["accountant"]: t["epsilon"] for t in json.loads(out)["claims"]}
    assert epsilon["pld"] == pytest.approx(2.8113, abs=5e-3)
    assert epsilon["rdp"] == pytest.approx(3.1696, abs=5e-3)
    code, out, _ = run(*arguments)
    assert code == 0
    assert "ε is at most 2.8" in " ".join(out.split())


@pytest.mark.parametrize(("rounds", "printed"), [("7840", 18.8), ("784", 5.6)])
def test_account_gives_the_secret_sharer_papers_epsilons(run, rounds, printed):
    _, out, _ = run(
        "account",
        "--noise-multiplier",
        "1",
        "--sampling",
        "fixed:5000/392000",
        "--rounds",
        rounds,
        "--delta",
        "1e-7",
        "--json",
    )
    epsilon = {t["accountant"]: t["epsilon"] for t in json.loads(out)["claims"]}
    assert round(epsilon["rdp-mironov"], 1) == printed


def test_account_finds_noise(run):
    _, out, _ = run("account", "--epsilon", "4.377178", "--json")
    noise = {t["accountant"]: t["noise_multiplier"] for t in json.loads(out)["claims"]}
    assert noise["pld"] == pytest.approx(1.0, rel=2e-3)
    _, out, _ = run("account", "--noise-multiplier", "0")
    assert "ε is infinite" in out


def test_exposure_of_losses_and_of_ranks(run, tmp_path):
    rng = np.random.default_rng(1)
    canaries, references = rng.normal(-3, 1, 50), rng.normal(0, 1, 1000)
    rows = [f"{x},canary" for x in canaries] + [f"{x},reference" for x in references]
    (tmp_path / "l.csv").write_text("loss,canary\n" + "\n".join(rows))
    _, out, _ = run("audit", "exposure", "--file", tmp_path / "l.csv", "--json")
    (by_loss,) = json.loads(out)["results"]
    assert (by_loss["details"]["canaries"], by_loss["details"]["references"]) == (50, 1000)
    chance = {row["summary"]: row["random_guessing"] for row in by_loss["details"]["rows"]}
    assert chance["mean"] == pytest.approx(1.434950, abs=1e-6)
    assert chance["median"] == pytest.approx(0.997117, abs=1e-6)
    assert chance["75th percentile"] == pytest.approx(1.994241, abs=1e-6)
    ranks = 1 + np.sum(references[None, :] < canaries[:, None], axis=1)
    (tmp_path / "r.csv").write_text("rank\n" + "\n".join(map(str, ranks)))
    _, out, _ = run("audit", "exposure", "--file", tmp_path / "r.csv", "--references", "1000", "--json")
    (by_rank,) = json.loads(out)["results"]
    assert by_rank["details"]["exposures"] == pytest.approx(by_loss["details"]["exposures"])
    for ranked, lost in zip(by_rank["estimates"], by_loss["estimates"], strict=True):
        assert (ranked["epsilon"], ranked["threshold"]) == (lost["epsilon"], lost["threshold"])
    assert "ties" in by_rank["estimates"][0]["assumes"]
    code, out, _ = run("audit", "exposure", "--file", tmp_path / "l.csv")
    assert code == 0
    assert "random guessing" in out


def test_a_median_exposure_of_5_is_an_epsilon_of_4_ln_2(run, tmp_path):
    (tmp_path / "r.csv").write_text("rank\n" + "32\n" * 11)
    _, out, _ = run("audit", "exposure", "--file", tmp_path / "r.csv", "--references", "1024", "--json")
    epsilon = {e["method"]: e["epsilon"] for e in json.loads(out)["results"][0]["estimates"]}
    assert epsilon["median-exposure"] == pytest.approx(2.772589, abs=1e-6)


def test_calibration_subtracts_the_reference_models_loss(run, tmp_path):
    rows = "loss,reference_loss,canary\n" + "".join(f"{5 + i},{6 + i},1\n{5 + i},{5 + i},0\n" for i in range(30))
    (tmp_path / "c.csv").write_text(rows)
    _, plain, _ = run("audit", "exposure", "--file", tmp_path / "c.csv", "--json")
    _, calibrated, _ = run("audit", "exposure", "--file", tmp_path / "c.csv", "--calibrate", "--json")
    before, after = (json.loads(out)["results"][0]["details"]["exposures"] for out in (plain, calibrated))
    assert min(after) > max(before) - 1e-9


def test_averaged_ranks_are_refused(run, tmp_path):
    (tmp_path / "r.csv").write_text("rank\n" + "500.5\n" * 100)
    code, _, err = run("audit", "exposure", "--file", tmp_path / "r.csv", "--references", "1000")
    assert code == 2
    assert "500.5" in err


def test_a_constant_loss_shows_nothing(run, tmp_path):
    np.savez(tmp_path / "l.npz", canaries=np.ones(100), references=np.ones(1000))
    _, out, _ = run("audit", "exposure", "--file", tmp_path / "l.npz", "--json")
    assert json.loads(out)["results"][0]["estimates"][0]["lower"] == 0


def test_one_run_needs_coin_flips_that_can_have_been_fair(run, tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "u.npz", members=rng.normal(size=900), nonmembers=rng.normal(size=100))
    code, out, _ = run("estimate", tmp_path / "u.npz", "--json")
    assert code == 0
    assert "one-run" not in {e["method"] for e in json.loads(out)["results"][0]["estimates"]}
    code, _, err = run("estimate", tmp_path / "u.npz", "--design", "coin-flips")
    assert code == 2
    assert "900 members and 100 non-members" in err


def test_a_maximum_epsilon_is_a_gate(run, golden):
    assert run("estimate", golden, "--max-epsilon", "4")[0] == 0
    code, _, err = run("estimate", golden, "--max-epsilon", "1")
    assert code == 1
    assert "limit of 1" in err


@pytest.mark.parametrize(("typed", "meant"), [(("repotr",), "report"), (("audit", "one-shto"), "one-shot")])
def test_a_misspelt_command_gets_one_suggestion(run, typed, meant):
    code, _, err = run(*typed)
    assert code == 2
    text = " ".join(err.split())
    assert text.count("Did you mean") == 1
    assert meant in text.split("Did you mean")[1]


def test_a_terminal_without_greek_gets_no_traceback():
    found = subprocess.run(
        [sys.executable, "-m", "coalmine", "estimate", SCORES],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert (found.returncode, found.stderr) == (0, b"")


def test_copies_lower_the_exposures_epsilon(run, tmp_path):
    (tmp_path / "r.csv").write_text("rank\n" + "1\n" * 50)
    bounds = []
    for copies in (1, 5):
        _, out, _ = run(
            "audit", "exposure", "--file", tmp_path / "r.csv", "--references", "1000", "--copies", copies, "--json"
        )
        bounds.append(json.loads(out)["results"][0]["estimates"][0]["lower"])
    assert bounds[1] == pytest.approx(bounds[0] / 5, rel=1e-6)


def test_the_demo_audits_one_training_without_and_with_a_bug():
    from coalmine.runs.settings import demo_settings

    correct, buggy = demo_settings(3), demo_settings(3, bug=True)
    assert list(correct.methods) == ["one-shot", "canife"]
    assert correct.methods == buggy.methods
    assert buggy.trainings["training"].bug == "bare:1.bias"
    assert buggy.trainings["training"].model_copy(update={"bug": None}) == correct.trainings["training"]
    assert correct.trainings["training"].seed == 3


BAD = {
    "a,b\n1,2\n": ("estimate", "no column 'score'"),
    "score,member\n1,1\nx,0\n": ("estimate", "row 3"),
    "score,member\n1,1\nnan,0\n": ("estimate", "row 3"),
    "score,member\n1,1\n2,1\n": ("estimate", "2 members and 0 nonmembers"),
    "": ("estimate", "columns with names"),
    "rank\n0\n": ("audit exposure --file", "--references"),
    "loss,canary\n1,1\n": ("audit exposure --file", "1 canaries and 0 references"),
}


@pytest.mark.parametrize("content", BAD)
def test_bad_files_get_one_sentence_and_exit_code_2(run, tmp_path, content):
    command, sentence = BAD[content]
    (tmp_path / "bad.csv").write_text(content)
    code, out, err = run(*command.split(), tmp_path / "bad.csv")
    assert (code, out) == (2, "")
    assert err.startswith("coalmine: ")
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["estimate", "none.csv"], "none.csv"),
        (["estimate", SCORES, "--delta", "1"], "delta"),
        (["estimate", SCORES, "--confidence", "2"], "confidence"),
        (["estimate", SCORES, "--method", "wald"], "wald"),
        (["estimate", SCORES, "--copies", "0"], "copies"),
        (["account"], "--noise-multiplier"),
        (["account", "--noise-multiplier", "-1"], "noise_multiplier"),
        (["account", "--noise-multiplier", "1", "--sampling", "poison:0.1"], "poisson"),
        (["account", "--noise-multiplier", "1", "--sampling", "poisson:2"], "or in [1e-12, 1]"),
        (["account", "--noise-multiplier", "1", "--rounds", "-3"], "rounds"),
    ],
)
def test_bad_arguments_get_one_sentence_and_exit_code_2(run, arguments, sentence):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert sentence in err
    assert "Traceback" not in err


@pytest.mark.parametrize("null", ["cosine", "cosine:x", "gauss", "normal:1,2,3", "cosine:1", "normal:0,0"])
def test_bad_nulls_get_a_sentence(run, golden, null):
    code, _, err = run("estimate", golden, "--null", null)
    assert code == 2
    assert err.startswith("coalmine: ")


def test_a_known_null_and_nonmembers_together_are_refused(run, golden):
    code, _, err = run("estimate", golden, "--null", "normal")
    assert code == 2
    assert "--null" in err


@pytest.mark.parametrize("command", [(), ("check",), ("audit",), ("audit", "one-shot"), ("sweep",), ("log",)])
def test_h_is_help_everywhere(run, command):
    code, out, _ = run(*command, "-h")
    assert (code, out) == (0, run(*command, "--help")[1])
    assert "Usage: coalmine" in out


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("check", "runs", "--confidenc", "0.9"), "--confidence"),
        (("chek", "runs"), "check"),
        (("audit", "oneshot"), "one-shot"),
        (("audit", "one-shot", "--max-epsilonn", "4"), "--max-epsilon"),
    ],
)
def test_the_nearest_name_is_suggested(run, arguments, hint):
    code, _, err = run(*arguments)
    assert code == 2
    assert f"Did you mean {hint}" in " ".join(err.replace("│", " ").split()).replace("'", "").replace('"', "")


@pytest.mark.parametrize(
    ("words", "expected"),
    [("coalmine che", {"check"}), ("coalmine audit one", {"one-shot"}), ("coalmine check --max", {"--max-epsilon"})],
)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_ask_what_comes_next(run, monkeypatch, shell, words, expected):
    monkeypatch.setenv("_COALMINE_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", words)
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    code, out, _ = run()
    assert code == 0
    assert all(name in out for name in expected)
    assert "serve" not in out


def test_the_completion_script_can_be_shown(run, monkeypatch):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "")
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))
    code, out, _ = run("--show-completion")
    assert (code, "_COALMINE_COMPLETE=complete_bash" in out) == (0, True)


def test_help_and_version(run):
    code, out, _ = run("--help")
    assert code == 0
    for command in ("demo", "estimate", "account", "sweep", "log"):
        assert command in out
    lines = run("--version")[1].splitlines()
    assert run("-V")[1].splitlines() == lines
    assert lines[0] == f"coalmine {__version__}"
    assert f"numpy {np.__version__}" in lines[1]


def test_the_installed_command_runs():
    found = subprocess.run(
        [sys.executable, "-m", "coalmine", "estimate", SCORES],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "simultaneous" in found.stdout


def test_estimate_judges_a_claim_at_the_confidence_that_it_states(run, tmp_path):
    """p = 0.045 refutes at 95% confidence, and neither the sentence nor the exit code says so at 99%."""
    rng = np.random.default_rng(21)
    members, nonmembers = rng.normal(1 / 0.8, 1, 60), rng.normal(0, 1, 60)
    np.savez(tmp_path / "scores.npz", members=members, nonmembers=nonmembers)
    for confidence, code, verdict in (("0.95", 1, "refuted"), ("0.99", 0, "not refuted")):
        exit_code, out, _ = run(
            "estimate", tmp_path / "scores.npz", "--claim", "noise=1.0", "--confidence", confidence, "--json"
        )
        content = json.loads(out)
        assert 0.01 < content["results"][0]["claim_test"]["p_value"] < 0.05
        assert (exit_code, content["results"][0]["verdict"]) == (code, verdict)
        assert content["gate"]["judgments"][0]["verdict"] == verdict


def test_a_claim_of_noise_at_delta_0_is_not_said_to_lack_noise(run, golden):
    _, out, _ = run("estimate", golden, "--claim", "noise=1.0", "--delta", "0")
    assert "no finite ε at δ = 0" in " ".join(out.split())
    assert "without noise" not in out
    _, out, _ = run("estimate", golden, "--claim", "noise=0")
    assert "without noise" in out


@pytest.fixture
def other_package(tmp_path, monkeypatch):
    """Install a package with two commands: a function and a Typer."""
    (tmp_path / "other.py").write_text(
        "import typer\n"
        "def greet(name: str) -> None:\n    print('hello', name)\n"
        "tools = typer.Typer(add_completion=False)\n"
        "tools.command()(greet)\n"
        "tools.command()(lambda: None)\n"
    )
    info = tmp_path / "other-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[coalmine.commands]\ngreet = other:greet\ntools = other:tools\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("other_package")
def test_other_packages_add_commands(run):
    assert run("greet", "Ada") == (0, "hello Ada\n", "")
    assert run("tools", "greet", "Ada") == (0, "hello Ada\n", "")
    code, out, _ = run("--help")
    assert (code, "greet" in out, "tools" in out) == (0, True, True)
    assert run("great")[0] == 2


def test_entry_points_are_not_looked_up_for_commands_of_coalmine(run, monkeypatch):
    monkeypatch.setattr("importlib.metadata.entry_points", None)
    assert run("estimate", SCORES)[0] == 0


def test_without_their_package_the_reproductions_say_how_to_install_it(run, monkeypatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: EntryPoints())
    code, out, err = run("reproduce", "one-shot-table-1")
    assert (code, out) == (2, "")
    assert "pip install ./reproductions" in err
