"""Score files: accepted layouts, and what errors say about bad ones."""

import numpy as np
import pytest

from coalmine.errors import InputError
from coalmine.files import read_table, two_groups


def groups(path, **options):
    return two_groups(read_table(path), **options)


FILES = {
    "long.csv": "score,member\n1.5,1\n-2,0\n3e0,true\n0.25,out\n",
    "wide.csv": "members,nonmembers\n1.5,-2\n3,0.25\n",
    "spaces.csv": "\ufeffscore , member\r\n 1.5, 1\r\n3,IN\r\n\r\n-2,0\r\n0.25,No\r\n",
}


@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_the_same_scores(tmp_path, name):
    path = tmp_path / name
    path.write_text(FILES[name], encoding="utf-8")
    members, nonmembers = groups(path)
    assert sorted(members) == [1.5, 3]
    assert sorted(nonmembers) == [-2, 0.25]


@pytest.mark.parametrize(
    "arrays",
    [
        {"members": np.array([1.5, 3]), "nonmembers": np.array([-2, 0.25])},
        {"score": np.array([1.5, -2, 3, 0.25]), "member": np.array([True, False, True, False])},
        {"score": np.array([1.5, -2, 3, 0.25], dtype=np.float32), "member": np.array([1, 0, 1, 0])},
    ],
)
def test_npz_files_hold_either_layout(tmp_path, arrays):
    np.savez(tmp_path / "s.npz", **arrays)
    members, nonmembers = groups(tmp_path / "s.npz")
    assert (sorted(members), sorted(nonmembers)) == ([1.5, 3], [-2, 0.25])


def test_columns_of_different_length_are_padded_with_empty_cells(tmp_path):
    path = tmp_path / "s.csv"
    path.write_text("members,nonmembers\n1,2\n3,\n")
    members, nonmembers = groups(path)
    assert (list(members), list(nonmembers)) == ([1, 3], [2])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("e.csv", "", "columns with names"),
        ("e.csv", "score,member\n", "0 members and 0 nonmembers"),
        ("e.csv", "score,member\n1,1\n2,1\n", "2 members and 0 nonmembers"),
        ("e.csv", "score,member\n1,1\nabc,0\n", "row 3: score .* got 'abc'"),
        ("e.csv", "score,member\n1,1\nnan,0\n", "row 3: score .* got 'nan'"),
        ("e.csv", "score,member\n1,1\ninf,0\n", "row 3: score .* got 'inf'"),
        ("e.csv", "score,member\n1,maybe\n", "row 2: member .* got 'maybe'"),
        ("e.csv", "score,label\n1,1\n", "column 'member'.* score, label"),
        ("e.csv", "value,member\n1,1\n", "column 'score'"),
        ("e.csv", "members\n1\n", "column 'nonmembers'"),
        ("e.csv", "score,member\n1,1\n2\n", "line 3: 1 cells"),
        ("e.csv", "score,member\n,1\n2,0\n", "row 2: score .* got ''"),
        ("e.csv", "1,0\n2,1\n", "column 'score'.* 1, 0"),
        ("e.csv", "score,score\n1,1\n", "twice: score, score"),
        ("e.csv", "score;member\n1;1\n", "column 'score'.* score;member"),
        ("e.csv", "Score,Member\n1,1\n", 'Did you mean "Score"'),
        ("e.csv", "members,nonmembers\n1,2\n,3\n4,5\n", "row 3: members .* got ''"),
        ("e.npz", "not a zip", "as an .npz file"),
        ("e.txt", "x", "must end in .csv or .npz"),
    ],
)
def test_bad_files_raise_and_the_error_says_where(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        groups(path)


def test_files_that_are_missing_or_not_text_raise(tmp_path):
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00score")
    with pytest.raises(InputError, match="UTF-8"):
        groups(tmp_path / "b.csv")
    with pytest.raises(InputError, match=r"none\.csv"):
        groups(tmp_path / "none.csv")
    with pytest.raises(InputError, match=r"\.csv or \.npz"):
        groups(tmp_path)


def test_a_single_array_is_no_table(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3))
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    with pytest.raises(InputError, match="npz"):
        groups(tmp_path / "a.npz")


def test_an_open_quote_and_a_newline_in_a_cell(tmp_path):
    (tmp_path / "s.csv").write_text('score,member\n1,1\n"2,0\n3,1\n')
    with pytest.raises(InputError, match="as CSV"):
        groups(tmp_path / "s.csv")
    (tmp_path / "s.csv").write_text('score,"mem\nber"\n1,1\n')
    assert list(read_table(tmp_path / "s.csv").columns) == ["score", "mem\nber"]


def test_pickled_objects_are_not_loaded(tmp_path):
    np.savez(tmp_path / "p.npz", members=np.array([{"a": 1}], dtype=object))
    with pytest.raises(InputError, match="plain arrays"):
        groups(tmp_path / "p.npz")


def test_a_truncated_archive_raises(tmp_path):
    path = tmp_path / "t.npz"
    np.savez(path, members=np.arange(1000.0), nonmembers=np.arange(1000.0))
    path.write_bytes(path.read_bytes()[:900])
    with pytest.raises(InputError, match=r"npz"):
        groups(path)


def test_with_a_known_null_members_alone_are_enough(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("score\n1\n2\n")
    members, nonmembers = groups(path, single=True)
    assert (list(members), nonmembers) == ([1, 2], None)


def test_a_long_column_name_is_cut_in_the_sentence(tmp_path):
    path = tmp_path / "s.csv"
    path.write_text(f"{'9' * 4400},nonmembers\n1,2\n")
    with pytest.raises(InputError) as refusal:
        groups(path)
    assert len(str(refusal.value)) < 1000
