"""canaries.json, written and read."""

import json

import numpy as np
import pytest

from coalmine.errors import InputError
from coalmine.methods.secret_sharer.phrases import Language, draw_phrases, grid, insert
from coalmine.methods.secret_sharer.stored_model import read_canaries, write_canaries
from coalmine.simulation.data import generated_text, load


@pytest.fixture(scope="module")
def users():
    return generated_text(users=60, sentences=12, vocabulary_size=200, positions=10).train


def test_a_file_of_canaries_is_read_as_it_was_written(tmp_path, users):
    insertion = insert(
        users, draw_phrases(Language.of(users), configurations=grid([0.2, 0.6], [0.3, 1.0]), each=2, seed=3)
    )
    write_canaries(insertion, tmp_path / "canaries.json")
    canaries, holders, most = read_canaries(tmp_path / "canaries.json")
    assert most == insertion.most_users
    assert np.array_equal(canaries.phrases, insertion.phrases.phrases)
    assert np.array_equal(canaries.inserted, insertion.phrases.inserted)
    assert np.array_equal(holders, insertion.users)
    assert canaries.configurations == insertion.phrases.configurations
    assert canaries.seed == 3


def entry(**more):
    return {"tokens": [4, 5, 6], "planted": True, **more}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"size": 50, "canaries": [entry(tokens=[4, 5, 50])]}, "unknown word 50"),
        ({"size": 50, "canaries": [entry(tokens=[4, 1, 5])]}, "the unknown word 1"),
        ({"size": 50, "canaries": [entry(p_u=1.5)]}, r"canaries\.0\.p_u .*1\.5"),
        ({"size": 50, "canaries": [entry(), entry(tokens=[4, 5])]}, r"number of words.*\[2, 3\]"),
        ({"size": 50, "canaries": []}, "canaries .*at least 1"),
        ({"size": 50, "canaries": [{"tokens": [4, 5]}]}, "planted"),
        ({"size": 50, "canaries": [{"phrase": "w1 w2", "planted": True}]}, r"canaries\.0\.tokens"),
        ({"size": 50, "words": [4, 60], "canaries": [entry()]}, "range within 0..50"),
        ({"size": 50, "version": 9, "canaries": [entry()]}, "version .*9"),
        ({"size": 50, "canaries": [entry(planted=False)]}, "at least one canary"),
        ([], "JSON object, got a list"),
    ],
)
def test_wrong_files_of_canaries_are_refused(tmp_path, content, sentence):
    path = tmp_path / "canaries.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=sentence):
        read_canaries(path)


def test_a_file_need_not_say_how_many_users_hold_a_canary(tmp_path):
    path = tmp_path / "canaries.json"
    path.write_text(json.dumps({"size": 50, "canaries": [entry()]}))
    canaries, holders, most = read_canaries(path)
    assert canaries.phrases.tolist() == [[4, 5, 6]]
    assert holders is None
    assert most is None


def test_files_that_are_no_text_or_not_there_are_refused(tmp_path):
    with pytest.raises(InputError, match="there is no file"):
        read_canaries(tmp_path / "none.json")
    (tmp_path / "latin.json").write_bytes(b'{"a": "\xe9"}')
    with pytest.raises(InputError, match="utf-8"):
        read_canaries(tmp_path / "latin.json")
    (tmp_path / "cut.json").write_text('{"size": 50, "canar')
    with pytest.raises(InputError, match="cannot be read as JSON"):
        read_canaries(tmp_path / "cut.json")


def test_a_text_file_in_another_encoding_is_refused(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_bytes('{"user": "a", "text": "caf\xe9"}\n'.encode("latin-1"))
    with pytest.raises(InputError, match=r"line 1, cannot be read as JSON.*utf-8"):
        load(path)


def test_tokens_of_hundreds_of_digits_are_refused(tmp_path):
    for token in (10**400, 2**70, -(10**400)):
        entry = {"tokens": [5, token], "planted": True}
        (tmp_path / "c.json").write_text(json.dumps({"size": 50, "canaries": [entry]}))
        with pytest.raises(InputError, match=r"c\.json"):
            read_canaries(tmp_path / "c.json")
