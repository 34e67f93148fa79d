"""``coalmine audit canife`` on the command line."""

import json

import pytest

FAST = ["partition=iid:40", "rounds=4", "every=2", "client.epochs=1", "client.batch_size=all"]
FAST += ["model_settings.hidden=16", "design.iterations=5", "cohort=every-round"]


def sets(*texts):
    return [part for text in texts for part in ("--set", text)]


def test_the_terminal_shows_estimates_of_rounds_and_of_the_training(run, tmp_path):
    code, out, _ = run("audit", "canife", *sets(*FAST, "trials=12"), "--out", str(tmp_path))
    assert code == 0
    for part in ("lower bound", "best-threshold", "one-run", "frozen, composed"):
        assert part in out
    first = json.loads((tmp_path / "result.json").read_text())
    code, _, _ = run("audit", "canife", *sets(*FAST, "trials=12"), "--out", str(tmp_path))
    assert code == 0
    second = json.loads((tmp_path / "result.json").read_text())
    assert [r["details"] for r in second["results"]] == [r["details"] for r in first["results"]]
    code, _, _ = run("estimate", str(tmp_path / "scores-canife-frozen.npz"), "--design", "coin-flips")
    assert code == 0


def test_a_running_audit_is_printed_as_json(run):
    settings = sets(*FAST, "mode=running", "trials=4", "canaries=3", "pool_clients=3", "noise_multiplier=0")
    code, out, err = run("audit", "canife", *settings, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["results"][0]["view"] == "running"


@pytest.mark.parametrize("setting", ["trial=3", "mode=thawed", "trials=1", "clip_norm=none", "pool_clients=999"])
def test_a_bad_setting_is_an_error_in_one_sentence(run, setting):
    code, _, err = run("audit", "canife", *sets(*FAST, setting, "noise_multiplier=0"))
    assert code == 2
    assert setting.partition("=")[0] in err
    assert "Traceback" not in err
