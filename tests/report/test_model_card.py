"""The section for a model card: every field of the two lists, nothing invented."""

import json
import re
from dataclasses import replace
from importlib import resources
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from coalmine import OneShot
from coalmine.claims import Claim, Poisson
from coalmine.errors import InputError
from coalmine.report.page import model_card, write_report
from coalmine.results.io import SavedRun, read_run_directory
from gate_runs import directory, result
from saved_runs import write_run

UNKNOWN = "not stated"
PRIVATE = {"private": True, "clients": 50, "parameters": 100, "rounds": 40, "metrics": {"accuracy": 0.9}}
# What NIST SP 800-226 and the deployments registry ask for, as the card names it.
FIELDS = [
    "Deployment", "Intended use", "Data curator", "Data", "People in the data", "Model", "What is released", "Utility",
    "Definition of privacy", "Unit of privacy", "Adjacency", "ε", "δ", "Accounting", "Trust model", "Clipping", "Noise",
    "Sampling", "Rounds", "Implementation", "Tuning of hyperparameters, other releases from the same data",
    "Post-processing",
]  # fmt: skip


def card(*results, **trainings):
    return model_card(SavedRun(path=Path("mine"), content={"title": "T", "training_runs": trainings}, results=results))


def rows(text):
    """The fields of the first table."""
    return dict(re.findall(r"^\| (.*?) \| (.*?) \|$", text.split("### ")[0], re.M)[2:])


def ours(**more):
    """A result with the claim of a Gaussian mechanism."""
    claim = Claim(noise_multiplier=2.0, sampling=Poisson(0.5), rounds=40, delta=1e-5)
    tested = result(bound=0.9 * claim.epsilon, claim=None, training="training", **more)
    return replace(tested, claim=claim)


def test_every_field_is_there_and_known_ones_are_filled():
    config = {"data": "digits", "clip_norm": "1.0"}
    values = rows(card(ours(config=config), training=PRIVATE | {"data_fingerprint": "abc"}))
    assert list(values) == FIELDS
    assert values["Data"] == "digits (fingerprint abc)"
    assert values["Unit of privacy"] == "one user, whole training"
    assert values["Adjacency"] == "add or remove one"
    assert float(values["ε"]) == pytest.approx(8.339, abs=0.01)
    assert (values["δ"], values["Clipping"], values["Rounds"]) == ("1e-05", "clip norm 1.0", "40 rounds")
    assert values["Sampling"] == "Poisson sampling with q = 0.5"
    assert values["Accounting"] == "pld, composed over 40 rounds"
    assert values["Trust model"].startswith("central")
    assert [name for name, value in values.items() if value == UNKNOWN] == [
        "Intended use", "Data curator", "What is released", "Implementation", FIELDS[-2], "Post-processing",
    ]  # fmt: skip


def test_a_bare_claim_invents_nothing():
    values = rows(card(result(bound=6.0, claim=8.0)))
    stated = {name: value for name, value in values.items() if value != UNKNOWN}
    assert stated == {
        "Deployment": "T",
        "Definition of privacy": "approximate differential privacy (ε, δ)",
        "Unit of privacy": "one user, whole training",
        "Adjacency": "add or remove one",
        "ε": "8",
        "δ": "1e-05",
        "Accounting": "ε was stated, not computed",
    }


@pytest.mark.parametrize("training", [PRIVATE | {"private": False}, PRIVATE], ids=["no mechanism", "no claim"])
def test_without_a_claim_the_card_states_no_guarantee(training):
    text = card(result(claim=None, training="training"), training=training)
    values = rows(text)
    assert (values["Definition of privacy"], values["ε"], values["δ"]) == ("none", "none claimed", UNKNOWN)
    assert ("No privacy mechanism" in text) is not training["private"]
    assert "No claim was stated" in text or not training["private"]


def test_a_refuted_claim_comes_first():
    text = card(result(bound=9.0, claim=8.0))
    assert text.startswith("## Differential privacy\n\n**Audit.** Refuted: the claimed ε = 8 ")


def test_each_training_has_its_table():
    text = card(ours(), result(claim=None, training="text"), training=PRIVATE, text={"private": False, "metrics": {}})
    assert re.findall(r"^### (.*)$", text, re.M)[:2] == ["text: no privacy mechanism", "training: not refuted"]
    assert text.count("| Unit of privacy |") == 2


def test_the_command_prints_it(tmp_path, run):
    write_run(tmp_path / "run", title="a | b <i>")
    code, out, err = run("model-card", str(tmp_path / "run"))
    assert code == 0, err
    assert "| Deployment | a \\| b \\<i\\> |" in out
    directory(tmp_path / "other", result(bound=6.0))
    assert f"| Audited by | {UNKNOWN} |" in run("model-card", str(tmp_path / "other"))[1]
    assert run("model-card", str(tmp_path / "nothing"))[0] == 2


def test_facts_of_an_own_loop_are_in_the_report_and_in_the_card(tmp_path):
    audit = OneShot(200, rounds=2, canaries=20, view="updates", seed=0)
    rng = np.random.default_rng(0)
    for t in range(2):
        planted = audit.plant(t, clip_norm=1.5)
        audit.observe(t, update=np.float32(planted.total + rng.normal(0, 3, 200)), divisor=1.0)
    outcome = audit.result(claim=Claim(noise_multiplier=2.0, delta=1e-5))
    facts = {"data": "ward notes", "users": 4000, "utility": "accuracy 0.93", "use": "triage", "auditor": "Ann Lee"}
    outcome.save(tmp_path / "run", facts=facts)
    jsonschema.validate(
        json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8")),
        json.loads((resources.files("coalmine.results") / "schema.json").read_text(encoding="utf-8")),
    )
    run = read_run_directory(tmp_path / "run")
    card = model_card(run)
    for row in (
        "Data | ward notes",
        "People in the data | 4,000 users",
        "Utility | accuracy 0.93",
        "Intended use | triage",
    ):
        assert f"| {row} |" in card
    assert "| Clipping | clip norm 1.5 |" in card
    assert "| Audited by | Ann Lee |" in card
    page = outcome.report(tmp_path / "mine.html", facts=facts).read_text(encoding="utf-8")
    assert "Data ward notes, 4,000 users, 200 parameters, accuracy 0.93." in page
    assert "clip norm 1.5" in page
    assert re.search(r"Ann Lee, 20\d\d-\d\d-\d\d .* UTC", page)
    assert "fingerprint of the results" not in page  # of files, and none were written
    saved = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert re.search(r"Ann Lee, 20\d\d-\d\d-\d\d .* UTC.* fingerprint of the results [0-9a-f]{64}", saved)


def test_unknown_facts_are_refused(tmp_path):
    with pytest.raises(InputError, match="data"):
        result().save(tmp_path / "run", facts={"dat": "digits"})
    assert not (tmp_path / "run").exists()
