"""One file, one training, several audits: what is read, and what is said where it is wrong."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import coalmine.config as toml
from coalmine.errors import InputError
from coalmine.methods.one_shot.method import OneShotSettings
from coalmine.methods.secret_sharer.method import SecretSharerSettings, TextTrainingSettings
from coalmine.runs.running import run
from coalmine.runs.settings import RunOptions, RunSettings, run_from_text
from coalmine.simulation.settings import TrainingSettings

FILE = """\
[run]
title = "ours"

[training]
data = "digits"
rounds = 7
clip_norm = 0.5
client.epochs = 2

[training.server]
learning_rate = 0.25

[one-shot]
view = ["final", "updates"]
canaries = 50
"""


def test_a_file_gives_its_settings_and_defaults_for_the_rest():
    settings = run_from_text(FILE, "audit.toml")
    assert settings.run.title == "ours"
    training = settings.trainings["training"]
    assert (training.rounds, training.clip_norm, training.client.epochs) == (7, "0.5", 2)
    assert training.server.learning_rate == 0.25
    assert training.noise_multiplier == TrainingSettings().noise_multiplier
    assert list(settings.methods) == ["one-shot"]
    assert settings.methods["one-shot"].view == ("final", "updates")


def test_settings_written_are_the_settings_read():
    settings = run_from_text(FILE, "audit.toml", ["training.noise_multiplier=0.25", "one-shot.delta=1e-6"])
    assert run_from_text(settings.to_toml(), "again") == settings
    everything = RunSettings(
        run=RunOptions(title='a "quoted" \\ title\nin two lines'),
        trainings={"training": TextTrainingSettings()},
        methods={"one-shot": OneShotSettings(norm=1.0), "secret-sharer": SecretSharerSettings()},
    )
    assert run_from_text(everything.to_toml(), "again") == everything


def test_a_setting_on_the_command_line_goes_over_the_file():
    settings = run_from_text(FILE, "audit.toml", ["training.rounds=3", "training.client.epochs=9"])
    training = settings.trainings["training"]
    assert (training.rounds, training.client.epochs, training.clip_norm) == (3, 9, "0.5")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "rounds = 7",
            "rouds = 7",
            r"audit.toml, line 6: .*rouds.*Did you mean .rounds",
        ),
        ("rounds = 7", "rounds = 'many'", r"audit.toml, line 6: .*rounds = 'many'"),
        ("learning_rate = 0.25", "learning_rate = 'x'", r"line 11: .*server.learning_rate"),
        ("client.epochs = 2", "client.epoch = 2", r"line 8: .*client.epoch.*Did you mean .client.epochs"),
        ("[one-shot]", "[oneshot]", r"line 13: .*oneshot.*Did you mean .one-shot"),
        ("[one-shot]", "[one-shot", r"audit.toml cannot be read as TOML: .*line 13"),
        ("[run]", "run = 3\n[other]", r"line 1: run must be a table|line 2: .*other"),
        ("canaries = 50", "canaries = 50\ncanaries = 60", "as TOML"),
        ('data = "digits"', "data = [1]", r"line 5: in \[training\] the setting data"),
        (
            "rounds = 7",
            "noise_multiplier = -1.0",
            r"line 6: .*noise_multiplier = -1.0 .*at least 0",
        ),
        ("rounds = 7", "cohort = 'poisson:7'", r"line 6: .*cohort: .*7"),
        (
            'view = ["final", "updates"]',
            "view = 'finel'",
            r"line 14: .*view: .*finel",
        ),
        ("canaries = 50", "participation = 'x'", r"line 15: .*participation: .*every-round"),
        ("canaries = 50", "[ldp]\nepsilon = [1, -2]", r"line 16: .*epsilon.*more than 0"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(old, new, sentence):
    with pytest.raises(InputError, match=sentence):
        run_from_text(FILE.replace(old, new), "audit.toml")


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("rounds=3", "training.rounds"),
        ("nonsense=3", "Available: run, training"),
        ("training.rounds=x", r"--set: .*rounds = 'x'"),
        ("training.rounds", "key=value"),
    ],
)
def test_a_wrong_override_is_named_as_such(override, sentence):
    with pytest.raises(InputError, match=sentence):
        run_from_text(FILE, "audit.toml", [override])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "nothing to audit"),
        ("[one-shot]\n", r"\[one-shot\] audits a training"),
        ("[exposure]\n", "file"),
        ("[training]\nclip_norm = 1\n[one-shot]\n[secret-sharer]\nregime = 'central'", "line 5: .*central"),
        ("[training]\nnoise_multiplier = 0\n[one-shot]\n[canife]\nmode = 'running'", "line 5: .*noise"),
        ("[training]\n[ldp]\n", r"line 1: .*\[training\]"),
        ("[training]\n[text-training]\n[one-shot]\n", r"line 2: .*\[text-training\]"),
    ],
)
def test_audits_that_cannot_be_done_together_are_refused(text, sentence):
    with pytest.raises(InputError, match=sentence):
        run_from_text(text, "audit.toml")


def test_a_file_that_is_not_there_or_no_text_is_a_sentence(tmp_path):
    with pytest.raises(InputError, match="there is no file"):
        run(tmp_path / "x.toml")
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="as UTF-8"):
        run(tmp_path / "x.toml")


SCALARS = st.one_of(st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False), st.text())


@given(st.one_of(SCALARS, st.lists(SCALARS), st.dictionaries(st.text(min_size=1), SCALARS)))
def test_values_come_back_from_toml(content):
    assert tomllib.loads(f"x = {toml.toml_value(content)}") == {"x": content}


def test_an_explained_table_comments_out_what_is_not_set():
    settings = TrainingSettings(data="digits", rounds=40, client={"epochs": 3})
    text = toml.toml_table("training", settings, explained=True)
    assert tomllib.loads(text) == {"training": {"data": "digits", "rounds": 40, "client": {"epochs": 3}}}
    assert text.count("\n# ") > 10
    assert "# noise_multiplier = 2.0" in text
