"""Every JSON output of the command line, and every result file, follows the schema that ships with the package."""

import json
from importlib import resources

import jsonschema
import pytest

from gate_runs import directory, result

FAST = [part for text in ("rounds=4", "clients=12", "client.epochs=1", "canaries=20") for part in ("--set", text)]
CANIFE = [
    p
    for t in ("rounds=2", "clients=12", "client.epochs=1", "every=2", "trials=6", "design.iterations=3")
    for p in ("--set", t)
]
SHARER = [
    part
    for text in (
        "data=generated-text", "vocabulary_size=120", "positions=8", "model_settings.embedding=8",
        "model_settings.units=8", "rounds=2", "references=200", "clients=20",
    )
    for part in ("--set", text)
]  # fmt: skip
COMMANDS = {
    "estimate": ["estimate", "examples/scores.csv"],
    "account": ["account", "--noise-multiplier", "1"],
    "plan": ["plan", "--noise-multiplier", "3", "--rounds", "10", "--clients", "50"],
    "plan-counted": ["plan", "--noise-multiplier", "2", "--sampling", "poisson:0.5", "--rounds", "2", "--dim", "100"],
    "audit-exposure": ["audit", "exposure", "--file", "examples/losses.csv"],
    "audit-one-shot": ["audit", "one-shot", *FAST, "--view", "final-change", "--view", "updates"],
    "audit-mechanism": ["audit", "mechanism", "--noise-multiplier", "1", "--dim", "2000", "--canaries", "50"],
    "audit-ldp": ["audit", "ldp", "--set", "trials=200", "--set", "crafter=benign,dummy-gradient"],
    "audit-canife": ["audit", "canife", *CANIFE],
    "audit-secret-sharer": ["audit", "secret-sharer", *SHARER],
}
# By day, the results of a run of these methods are looked at.
SLOW = ("audit-one-shot", "audit-mechanism", "audit-ldp", "audit-canife", "audit-secret-sharer")


@pytest.fixture(scope="module")
def schema():
    return json.loads((resources.files("coalmine.results") / "schema.json").read_text(encoding="utf-8"))


def test_the_schema_is_one(schema):
    jsonschema.Draft202012Validator.check_schema(schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"schema": 2, "coalmine": "0.1.0", "results": [{}]}, schema)


@pytest.mark.parametrize(
    "command",
    [pytest.param(command, id=name, marks=[pytest.mark.slow] * (name in SLOW)) for name, command in COMMANDS.items()],
)
def test_json_output_follows_the_schema(command, schema, run):
    code, out, err = run(*command, "--json")
    assert code in (0, 1), err
    jsonschema.validate(json.loads(out), schema)


def test_check_and_result_files_follow_the_schema(tmp_path, schema, run):
    directory(tmp_path, result(), result("ldp", "white-box", variant="benign, ε = 1", joint_bound=0.5))
    code, out, _ = run("check", str(tmp_path), "--max-proven", "1", "--json")
    assert code == 0
    jsonschema.validate(json.loads(out), schema)
    jsonschema.validate(json.loads((tmp_path / "result.json").read_text()), schema)


def test_a_run_writes_result_files_that_follow_the_schema(every_method, schema):
    content = json.loads((every_method[1] / "result.json").read_text())
    assert {result["method"] for result in content["results"]} > {name.removeprefix("audit-") for name in SLOW}
    jsonschema.validate(content, schema)
