"""Names of columns in one's own files, as settings."""

import json

import pytest

from coalmine.errors import InputError
from coalmine.runs.settings import run_from_text
from coalmine.simulation.settings import TrainingSettings

FILE = '[training]\ndata = "{}"\n[one-shot]\n'


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "mine.jsonl"
    records = ({"author": f"user {i % 20}", "body": f"this is line {i}"} for i in range(100))
    path.write_text("\n".join(map(json.dumps, records)))
    return path


def test_keys_of_a_file_are_set_on_the_command_line(lines):
    overrides = ["training.keys.user=author", "training.keys.input=body", "training.positions=4"]
    settings = run_from_text(FILE.format(lines), "audit.toml", overrides)
    training = settings.trainings["training"]
    assert training.keys == {"user": "author", "input": "body"}
    assert len(training.splits().train) == 18
    again = run_from_text(settings.to_toml(), "config.toml")
    assert again.trainings["training"] == training


def test_wrong_keys_are_a_sentence(lines):
    with pytest.raises(InputError, match="its columns are: author, body"):
        TrainingSettings(data=str(lines), positions=4).splits()
    with pytest.raises(InputError, match="got 'writer'"):
        TrainingSettings(data=str(lines), keys={"writer": "author"}).splits()
