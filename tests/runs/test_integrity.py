"""A changed file of a run is noticed, whatever changed it; and a kill at any moment is not a change."""

import json
import os
import shutil

import numpy as np
import pytest

from coalmine import files
from coalmine.errors import InputError
from coalmine.report.page import write_report
from coalmine.results.directory import RunDirectory
from coalmine.results.files import save
from coalmine.results.manifest import NAME, Manifest, verify
from coalmine.results.saved import read_run_directory
from coalmine.runs.running import run as run_all
from coalmine.runs.settings import run_from_text
from gate_runs import result

TINY = """
[run]
checkpoint_every = 1
[training]
partition = "iid:10"
rounds = 3
noise_multiplier = 0.5
model_settings = {hidden = 4}
client = {epochs = 1, batch_size = "all"}
[one-shot]
canaries = 10
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("integrity") / "run"
    run_all(run_from_text(TINY, "tiny"), out=path)
    return path


@pytest.fixture
def copy(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "copy")


def bounds_of_zero(path):
    content = json.loads((path / "result.json").read_text())
    for one in content["results"]:
        for estimate in one["estimates"]:
            estimate |= {"epsilon": 0.0, "lower": 0.0}
    (path / "result.json").write_text(json.dumps(content))
    return "result.json"


def digit_of_a_part(path):
    part = path / "parts" / "one-shot.json"
    text = part.read_text()
    i = text.index('"epsilon": ') + len('"epsilon": ')
    part.write_text(text[:i] + str((int(text[i]) + 1) % 10) + text[i + 1 :])
    return "parts/one-shot.json"


def bits_of_a_checkpoint(path):
    tensors = path / "checkpoint" / "checkpoint.safetensors"
    content = bytearray(tensors.read_bytes())
    content[-9] ^= 3
    tensors.write_bytes(content)
    return tensors.name


def noise_of_the_settings(path):
    config = path / "config.toml"
    config.write_text(config.read_text().replace("noise_multiplier = 0.5", "noise_multiplier = 5.0"))
    return "config.toml"


def missing_scores(path):
    (path / "scores-one-shot-final.npz").unlink()
    return "scores-one-shot-final.npz is missing"


def added_arrays(path):
    np.savez(path / "arrays-one-shot-other.npz", scores=np.zeros(3))
    return "arrays-one-shot-other.npz does not belong"


def swapped_files(path):
    first, second = path / "parts" / "one-shot.json", path / "parts" / "training.json"
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    return "has the content of parts/"


def linked_results(path):
    outside = shutil.copy(path / "result.json", path.parent / "outside.json")
    bounds_of_zero(path)
    shutil.move(path / "result.json", outside)
    (path / "result.json").symlink_to(outside)
    return "result.json"


def linked_parts(path):
    outside = shutil.copytree(path / "parts", path.parent / "outside")
    shutil.copy(outside / "one-shot.json", outside / "ldp.json")
    shutil.rmtree(path / "parts")
    (path / "parts").symlink_to(outside)
    (outside / "itself").symlink_to(path)
    return "parts/ldp.json does not belong"


CHANGES = [
    bounds_of_zero, digit_of_a_part, bits_of_a_checkpoint, noise_of_the_settings, missing_scores, added_arrays,
    swapped_files, linked_results, linked_parts,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_every_command_refuses_a_changed_run_and_names_the_file(copy, finished, run, change):
    named = change(copy)
    for command in (["check"], ["check", "--max-epsilon", "0.3"], ["report"], ["resume"], ["verify"]):
        code, _, err = run(*command, str(copy))
        assert (code, named in err, err.count("\n")) == (2, True, 1), (command, err)
    code, _, err = run("compare", str(finished), str(copy))
    assert (code, named in err) == (2, True)


def test_an_untouched_run_is_accepted_by_every_command(copy, finished, run):
    for command in (["check"], ["report"], ["resume", "--quiet"], ["verify"], ["compare", str(finished)]):
        assert run(*command, str(copy))[0] == 0
    assert verify(copy).fingerprint == verify(finished).fingerprint


def test_a_directory_without_a_manifest_is_refused_until_it_is_adopted(copy, run):
    (copy / NAME).unlink()
    code, _, err = run("check", str(copy))
    assert (code, "--adopt" in err) == (2, True)
    assert run("verify", str(copy), "--adopt")[0] == 0
    assert run("check", str(copy))[0] == 0


def test_results_that_differ_from_their_scores_are_not_adopted(copy, run):
    bounds_of_zero(copy)
    code, out, _ = run("verify", str(copy), "--adopt")
    assert code == 1
    assert "estimates[" in out
    assert run("check", str(copy))[0] == 2


def test_a_damaged_manifest_is_refused(copy, run):
    for damage in ("x", "0" * 64 + "  result.json", "0" * 64 + "  ../../etc/passwd\n", "0" * 63 + "  result.json\n"):
        (copy / NAME).write_text(damage)
        code, _, err = run("check", str(copy))
        assert (code, f"{NAME}, line 1" in err) == (2, True)


UNPORTABLE = [
    "CON.json", "parts/aux", "com1.npz", "a:b.json", "a\\b.json", "a?.json", "dot./a.json", "space ", "a\x07.json",
    "a" * 256, "a/" * 3000 + "b",
]  # fmt: skip


@pytest.mark.parametrize("name", UNPORTABLE)
def test_names_that_windows_does_not_allow_are_refused(copy, run, name):
    with (copy / NAME).open("a") as file:
        file.write(f"{'0' * 64}  {name}\n")
    code, _, err = run("check", str(copy))
    assert (code, "Windows does not allow" in err, err.count("\n")) == (2, True, 1), err


@pytest.mark.parametrize(
    ("first", "second"), [("a.json", "A.json"), ("\u00e9.json", "e\u0301.json"), ("stra\u00dfe.json", "STRASSE.json")]
)
def test_names_that_are_one_file_elsewhere_are_refused(copy, run, first, second):
    for name in (first, second):
        (copy / name).write_text("{}")
    for command in (["verify", "--adopt"], ["check"], ["resume"]):
        assert run(*command, str(copy))[0] == 2
    with pytest.raises(InputError, match="one file on macOS and Windows"):
        Manifest.of_files(copy)


def test_a_run_never_writes_such_names(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    with directory.claimed("x = 1"):
        files.write_text(directory.path / "page.html", "")
        for name in ("Page.html", "nul.html", "page?.html"):
            with pytest.raises(InputError, match=r"Windows"):
                files.write_text(directory.path / name, "")
    verify(directory.path)
    assert not list(directory.path.glob("?age?.html"))


def test_results_with_one_file_for_their_scores_are_refused_before_anything_is_written(tmp_path):
    for view in ("final", "Final", "final:"):
        with pytest.raises(InputError, match=r"scores-.*npz"):
            save([result(view="final"), result(view=view)], tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_the_manifest_has_the_format_of_sha256sum(finished):
    import hashlib

    lines = (finished / NAME).read_text().splitlines()
    listed = dict(reversed(line.split("  ")) for line in lines)
    there = {str(p.relative_to(finished)) for p in finished.rglob("*") if p.is_file()}
    assert there - listed.keys() == {NAME, ".lock", "log.jsonl"}
    assert all(hashlib.sha256((finished / name).read_bytes()).hexdigest() == listed[name] for name in listed)


def test_a_kill_between_manifest_and_file_leaves_a_run_that_resumes(finished, tmp_path, monkeypatch):
    """The directory before and after every rename, and before every removal, is what a kill at that moment leaves."""
    out, real, moments = tmp_path / "run", {"replace": os.replace, "unlink": os.unlink}, []

    def watched(name, path, *arguments, **more):
        if str(out) not in str(path):
            return real[name](path, *arguments, **more)
        for _ in range(2):
            moments.append((name, shutil.copytree(out, tmp_path / f"killed-{len(moments)}")))
            if len(moments) % 2:
                real[name](path, *arguments, **more)
        return None

    with monkeypatch.context() as patch:
        for name in real:
            patch.setattr(os, name, lambda path, *a, name=name, **k: watched(name, path, *a, **k))
        run_all(run_from_text(TINY, "tiny"), out=out)
    assert sum(name == "replace" for name, _ in moments) > 35
    for _, killed in moments:
        if (killed / "run.json").exists():
            verify(killed)
    for name, killed in [moments[0], *moments[3::15]]:
        run_all(run_from_text(TINY, "tiny"), out=killed)
        assert (killed / "result.json").read_bytes() == (finished / "result.json").read_bytes(), name
        assert not list(killed.rglob(".*.new"))
        assert len(list(killed.rglob("checkpoint.safetensors"))) == 1


def test_a_write_that_fails_leaves_a_manifest_of_what_is_there(tmp_path, monkeypatch):
    directory = RunDirectory(tmp_path / "run")

    def full(handle):
        raise OSError(28, "No space left on device")

    with directory.claimed("x = 1"):
        files.write_text(directory.path / "one.json", "old")
        with monkeypatch.context() as patch:
            patch.setattr(files.os, "fsync", full)
            with pytest.raises(InputError, match="No space left"):
                files.write_text(directory.path / "one.json", "new")
        files.write_text(directory.path / "two.json", "{}")
    assert (directory.path / "one.json").read_text() == "old"
    verify(directory.path)


def test_a_reader_beside_a_writer_sees_no_change(tmp_path):
    import threading

    directory, stop, problems = RunDirectory(tmp_path / "run"), threading.Event(), []

    def read():
        while not stop.is_set():
            try:
                verify(directory.path)
            except InputError as error:
                problems.append(str(error))

    with directory.claimed("x = 1"):
        reader = threading.Thread(target=read)
        reader.start()
        for i in range(150):
            files.write_text(directory.path / f"{i % 3}.json", str(i))
        stop.set()
        reader.join()
    assert not problems


def test_saved_results_have_a_manifest_too_and_leave_other_files_alone(tmp_path, run):
    (tmp_path / "package.json").write_text("{}")
    save(result(), tmp_path)
    (tmp_path / "package.json").write_text('{"mine": 1}')
    assert run("check", str(tmp_path))[0] == 0
    assert read_run_directory(tmp_path).provenance["date"].endswith("+00:00")
    assert run("report", str(tmp_path))[0] == 0
    (tmp_path / "report.html").write_text("<h1>private</h1>")
    assert run("check", str(tmp_path))[0] == 2


def test_the_fingerprint_is_that_of_what_results_rest_on(copy):
    before = Manifest.read(copy).fingerprint
    (copy / "run.json").write_text("{}")
    (copy / "report.html").write_text("")
    assert Manifest.of_files(copy).fingerprint == before
    bounds_of_zero(copy)
    assert Manifest.of_files(copy).fingerprint != before


def test_results_state_when_and_with_what_they_were_computed(finished, run):
    origin = read_run_directory(finished).provenance
    assert origin["seeds"] == {"training": 0}
    assert {"date", "coalmine", "python", "platform", "numpy", "torch"} <= origin.keys()
    assert os.uname().nodename not in json.dumps(origin)
    code, out, _ = run("verify", str(finished), "--json")
    content = json.loads(out)
    assert (code, content["provenance"]) == (0, origin)
    assert content["verification"]["fingerprint"] == verify(finished).fingerprint
    page = write_report(finished).read_text()
    header = page[page.index("<h1>") : page.index('id="evidence"')]
    data = read_run_directory(finished).trainings["training"]["data_fingerprint"]
    date = origin["date"].replace("T", " ").removesuffix("+00:00")
    assert all(fact in header for fact in (f"{date} UTC", data, "seed 0", verify(finished).fingerprint))
    assert origin["date"] not in (finished / "result.json").read_text()
