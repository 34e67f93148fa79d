"""Tables of Hugging Face's datasets as federated data."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from coalmine import reading
from coalmine.errors import InputError
from coalmine.simulation.data import arrow_size, from_datasets, load


@pytest.fixture(scope="module")
def datasets():
    return pytest.importorskip("datasets", reason="datasets is not installed: pip install 'coalmine[datasets]'")


def pictures(datasets, count=60, **columns):
    pixels = np.arange(count * 16, dtype=np.uint8).reshape(count, 4, 4)
    features = {"image": datasets.Array2D((4, 4), "uint8"), "label": datasets.ClassLabel(3)}
    features |= {name: datasets.Value("string") for name in columns}
    return datasets.Dataset.from_dict(
        {"image": pixels.tolist(), "label": [i % 3 for i in range(count)], **columns},
        features=datasets.Features(features),
    )


def test_users_of_a_column_are_clients_and_pixels_stay_pixels(datasets):
    writers = [f"writer {i % 12}" for i in range(60)]
    splits = from_datasets(pictures(datasets, writer=writers), user="writer", test_fraction=0.25)
    assert (len(splits.train), len(splits.test)) == (9, 3)
    assert splits.train.task.input_shape == (1, 4, 4)
    assert splits.train.inputs.dtype == np.uint8
    client = splits.train.client(0)
    number = int(splits.train.names[0].split()[1])
    assert client.targets.tolist() == [i % 3 for i in range(number, 60, 12)]
    assert client.inputs[1].ravel().tolist() == (np.arange(16) + 16 * (number + 12)).astype(np.uint8).tolist()


def test_partitions_are_users_in_a_list_a_dict_and_a_partitioner(datasets):
    whole = pictures(datasets)
    parts = [whole.select(range(start, start + 6)) for start in range(0, 60, 6)]

    class Partitioner:
        num_partitions = 10

        def load_partition(self, i):
            return parts[i]

    for source in (parts, {str(i): part for i, part in enumerate(parts)}, Partitioner()):
        splits = from_datasets(source, seed=1)
        assert (len(splits.train), len(splits.test)) == (9, 1)
        assert set(splits.train.sizes.tolist()) == {6}
    central = from_datasets(parts, test=pictures(datasets, count=20))
    assert (len(central.train), central.test.sizes.sum()) == (10, 20)


def test_partitions_of_flwr_datasets_are_users(datasets):
    partitioner = pytest.importorskip("flwr_datasets.partitioner", reason="flwr-datasets is not installed")
    made = partitioner.DirichletPartitioner(num_partitions=4, partition_by="label", alpha=5.0, min_partition_size=2)
    made.dataset = pictures(datasets, count=200)
    splits = from_datasets(made)
    assert len(splits.train) + len(splits.test) == 4
    assert splits.train.sizes.sum() + splits.test.sizes.sum() == 200


def test_data_without_users_is_assigned_to_clients(datasets):
    both = datasets.DatasetDict(train=pictures(datasets), test=pictures(datasets, count=30))
    splits = from_datasets(both, partition="iid:5")
    assert (len(splits.train), splits.train.sizes.sum(), splits.test.sizes.sum()) == (5, 60, 30)
    with pytest.raises(InputError, match="has no users"):
        from_datasets(both, partition="natural")


def test_a_user_in_train_and_in_test_raises(datasets):
    part = pictures(datasets, count=20, user=[f"u{i % 4}" for i in range(20)])
    with pytest.raises(InputError, match="user u0 in train and in test"):
        from_datasets(datasets.DatasetDict(train=part, test=part))


def test_texts_become_language_or_classification_data(datasets):
    rows = {"who": [f"u{i % 20}" for i in range(100)], "text": [f"these are words number {i}" for i in range(100)]}
    spoken = from_datasets(datasets.Dataset.from_dict(rows), user="who", positions=6)
    assert spoken.train.task.per_position
    assert spoken.train.vocabulary.decode(spoken.train.client(0).inputs[0]).startswith("these are words number")
    judged = from_datasets(datasets.Dataset.from_dict(rows | {"label": [i % 2 for i in range(100)]}), user="who")
    assert (judged.train.task.classes, judged.train.task.per_position) == (2, False)
    with pytest.raises(InputError, match="pass user="):
        from_datasets(datasets.Dataset.from_dict({"text": rows["text"]}))


def test_saved_directories_and_files_load_by_their_path(datasets, tmp_path):
    table = pictures(datasets, user=[f"u{i % 10}" for i in range(60)])
    table.save_to_disk(str(tmp_path / "saved"))
    table.to_parquet(str(tmp_path / "table.parquet"))
    arrow = next((tmp_path / "saved").glob("*.arrow"))
    expected = from_datasets(table, seed=3)
    for path in (tmp_path / "saved", tmp_path / "table.parquet", arrow):
        splits = load(path, seed=3)
        assert splits.train.names == expected.train.names
        assert np.array_equal(splits.train.inputs, expected.train.inputs)
    assert load(tmp_path / "saved", keys={"users": "label"}, min_examples=20).train.sizes.tolist() == [20, 20]
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(InputError, match=r"broken.parquet cannot be read as a table"):
        load(tmp_path / "broken.parquet")


@pytest.mark.parametrize("where", ["column", "list"])
def test_tables_that_name_files_instead_of_holding_them_are_refused(datasets, where, tmp_path):
    """The library would open whatever path or address a table from elsewhere names."""
    import pyarrow
    import pyarrow.parquet

    picture = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
    linked = {"bytes": None, "path": "/etc/hostname"}
    stored = {"bytes": b"not decoded here", "path": None}
    for name, rows, refused in (("linked", [stored, linked], True), ("stored", [stored, stored], False)):
        feature = datasets.Image() if where == "column" else datasets.Sequence(datasets.Image())
        kind = picture if where == "column" else pyarrow.list_(picture)
        cells = rows if where == "column" else [[row] for row in rows]
        table = pyarrow.table({"image": pyarrow.array(cells, kind), "label": [0, 1]})
        features = datasets.Features({"image": feature, "label": datasets.Value("int64")})
        schema = table.schema.with_metadata(features.arrow_schema.metadata)
        path = tmp_path / f"{name}.parquet"
        pyarrow.parquet.write_table(table.cast(schema), path)
        # Inside lists nothing is told apart: no data of that form can be read anyway.
        message = "names files or addresses" if refused or where == "list" else "cannot be read: "
        with pytest.raises(InputError, match=message):
            load(path)


def write_bomb(kind, path):
    """Write a few kilobytes that contain 60 megabytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    zeros = pa.array(np.zeros(1_000_000, dtype=np.int8))
    columns = dict.fromkeys("abcdefgh", zeros)
    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(3000, dtype=np.int32)), pa.array(["a" * 20_000]))
    if kind == "rows":
        pq.write_table(pa.table(columns), path, compression="zstd")
    elif kind == "texts":
        pq.write_table(pa.table({"text": text}), path, store_schema=False)
    elif kind == "inner texts":
        pq.write_table(pa.table({"image": pa.StructArray.from_arrays([text], names=["bytes"])}), path)
    else:
        table = pa.table({"text": text} if kind == "batch of texts" else columns)
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema, options=options) as writer:
            writer.write_table(table)


@pytest.mark.parametrize("kind", ["rows", "texts", "inner texts", "batch of rows", "batch of texts"])
def test_small_files_that_contain_far_more_are_refused(datasets, kind, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "LARGEST", 1 << 25)
    path = tmp_path / ("bomb.arrow" if kind.startswith("batch") else "bomb.parquet")
    write_bomb(kind, path)
    assert path.stat().st_size < 50_000
    with pytest.raises(InputError, match=r"bomb.* is too large: .* bytes that contain 6\d,\d{3},\d{3} or more"):
        load(path)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux limits the memory of a process")
def test_memory_is_limited_while_a_file_is_read_and_not_longer(monkeypatch):
    monkeypatch.setattr(arrow_size, "_OVERHEAD", 0)
    with arrow_size._limited_memory(1 << 20), pytest.raises(MemoryError):
        np.ones(1 << 27)
    assert np.ones(1 << 24).nbytes == 1 << 27


def test_rows_with_missing_values_are_refused(datasets):
    with pytest.raises(InputError, match="the columns x, y cannot be read"):
        from_datasets(datasets.Dataset.from_dict({"x": [None, [1.0, 2.0]], "y": [0, 1]}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": "photo"}, "no column 'photo'.* image, label"),
        ({"label": "image"}, "labels must be"),
        ({"user": "writer"}, "there is no column 'writer'"),
        ({"level": "words"}, "cannot be loaded with level"),
    ],
)
def test_what_does_not_fit_raises(datasets, change, message):
    with pytest.raises(InputError, match=message):
        from_datasets(pictures(datasets), **change)


def test_rows_of_different_shapes_and_other_objects_raise(datasets):
    with pytest.raises(InputError, match="the same shape in every row"):
        from_datasets(datasets.Dataset.from_dict({"x": [[1, 2], [3]], "y": [0, 1]}))
    with pytest.raises(InputError, match="or a list or dict of them"):
        from_datasets([1, 2])
    with pytest.raises(InputError, match="partitions are users already"):
        from_datasets([pictures(datasets)], user="label")


def test_without_the_library_its_tables_say_what_to_install(tmp_path):
    (tmp_path / "table.parquet").write_bytes(b"PAR1")
    check = (
        "import sys; sys.modules['datasets'] = None\n"
        "from coalmine.simulation.data import from_datasets, load\n"
        f"for call in (lambda: from_datasets([]), lambda: load({str(tmp_path / 'table.parquet')!r})):\n"
        "    try: call()\n"
        "    except ValueError as error: print(error)\n"
        "print(load('generated-text').train)"
    )
    output = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout
    assert output.count("pip install 'coalmine[datasets]'") == 2
    assert "FederatedData(" in output
