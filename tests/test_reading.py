"""Files from outside are read, or refused with a sentence that names them."""

import gzip
import io
import zipfile

import numpy as np
import pytest

from coalmine.errors import InputError
from coalmine.files import json_lines, parse_json, parse_toml, read_arrays, read_json, read_text, write_text

DEEP = "[" * 100_000 + "]" * 100_000
LONG = "1" * 5000  # digits; Python reads at most 4,300


@pytest.mark.parametrize(
    ("text", "facts"),
    [(DEEP, "recursion"), (LONG, "digits"), ("[1,]", "line 1 column"), ("{", "as JSON"), ('{"a": 1} 2', "Extra data")],
)
def test_bad_json_is_refused(text, facts):
    with pytest.raises(InputError, match=rf"a\.json .*{facts}"):
        parse_json(text, "a.json")


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '{"a": NaN}', "[1]"])
def test_our_own_json_is_an_object_with_every_name_once_and_real_numbers(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(InputError, match=r"a\.json"):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize("text", [f"x = {LONG}", f"x = {'[' * 2000}{']' * 2000}", "x = ", "x = 1\nx = 2"])
def test_bad_toml_is_refused(text):
    with pytest.raises(InputError, match=r"a\.toml"):
        parse_toml(text, "a.toml")


@pytest.mark.parametrize("bad", [DEEP, "{", "\x00", '{"a": 1} 2', "\xff"])
def test_a_bad_line_names_its_number(tmp_path, bad):
    (tmp_path / "a.jsonl").write_text('{"user": 1}\n\n' + bad + "\n", encoding="latin-1")
    with pytest.raises(InputError, match="line 3"):
        list(json_lines(tmp_path / "a.jsonl"))


def test_lines_may_be_compressed_but_not_truncated(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'\xef\xbb\xbf{"a": 1}\n\n[2]\n'))
    assert list(json_lines(path)) == [(1, {"a": 1}), (3, [2])]
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(InputError, match="end-of-stream"):
        list(json_lines(path))
    with pytest.raises(InputError, match="there is no file"):
        list(json_lines(tmp_path / "none.jsonl"))


def test_directories_null_characters_and_other_encodings_are_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe")
    for path, facts in ((tmp_path, "directory"), (tmp_path / "\x00", "null"), (tmp_path / "a.txt", "UTF-8")):
        with pytest.raises(InputError, match=facts):
            read_text(path)


@pytest.mark.parametrize("method", [1, 99])
def test_a_damaged_compression_field_is_refused(tmp_path, method):
    np.savez(tmp_path / "s.npz", x=np.arange(9.0))
    content = bytearray((tmp_path / "s.npz").read_bytes())
    directory = content.index(b"PK\x01\x02")  # the archive's directory of files
    content[directory + 10 : directory + 12] = method.to_bytes(2, "little")
    (tmp_path / "s.npz").write_bytes(bytes(content))
    with pytest.raises(InputError, match=r"npz"):
        read_arrays(tmp_path / "s.npz")


def test_an_array_that_claims_more_than_it_has_is_refused(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 50,)})
    with zipfile.ZipFile(tmp_path / "s.npz", "w") as archive:
        archive.writestr("members.npy", header.getvalue() + bytes(80))
    with pytest.raises(InputError, match=r"s\.npz"):
        read_arrays(tmp_path / "s.npz")


def test_half_of_a_character_can_be_written(tmp_path):
    text = parse_json('"a\\ud800b"', "a.json")
    assert write_text(tmp_path / "a.txt", text).read_text(encoding="utf-8") == "a?b"
