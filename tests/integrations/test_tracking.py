"""Audits in MLflow, TensorBoard and Weights & Biases, read back from what each backend wrote."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from coalmine import OneShot
from coalmine.claims import Claim
from coalmine.errors import InputError
from coalmine.integrations.tracking import log_run, tracker
from gate_runs import directory, result

DIM, ROUNDS = 400, 4
PREFIX = "one-shot/updates"


def audited(tracked):
    """Audit a small loop with a tracker, and return the result and ε̂ after each round."""
    rng = np.random.default_rng(0)
    audit = OneShot(DIM, rounds=ROUNDS, canaries=30, view="updates", participation="every-round")
    live = []
    for t in range(ROUNDS):
        planted = audit.plant(t, clip_norm=1.0)
        update = ((planted.total + rng.normal(0, 2.0, DIM)) / planted.clients).astype(np.float32)
        audit.observe(t, update=update, divisor=planted.clients)
        tracked.watch(audit, t)
        live.append(audit.figures()[f"{PREFIX}/epsilon_estimate"])
    found = audit.result(claim=Claim(noise_multiplier=2.0, delta=1e-5))
    tracked.log(found, title="A small loop", settings={"clip norm": "1.0"})
    return found, live


def a_run(path):
    """Write a run directory with a log of two rounds, the second one repeated after a stop."""
    directory(path, result(bound=1.5), config="[training]\nrounds = 2\n")
    rounds = [(0, 0.25, 0.5), (1, 0.0, 0.0), (1, 0.75, 1.25)]
    lines = [
        {"event": "round", "what": "training", "round": r, "rounds": 2, "accuracy": a, "live": [],
         "figures": {f"{PREFIX}/epsilon_estimate": e}}
        for r, a, e in rounds
    ]  # fmt: skip
    log = [json.dumps(line) for line in lines]
    (path / "log.jsonl").write_text("\n".join([log[0], '{"event": "rou', *log[1:]]) + "\n")
    return path


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    """MLflow with a file store as its own tracking URI, which is not where the tests log to unless they say so."""
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed: pip install 'coalmine[mlflow]'")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "own").as_uri())
    return mlflow


def the_run(mlflow, store, experiment="coalmine"):
    client = mlflow.MlflowClient(store.as_uri())
    (found,) = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return client, found


def test_mlflow_has_every_round_the_results_and_the_report(mlflow, tmp_path):
    with tracker("mlflow", where=tmp_path / "store", project="mine", name="loop") as tracked:
        found, live = audited(tracked)
    assert mlflow.get_tracking_uri() == (tmp_path / "own").as_uri()
    client, stored = the_run(mlflow, tmp_path / "store", "mine")
    history = client.get_metric_history(stored.info.run_id, f"{PREFIX}/epsilon_estimate")
    assert [(metric.step, metric.value) for metric in history] == list(enumerate(live))
    metrics = stored.data.metrics
    assert metrics[f"{PREFIX}/lower_bound"] == found.bound.epsilon
    assert metrics[f"{PREFIX}/claimed_epsilon"] == found.claim.epsilon
    assert stored.data.tags["verdict"] == found.verdict.value
    assert stored.data.params["clip norm"] == "1.0"
    assert stored.info.run_name == "loop"
    files = {file.path for file in client.list_artifacts(stored.info.run_id)}
    assert files == {"report.html", "results.md"}
    report = Path(client.download_artifacts(stored.info.run_id, "report.html"))
    assert "A small loop" in report.read_text(encoding="utf-8")


def test_mlflow_uses_the_active_run_and_leaves_it_open(mlflow, tmp_path):
    with mlflow.start_run() as active:
        with tracker("mlflow", where=tmp_path / "elsewhere") as tracked:
            tracked.log(result(bound=2.0))
        assert mlflow.active_run().info.run_id == active.info.run_id
    assert mlflow.get_run(active.info.run_id).data.metrics[f"{PREFIX}/lower_bound"] == 2.0


def test_a_finished_run_is_logged_to_mlflow_after_the_fact(mlflow, tmp_path, run):
    a_run(tmp_path / "audited")
    code, out, err = run("log", tmp_path / "audited", "--to", "mlflow", "--where", tmp_path / "store")
    assert (code, f"is logged to mlflow: file://{tmp_path}/store/" in out) == (0, True), err
    client, stored = the_run(mlflow, tmp_path / "store")
    for name, values in (("training/accuracy", [0.25, 0.75]), (f"{PREFIX}/epsilon_estimate", [0.5, 1.25])):
        history = client.get_metric_history(stored.info.run_id, name)
        assert [(metric.step, metric.value) for metric in history] == list(enumerate(values))
    assert stored.data.metrics[f"{PREFIX}/lower_bound"] == 1.5
    assert stored.data.params["training.rounds"] == "2"
    assert stored.info.run_name == "audited"


def events(path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(path))
    read.Reload()
    return read


def test_tensorboard_has_every_round_the_results_and_the_report(tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed: pip install 'coalmine[tensorboard]'")
    with tracker("tensorboard", where=tmp_path) as tracked:
        found, live = audited(tracked)
    read = events(tmp_path)
    scalars = read.Scalars(f"{PREFIX}/epsilon_estimate")
    assert [scalar.step for scalar in scalars] == list(range(ROUNDS))
    assert [scalar.value for scalar in scalars] == pytest.approx(live, rel=1e-6)
    (bound,) = read.Scalars(f"{PREFIX}/lower_bound")
    assert (bound.step, bound.value) == (ROUNDS - 1, pytest.approx(found.bound.epsilon, rel=1e-6))
    (text,) = read.Tensors("verdict/text_summary")
    assert found.verdict.value in text.tensor_proto.string_val[0].decode()
    assert "A small loop" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_finished_run_is_logged_to_tensorboard_after_the_fact(tmp_path, run):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed: pip install 'coalmine[tensorboard]'")
    a_run(tmp_path / "audited")
    code, _, err = run("log", tmp_path / "audited", "--to", "tensorboard", "--where", tmp_path / "events")
    assert code == 0, err
    scalars = events(tmp_path / "events" / "audited").Scalars("training/accuracy")
    assert [(scalar.step, scalar.value) for scalar in scalars] == [(0, 0.25), (1, 0.75)]


def test_a_run_is_logged_while_it_trains(tmp_path, run, monkeypatch):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed: pip install 'coalmine[tensorboard]'")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "audit.toml").write_text(
        '[training]\npartition = "iid:12"\nrounds = 3\nmodel_settings = {hidden = 4}\n'
        '[one-shot]\nview = "updates"\ncanaries = 5\n'
    )
    code, _, err = run("run", "audit.toml", "--track", "tensorboard", "--quiet")
    assert code == 0, err
    read = events(tmp_path / "tensorboard" / "audit")
    assert [scalar.step for scalar in read.Scalars("training/clients")] == [0, 1, 2]
    (bound,) = read.Scalars(f"{PREFIX}/lower_bound")
    stored = json.loads((tmp_path / "runs" / "audit" / "result.json").read_text())["results"][0]
    assert bound.value == pytest.approx(stored["estimates"][0]["epsilon"], rel=1e-6)


def wandb_records(file):
    """Read the history and the summary of an offline run: protocol buffers in the log format of LevelDB."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, block = file.read_bytes(), 7, 32_768  # after a header of 7 bytes
    history, summary, parts = [], {}, b""
    while position + 7 <= len(data):
        if block - position % block < 7:  # no record begins in the last bytes of a block
            position += block - position % block
            continue
        length, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (2, 3):  # the first or a middle part of a record
            continue
        record, parts = Record.FromString(parts), b""
        if record.WhichOneof("record_type") == "history":
            history.append(in_json(record.history.item))
        elif record.WhichOneof("record_type") == "summary":
            summary |= in_json(record.summary.update)
    return history, summary


def in_json(items):
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def test_weights_and_biases_keeps_everything_offline(tmp_path):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed: pip install 'coalmine[wandb]'")
    with tracker("wandb", where=tmp_path, project="mine") as tracked:
        found, live = audited(tracked)
    wandb.teardown()  # ends its service process, which may still be writing
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    history, summary = wandb_records(file)
    name = f"{PREFIX}/epsilon_estimate"
    assert [row[name] for row in history if name in row] == pytest.approx(live)
    assert [row[f"{PREFIX}/lower_bound"] for row in history if f"{PREFIX}/lower_bound" in row] == [found.bound.epsilon]
    assert summary["verdict"] == found.verdict.value
    assert list(tmp_path.glob("wandb/offline-run-*/files/media/html/report*.html"))


def test_a_missing_package_is_a_sentence(tmp_path, run, monkeypatch):
    a_run(tmp_path / "audited")
    for to in ("mlflow", "tensorboard", "wandb"):
        monkeypatch.setitem(sys.modules, to, None)
        code, _, err = run("log", tmp_path / "audited", "--to", to)
        assert (code, f"coalmine[{to}]" in err) == (2, True), err


def test_what_cannot_be_logged_is_refused(tmp_path):
    with pytest.raises(InputError, match="mlflow"):
        tracker("mlflw")
    with pytest.raises(InputError, match="no directory"):
        log_run(tmp_path / "nothing", None)
