"""Files from outside are bounded in size, depth and time: each of these once ended in a traceback or took minutes."""

import gzip
import io
import json
import os
import threading
import tracemalloc
import zipfile

import numpy as np
import pytest

from coalmine import reading, scorefile
from coalmine.errors import InputError
from coalmine.reading import DEEPEST, Archive, csv_rows, json_lines, json_rows, parse_json, parse_toml, read_text
from coalmine.scorefile import read_table, two_groups

DEEP = "[" * 100_000 + "]" * 100_000
LONG = "1" * 5000  # digits; Python reads at most 4,300


def scores(path):
    return two_groups(read_table(path), groups=("members", "nonmembers"), value="score", flag="member")


@pytest.mark.parametrize(
    ("name", "content", "facts"),
    [
        ("s.csv", 'score,member\n1,1\n"2,0\n3,1\n', "line 4.*quote"),
        ("s.csv", f"score,member\n{'1' * 140_000},1\n", "line 2.*131072"),
        ("s.csv", f"score,member\n{'1,' * (1 << 22)}1\n", "row of more than"),
        ("s.json", f'{{"members": {DEEP}, "nonmembers": [1]}}', "nested too deeply"),
        ("s.json", DEEP, "nested too deeply"),
        ("s.json", f'{{"members": [{LONG}], "nonmembers": [1]}}', "308 digits"),
        ("s.json", f'{{"members": [{"1" * 4000}], "nonmembers": [1]}}', "308 digits"),
        ("s.json", f'[{{"score": {LONG}, "member": 1}}]', "308 digits"),
        ("s.json", f'[{{"score": 1, "member": {DEEP}}}]', "nested too deeply"),
        ("s.json", '[{"score": 1, "member": 1},]', "not JSON"),
        ("s.json", '[{"score": 1, "member": 1}] x', "not JSON"),
        ("s.json", '[{"score": 1, "member": 1}', "not JSON"),
        ("s.json", "[1, 2]", "list of objects"),
        ("s.json", "[]", "list of objects"),
    ],
)
def test_score_files_that_ended_in_a_traceback_are_refused(tmp_path, name, content, facts):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=facts) as caught:
        scores(tmp_path / name)
    assert name in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("method", [1, 12, 99, 0xFFFF])
def test_a_damaged_compression_field_is_refused(tmp_path, method):
    np.savez(tmp_path / "s.npz", members=np.arange(9.0), nonmembers=np.arange(9.0))
    content = bytearray((tmp_path / "s.npz").read_bytes())
    directory = content.index(b"PK\x01\x02")  # the archive's directory of files
    content[directory + 10 : directory + 12] = method.to_bytes(2, "little")
    (tmp_path / "s.npz").write_bytes(bytes(content))
    with pytest.raises(InputError, match=r"npz"):
        scores(tmp_path / "s.npz")


def test_an_archive_that_contains_far_more_than_its_size_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "LARGEST", 1 << 20)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (1 << 22,)})
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(1 << 22))
    with pytest.raises(InputError, match="too large"):
        Archive(tmp_path / "bomb.npz")


def test_an_array_that_claims_more_than_it_has_is_refused(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 50,)})
    with zipfile.ZipFile(tmp_path / "s.npz", "w") as archive:
        archive.writestr("members.npy", header.getvalue() + bytes(80))
    with pytest.raises(InputError, match="truncated"):
        scores(tmp_path / "s.npz")


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (f"x = {LONG}", "line 1.*characters"),
        (f"x = {'[' * 2000}{']' * 2000}", "nested too deeply"),
        (f"{'a.' * 500}a = 1", "nested too deeply"),
        (f"{'a.' * 50_000}a = 1", "line 1.*characters"),
        ("".join(f"a.k{i} = 1\n" for i in range(50_000)), "too large"),
    ],
)
def test_toml_that_took_minutes_or_ended_in_a_traceback_is_refused(text, facts):
    with pytest.raises(InputError, match=facts):
        parse_toml(text, "a.toml")


def test_json_is_read_to_the_deepest_level_and_no_deeper():
    assert parse_json("[" * DEEPEST + "]" * DEEPEST, "a.json")
    with pytest.raises(InputError, match="nested"):
        parse_json("[" * (DEEPEST + 2) + "]" * (DEEPEST + 2), "a.json")


def test_long_digits_in_texts_and_fractions_are_read():
    text = json.dumps({"text": "7" * 5000, "small": [0.5]}).replace("0.5", "0." + "3" * 400)
    assert parse_json(text, "a.json") == {"text": "7" * 5000, "small": [pytest.approx(1 / 3)]}
    assert parse_json("9" * 308, "a.json") == 10**308 - 1


@pytest.mark.parametrize("text", ["[]", "[1]", ' [ 1 , {"a": [2]} ,"x" ]\n', '[{"a": "]"}, []]'])
def test_rows_of_a_list_are_those_that_json_reads(text):
    assert list(json_rows(text, "a.json")) == json.loads(text)


@pytest.mark.parametrize("bad", [DEEP, LONG + "", "{", "\x00", '{"a": 1} 2'])
def test_a_bad_line_names_its_number(tmp_path, bad):
    (tmp_path / "a.jsonl").write_text('{"user": 1}\n\n' + bad + "\n")
    with pytest.raises(InputError, match="line 3"):
        list(json_lines(tmp_path / "a.jsonl"))


def test_a_compressed_file_of_endless_lines_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "LARGEST", 10_000)
    monkeypatch.setattr(reading, "LONGEST_LINE", 5_000)
    (tmp_path / "long.jsonl.gz").write_bytes(gzip.compress(b"1" * 6_000))
    (tmp_path / "many.jsonl.gz").write_bytes(gzip.compress(b"1\n" * 6_000))
    for name in ("long", "many"):
        with pytest.raises(InputError, match="too large"):
            list(json_lines(tmp_path / f"{name}.jsonl.gz"))


def test_files_above_the_limit_directories_and_null_characters_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("12345")
    assert read_text(tmp_path / "a.txt", most=5) == "12345"
    for path, facts in ((tmp_path / "a.txt", "too large"), (tmp_path, "directory"), (tmp_path / "\x00", "null")):
        with pytest.raises(InputError, match=facts):
            read_text(path, most=4)


@pytest.mark.parametrize("suffix", ["csv", "json", "npz"])
def test_scores_can_come_from_a_pipe(tmp_path, suffix, run):
    table = {"members": [2.0, 3.0], "nonmembers": [0.0, 1.0]}
    if suffix == "npz":
        np.savez(tmp_path / "s.npz", **table)
    else:
        text = "members,nonmembers\n2,0\n3,1\n" if suffix == "csv" else json.dumps(table)
        (tmp_path / f"s.{suffix}").write_text(text)
    os.mkfifo(tmp_path / "pipe")
    content = (tmp_path / f"s.{suffix}").read_bytes()
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(content))
    writer.start()
    members, nonmembers = scores(tmp_path / "pipe")
    writer.join()
    assert (list(members), list(nonmembers)) == ([2, 3], [0, 1])


def test_errors_in_a_pipe_name_the_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(b"score,member\n1,maybe\n"))
    writer.start()
    with pytest.raises(InputError, match=r"pipe, row 2: member"):
        scores(tmp_path / "pipe")
    writer.join()


def test_rows_of_a_csv_file_carry_their_line(tmp_path):
    (tmp_path / "a.csv").write_text('\ufeffa, b\n\n"x\ny",1\n2 ,3\n', encoding="utf-8")
    assert list(csv_rows(tmp_path / "a.csv")) == [(1, ["a", "b"]), (4, ["x\ny", "1"]), (5, ["2", "3"])]


@pytest.mark.parametrize("rows", [3, 70_000])
def test_columns_are_the_same_however_many_blocks_they_are_packed_in(tmp_path, rows):
    rng = np.random.default_rng(rows)
    numbers, flags = rng.normal(size=rows).round(3), rng.random(rows) < 0.5
    flags[:2] = True, False
    words = np.where(flags, "in", "0")  # text in one row, a number in another
    (tmp_path / "s.csv").write_text(
        "score,member\n" + "".join(f"{s},{w}\n" for s, w in zip(numbers, words, strict=True))
    )
    (tmp_path / "s.json").write_text(
        json.dumps([{"score": s, "member": f} for s, f in zip(numbers.tolist(), flags.tolist(), strict=True)])
    )
    for name in ("s.csv", "s.json"):
        members, nonmembers = scores(tmp_path / name)
        assert np.array_equal(members, numbers[flags])
        assert np.array_equal(nonmembers, numbers[~flags])


def test_a_short_column_of_a_long_file_may_end_in_empty_cells(tmp_path):
    lines = [f"{i},{i if i < 5 else ''}\n" for i in range(70_000)]
    (tmp_path / "s.csv").write_text("members,nonmembers\n" + "".join(lines))
    members, nonmembers = scores(tmp_path / "s.csv")
    assert (members.size, list(nonmembers)) == (70_000, [0, 1, 2, 3, 4])


def test_keys_that_only_later_rows_have_are_empty_before(tmp_path):
    rows = [{"score": i} for i in range(66_000)] + [{"score": 1, "member": 1}]
    (tmp_path / "s.json").write_text(json.dumps(rows))
    table = read_table(tmp_path / "s.json")
    assert len(table.columns["member"]) == 66_001
    with pytest.raises(InputError, match="row 1: member"):
        table.flags("member")


def test_long_files_are_packed_while_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(scorefile, "_BLOCK", 1000)
    rows = 100_000
    (tmp_path / "s.csv").write_text("score,member\n" + "".join(f"0.{i:06d},{i % 2}\n" for i in range(rows)))
    tracemalloc.start()
    read_table(tmp_path / "s.csv")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Two columns of floats, and their blocks while they are joined. Kept as text, a row takes 74 bytes.
    assert peak < 50 * rows


def test_half_of_a_character_is_refused_and_a_whole_one_is_not():
    for text in ('["\\ud800"]', '{"\\uDFFF": 1}', '["\\udc00\\ud83d"]'):
        with pytest.raises(InputError, match="surrogate"):
            parse_json(text, "a.json")
    assert parse_json('["\\ud83d\\ude00"]', "a.json") == ["😀"]
