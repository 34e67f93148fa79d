"""``coalmine audit canife`` as people run it."""

import json

import numpy as np
import pytest

FAST = ["partition=iid:40", "rounds=4", "every=2", "client.epochs=1", "client.batch_size=all"]
FAST += ["model_settings.hidden=16", "design.iterations=5"]


def sets(*texts):
    return [part for text in texts for part in ("--set", text)]


def test_the_table_has_rounds_ceilings_composition_and_what_they_mean(run, tmp_path):
    code, out, _ = run("audit", "canife", *sets(*FAST, "trials=12"), "--out", str(tmp_path))
    assert code == 0
    for part in ("0–1", "2–3", "ceiling", "valid bound", "best-threshold", "as in the paper", "Of a single round"):
        assert part in out
    assert max(map(len, out[: out.index("Of a single round")].splitlines())) <= 80
    for part in ("Theory of one round: ε", "The promise for the training", "none of them a bound"):
        assert part in " ".join(out.split())
    first = json.loads((tmp_path / "result.json").read_text())
    trials = np.load(tmp_path / "trials-frozen.npz", allow_pickle=False)
    assert trials["scores"].shape == trials["present"].shape == (24, 1)
    assert trials["inputs"].shape[0] == 1
    code, _, _ = run("audit", "canife", *sets(*FAST, "trials=12"), "--out", str(tmp_path))
    assert code == 0
    second = json.loads((tmp_path / "result.json").read_text())
    assert second["rounds"] == first["rounds"]
    code, out, _ = run("estimate", str(tmp_path / "scores-frozen.npz"), "--design", "coin-flips")
    assert code == 0


def test_several_adversaries_of_a_running_training_come_as_json(run):
    code, out, err = run(
        "audit",
        "canife",
        *sets(*FAST, "mode=running", "trials=4", "canaries=3", "pool_clients=3,8", "noise_multiplier=0"),
        "--json",
    )
    assert (code, err) == (0, "")
    found = json.loads(out)["results"]
    assert [r["view"] for r in found] == ["running, pool 3, 5 iterations", "running, pool 8, 5 iterations"]
    for result in found:
        assert result["theory"] is None
        assert result["training_theory"] is None
        (period,) = result["rounds"]
        assert period["with_scores"] + period["without_scores"] == 12
        assert result["ceiling"] >= result["estimates"][0]["epsilon"]
        assert result["estimates"][0]["method"] == "one-run"
        few = any("no bound could exceed 0" in warning for warning in result["warnings"])
        assert few == (result["ceiling"] == 0)


def test_figures_come_with_a_run_of_adversaries_with_other_peoples_pools(run, tmp_path, monkeypatch):
    monkeypatch.setattr("coalmine.drawing.files.FORMATS", (".svg",))
    draw = np.random.default_rng(0)
    np.savez(
        tmp_path / "noise.npz",
        x=draw.random((60, 1, 8, 8), dtype=np.float32),
        y=np.arange(60) % 10,
        user=np.arange(60) // 4,
    )
    epochs = [text for text in FAST if text != "client.epochs=1"] + [
        "client.epochs=2",
        "weights=size:30",
        "cohort=epoch:2",
    ]
    pools = f"pool_data=own,{tmp_path / 'noise.npz'}"
    code, out, err = run(
        "audit", "canife", *sets(*epochs, "trials=6", pools, "pool_clients=5"), "--figures", str(tmp_path / "figures")
    )
    assert (code, "written to " in out) == (0, True), err
    assert "pool noise 5" in out
    for name in ("canife-adversaries", "frozen-pool-5-5-iterations/canife-rounds"):
        assert (tmp_path / f"figures/{name}.svg").stat().st_size > 1000


def test_settings_are_listed_with_defaults(run):
    code, out, _ = run("audit", "canife", "--settings")
    assert code == 0
    for key in ("every", "trials", "design.iterations", "pool_fraction", "client.learning_rate"):
        assert key in out


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("trial=3", "did you mean trials"),
        ("mode=thawed", "mode"),
        ("trials=1", "the setting trials = 1 is wrong: it must be at least 2"),
        ("trials=0", "it must be at least 2"),
        ("clip_norm=none", "clip"),
        ("canaries=1e6", "canaries must be at most 1,000"),
        ("pool_fraction=0", "pool_fraction must be in (0, 1)"),
        ("pool_clients=999", "pool_clients must be between 1 and"),
        ("design.target=seven", "design.target"),
        ("client.optimizer=adam", "SGD"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(run, setting, message):
    code, _, err = run("audit", "canife", *sets(*FAST, setting, "noise_multiplier=0"))
    assert code == 2
    assert message in err
    assert "Traceback" not in err
