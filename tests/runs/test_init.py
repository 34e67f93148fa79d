"""``coalmine init``, the settings' reference, and ``coalmine.run``."""

import re
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

import coalmine as cm
from coalmine.config import SettingError
from coalmine.errors import InputError
from coalmine.files import parse_toml
from coalmine.runs.settings import (
    PRESETS,
    from_preset,
    preset_text,
    run_from_mapping,
    run_from_text,
    table_types,
)

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "building"))
from settings_reference import reference

TINY = {
    "training": ["rounds=2", "client.epochs=1", "noise_multiplier=0", "cohort=poisson:1.0"],
    "one-shot": ["canaries=10"],
    "canife": ["every=2", "trials=8", "design.iterations=2"],
    "secret-sharer": ["references=500", "each=8", "p_u=0.1", "p_e=1.0"],
    "ldp": ["trials=60", "crafter=dummy-gradient", "epsilon=2"],
}
SHORT = ["training.vocabulary_size=60", "training.positions=8", "training.clients=30"]
SHORT += ["training.model_settings.units=8", "training.model_settings.embedding=8"]
SMALLER = {
    "digits": ["training.partition=iid:10", "training.model_settings.hidden=16"],
    "images": ["training.data=digits", "training.partition=iid:10", "run.baseline=false"],
    "text": SHORT,
    "all": SHORT,
    "local": [],
}


NEEDS = {
    "[secret-sharer] model_weights": "canaries",
    "[secret-sharer] canaries": "model_weights",
    "[secret-sharer] reference_weights": "model_weights",
    "[exposure] references": "file",
}
"""Settings that say which other one they need."""


@pytest.mark.parametrize("name", PRESETS)
def test_a_file_says_what_the_preset_does_and_explains_it(name):
    text, preset = from_preset(name), parse_toml(preset_text(name), name)
    settings = run_from_mapping(preset)
    assert run_from_text(text, name) == settings
    tables = {"run": settings.run, **settings.trainings, **settings.methods}
    for table, values in preset.items():
        assert f"[{table}]" in text
        for key in values:
            if isinstance(values[key], dict):  # a nested table
                assert f"[{table}.{key}]" in text
                continue
            assert type(tables[table]).model_fields[key].description[:40] in text.replace("\n# ", " ")


@pytest.mark.parametrize("name", PRESETS)
def test_every_setting_that_is_commented_out_is_a_line_of_its_own_that_can_be_let_in(name):
    lines = from_preset(name).splitlines()
    settings = [i for i, line in enumerate(lines) if re.match(r"# [a-z_]+ =", line)]
    assert len(settings) > 5
    for i in settings:
        assert lines[i - 1].startswith("# ")
        table = next(line for line in reversed(lines[:i]) if line.startswith("["))
        needed = NEEDS.get(f"{table} {lines[i][2:].split(' =')[0]}")
        with nullcontext() if needed is None else pytest.raises(SettingError, match=needed):
            run_from_text("\n".join([*lines[:i], lines[i].removeprefix("# "), *lines[i + 1 :]]), name)


@pytest.mark.parametrize(
    "name", ["local", *(pytest.param(n, marks=pytest.mark.slow) for n in ("text", "digits", "images", "all"))]
)
def test_the_file_of_each_preset_runs(name, run, tmp_path, monkeypatch):
    # Composing rounds takes seconds, and tests of its own.
    monkeypatch.setattr("coalmine.methods.canife.result.compose", lambda *periods, **terms: ([], []))
    file = tmp_path / "audit.toml"
    assert run("init", str(file), "--preset", name)[0] == 0
    preset = parse_toml(preset_text(name), name)
    tiny = [f"{table}.{text}" for table, texts in TINY.items() if table in preset for text in texts]
    words = [word for text in [*tiny, *SMALLER[name]] for word in ("--set", text)]
    code, out, err = run("run", str(file), "--out", str(tmp_path / "run"), "--quiet", *words)
    assert (code, err) == (0, "")
    assert all(audit in out for audit in preset if audit not in ("run", "training"))


def test_nothing_is_overwritten(run, tmp_path):
    file = tmp_path / "audit.toml"
    file.write_text("mine")
    code, _, err = run("init", str(file), "--preset", "digits")
    assert (code, "exists" in err) == (2, True)
    assert file.read_text() == "mine"


@pytest.mark.parametrize("options", [(), ("--preset", "digits", "--method", "ldp")])
def test_either_a_case_or_methods_must_be_given(run, tmp_path, options):
    code, _, err = run("init", str(tmp_path / "audit.toml"), *options)
    assert code == 2
    assert all(word in err for word in ("--method", "--preset", "digits", "local"))


def test_the_committed_reference_is_what_the_settings_say():
    committed = (Path(__file__).parents[2] / "docs" / "config.md").read_text()
    assert committed == reference(), "write it again: make docs"


def test_every_setting_is_in_the_reference():
    text = reference()
    for name, kind in table_types().items():
        assert f"## [{name}]" in text
        for path, field, _ in kind().walk():
            assert f"- `{path.rpartition('.')[2]}" in text
            # The keys of a second training are described once, with the first.
            assert name == "text-training" or field.description in text


def test_a_run_is_a_function_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text("[ldp]\ntrials = 60\ncrafter = 'dummy-gradient'\nepsilon = 2\n")
    found = cm.run("mine.toml")
    assert found.directory == Path("runs/mine")
    assert (found.directory / "result.json").is_file()
    assert len(found.content["results"]) == 4
    with pytest.raises(InputError, match="settings"):
        cm.run(3)
    with pytest.raises(InputError, match="there is no file"):
        cm.run("nowhere.toml")


@pytest.mark.parametrize("methods", [["one-shot"], ["canife", "secret-sharer"], ["ldp"]])
def test_a_file_for_any_methods_can_be_written(methods, run, tmp_path):
    file = tmp_path / "audit.toml"
    words = [word for name in methods for word in ("--method", name)]
    assert run("init", file, *words)[0] == 0
    assert sorted(run_from_text(file.read_text(), "written").methods) == sorted(methods)
