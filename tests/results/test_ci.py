"""``check`` for GitHub Actions and pre-commit, and what it lists."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from coalmine.results import verdict as units
from coalmine.results.gate import COLUMNS, judge
from coalmine.results.io import write_manifest
from gate_runs import directory, result

ROOT = Path(__file__).parents[2]


def refuted(**more):
    return result(bound=9.0, claim=8.0, **more)


def variants(count=9, **more):
    bounds = [6.0 + 0.1 * k for k in range(count)]
    return [result("ldp", "white-box", bound=bound, variant=f"crafter {i}", **more) for i, bound in enumerate(bounds)]


# What is listed


def test_of_many_variants_the_one_closest_to_its_claim_is_listed(tmp_path, run):
    results = [*variants(), result(claim=None)]
    shown = judge(results).folded()
    assert [judgment.result.label for judgment in shown] == ["crafter 8, white-box", "updates"]
    directory(tmp_path, *results)
    _, out, _ = run("check", str(tmp_path))
    assert "crafter 7" not in out
    assert "8 variants" in out
    assert "crafter 7" in run("check", str(tmp_path), "--json")[1]


def test_every_variant_that_fails_is_listed():
    results = [*variants(), refuted(method="ldp", view="white-box", variant="bad 1"), refuted(view="final")]
    results.append(replace(results[-2], variant="bad 2"))
    labels = [judgment.result.label for judgment in judge(results).folded()]
    assert sorted(labels) == ["bad 1, white-box", "bad 2, white-box", "crafter 8, white-box", "final"]


def test_rows_without_claim_and_limit_are_not_checked(tmp_path):
    results = [result(), result(view="final", claim=None), result("canife", "frozen", claim=None, unit=units.ROUND)]
    assert [judgment.checked for judgment in judge(results).judgments] == [True, False, False]
    limited = judge(results, max_proven=5.0)
    assert [judgment.checked for judgment in limited.judgments] == [True, True, False]
    remarks = [dict(zip(COLUMNS, row, strict=True))[""] for row in limited.rows()]
    assert remarks == ["", "", "not checked: limit does not apply to this unit"]
    assert "Not checked: 2 of 3 results." in judge(results).terms
    assert "Not checked" not in judge(results[:1]).terms


# The action and the hook, run as GitHub and pre-commit do


def steps():
    """The steps of ``action.yml``: their environment and script. A few lines of YAML need no library."""
    for step in re.split(r"^    - name: ", (ROOT / "action.yml").read_text(encoding="utf-8"), flags=re.M)[1:]:
        environment = dict(re.findall(r"^        (\w+): \$\{\{ (\S+) \}\}$", step, re.M))
        script = re.search(r"^      run: \|\n((?:        .*\n?)+)", step, re.M)[1]
        yield environment, script


def defaults():
    inputs = (ROOT / "action.yml").read_text(encoding="utf-8").split("\nruns:")[0]
    return dict(re.findall(r"^  ([\w-]+):\n(?:    (?!default).*\n)*    default: \"(.*)\"$", inputs, re.M))


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Make ``coalmine`` and a ``python`` that only notes its arguments available to scripts."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, script in {
        "coalmine": f'exec {shlex.quote(sys.executable)} -m coalmine "$@"',
        "python": f'printf "%s\\n" "$@" > {shlex.quote(str(tmp_path / "arguments"))}',
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    return tmp_path


def act(step, inputs):
    """Run a step's script as a composite action does, with these inputs."""
    environment, script = step
    values = {f"inputs.{name}": value for name, value in {**defaults(), **inputs}.items()}
    values["github.action_path"] = str(ROOT)
    shell = [shutil.which("bash"), "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    given = os.environ | {name: values[expression] for name, expression in environment.items()}
    return subprocess.run(shell, env=given, capture_output=True, text=True, timeout=60, check=False)


def test_the_action_passes_and_fails_as_the_gate_does(program):
    install, check = steps()
    assert act(install, {}).returncode == 0
    arguments = (program / "arguments").read_text().splitlines()
    assert arguments[:3] == ["-m", "pip", "install"]
    assert arguments[-1] == str(ROOT)
    assert all(Path(argument).exists() for argument in arguments[-2:])
    run = directory(program / "a run; $(touch hacked)", result(bound=6.0), result(view="final", bound=0.1))
    passing = act(check, {"directory": str(run)})
    assert passing.returncode == 0, passing.stderr
    failing = act(check, {"directory": str(run), "max-epsilon": "5", "strict": "true"})
    assert failing.returncode == 1, failing.stderr
    assert "claimed ε = 8, above the limit of 5; proven ε ≥" in " ".join(failing.stdout.split())
    assert failing.stdout.splitlines()[-1].startswith("::error title=coalmine check::exit code 1")
    unclaimed = directory(program / "unclaimed", result(claim=None))
    assert act(check, {"directory": str(unclaimed), "max-proven": "5"}).returncode == 1
    assert (
        act(check, {"directory": str(unclaimed), "max-proven": "5", "allow": "no-mechanism findings"}).returncode == 0
    )
    written = (program / "summary.md").read_text(encoding="utf-8")
    assert re.findall(r"^### coalmine check: exit code (\d)", written, re.M) == list("0110")
    assert re.findall(r"^    (PASSED|FAILED)", written, re.M) == ["PASSED", "FAILED", "FAILED", "PASSED"]
    assert not list(program.rglob("hacked"))


def test_nothing_from_a_file_is_a_command_or_leaves_the_summary(program):
    command = "::error::" * 30
    path = directory(program / "run", result(view=command, bound=9.0, claim=8.0)) / "result.json"
    content = json.loads(path.read_text(encoding="utf-8")) | {"title": command}
    path.write_text(json.dumps(content), encoding="utf-8")
    write_manifest(path.parent)
    failing = act(list(steps())[1], {"directory": str(path.parent)})
    token = re.match(r"::stop-commands::(\w{32})\n", failing.stdout)[1]
    stopped, commands = failing.stdout.split(f"::{token}::\n")
    assert "::error::" in stopped
    assert commands == "::error title=coalmine check::exit code 1, see the step summary\n"
    _, *lines = (program / "summary.md").read_text(encoding="utf-8").splitlines()
    assert all(line.startswith("    ") or not line for line in lines)


def test_the_hook_runs_the_gate(program):
    hook = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    entry = re.search(r"^  entry: (.*)$", hook, re.M)[1]
    run = directory(program / "run", refuted())
    command = [*shlex.split(entry), str(run), "--max-epsilon", "8"]
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 1


def test_a_limit_that_applies_to_nothing_is_an_error():
    gate = judge([result("canife", "frozen", bound=0.5, unit=units.ROUND)], max_proven=1.0)
    assert gate.decision.startswith("FAILED: policy: the limit of 1 was compared with nothing")
