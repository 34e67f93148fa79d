"""Findings follow from stored statistics, so the gate notices one that was removed, added or changed."""

import json
import shutil

import numpy as np
import pytest

import coalmine as cm
from coalmine.checks import Client, ReplayOptions, replay
from coalmine.checks.findings import Replay
from coalmine.results.io import read_run_directory, write_manifest
from coalmine.runs.recompute import recompute

DIM = 300


def noisy(total, rng, bare):
    return total + rng.normal(0, 2.0, DIM) * (np.arange(DIM) >= bare)


def noise_of_a_mechanism(bug):
    """A function of a sum, which forgets the noise of some coordinates."""
    rng = np.random.default_rng(0)
    claim = cm.Claim(epsilon=2.5, delta=1e-5)
    return cm.check_mechanism(lambda total: noisy(total, rng, 20 * bug), dim=DIM, calls=300, claim=claim)


def clients_of_a_mechanism(bug):
    """A function of clients, which does not clip their last coordinates."""
    rng = np.random.default_rng(0)

    def release(clients):
        clipped = np.array(clients)
        clipped /= np.maximum(1.0, np.linalg.norm(clipped[:, : DIM - 10 * bug], axis=1, keepdims=True))
        return noisy(clipped.sum(axis=0), rng, 0)

    claim = cm.Claim(noise_multiplier=2.0, rounds=1, delta=1e-5)
    return cm.check_mechanism(release, clients=10, dim=DIM, calls=100, claim=claim)


def replay_in_a_training(bug):
    """A replay that an integration made by itself: it weights clients by their number of examples."""

    def average(clients):
        clipped = [c.update / max(1.0, np.linalg.norm(c.update)) for c in clients]
        return np.average(clipped, axis=0, weights=[c.examples if bug else 1 for c in clients])

    clients = [Client(np.ones(DIM), examples=20) for _ in range(4)]
    options = ReplayOptions(quick=True, divisor=5, dropouts=False)
    replayed = replay(average, clients, clip_norm=1.0, noise_multiplier=None, options=options)
    audit, rng = cm.OneShot(DIM, rounds=1, canaries=20, view="updates", participation="every-round"), np.random
    audit.add_replay("sensitivity", replayed)
    total = audit.plant(0, clip_norm=1.0).total + rng.default_rng(0).normal(0, 5.0, DIM)
    audit.observe(0, update=total.astype(np.float32), divisor=1.0)
    return audit.result(claim=cm.Claim(noise_multiplier=5.0, delta=1e-5))


KINDS = [noise_of_a_mechanism, clients_of_a_mechanism, replay_in_a_training]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.__name__)
def with_a_bug(request, tmp_path_factory):
    result = request.param(True)
    assert result.bugs
    directory = tmp_path_factory.mktemp("saved")
    result.save(directory)
    again = recompute(read_run_directory(directory, scores=True))
    assert (again.differences, again.not_recomputed) == ([], [])
    assert [str(finding) for finding in again.results[0].findings] == [str(finding) for finding in result.findings]
    return directory


def remove(findings):
    del findings[0]


def add(findings):
    findings.append({**findings[0], "check": "shape of the noise"})


def change_the_p_value(findings):
    findings[0]["p_value"] = findings[0]["p_value"] / 2 + 1e-9


def call_it_a_warning(findings):
    findings[0]["refutes"] = False


@pytest.mark.parametrize("change", [remove, add, change_the_p_value, call_it_a_warning])
def test_a_changed_finding_is_a_difference_whatever_the_manifest_says(change, with_a_bug, tmp_path, run):
    copy = shutil.copytree(with_a_bug, tmp_path / "copy")
    content = json.loads((copy / "result.json").read_text())
    change(content["results"][0]["findings"])
    (copy / "result.json").write_text(json.dumps(content))
    write_manifest(copy)
    before, after = (recompute(read_run_directory(path, scores=True)) for path in (with_a_bug, copy))
    assert after.results[0].findings == before.results[0].findings
    assert any("findings" in text for text in after.differences)
    code, out, err = run("check", copy)
    assert (code, "stored as" in out + err) == (1, True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_without_bugs_is_recomputed_without_differences(kind, tmp_path):
    """A warning about NaN, which clipping lets through, comes back, too."""
    result = kind(False)
    assert (result.bugs, result.refuted) == ([], False)
    result.save(tmp_path)
    again = recompute(read_run_directory(tmp_path, scores=True))
    assert (again.differences, again.not_recomputed, again.results[0].findings) == ([], [], result.findings)
    assert list(again.results[0].checks) == list(result.checks)


def test_a_replay_comes_back_from_its_statistics():
    """Unlimited movements among them, which JSON has no number for."""

    def by_shape(clients):
        return np.zeros(len(clients) + 1) + np.random.default_rng(0).normal()

    options = ReplayOptions(adjacency="add-remove", quick=True)
    first = replay(by_shape, [np.ones(5)] * 3, clip_norm=1.0, noise_multiplier=1.0, options=options)
    stored = json.dumps(first.to_dict(), allow_nan=False)
    assert '"inf"' in stored
    again = Replay.from_dict(json.loads(stored))
    assert list(map(str, again.findings)) == list(map(str, first.findings)) != []
    assert str(again) == str(first)
