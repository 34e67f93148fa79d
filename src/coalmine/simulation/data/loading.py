"""One call for every data set: ``load``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coalmine.errors import InputError
from coalmine.simulation.data import partition as partitions
from coalmine.simulation.data import tables
from coalmine.simulation.data.digits import digits
from coalmine.simulation.data.federated import Splits
from coalmine.simulation.data.generated_text import generated_text
from coalmine.simulation.data.images import ArrayData, read_arrays, read_named_arrays
from coalmine.simulation.data.leaf import Images, leaf_splits, read_leaf
from coalmine.simulation.data.named import NAMED, file_of, named
from coalmine.simulation.data.partition import Balanced, Iid, Natural, Partition
from coalmine.simulation.data.records import read_records
from coalmine.simulation.data.splitting import Cut, split_by_user
from coalmine.simulation.data.store import INDEX, open_saved
from coalmine.simulation.data.text import (
    Corpus,
    by_line,
    character_tokens,
    classification_splits,
    language_splits,
    word_tokens,
)
from coalmine.simulation.data.vocabulary import Level

_CLIENTS = 100  # of data that names no users, unless a partition is asked for


@dataclass(frozen=True, kw_only=True)
class _Options:
    """What a caller asked for beyond the split; None is "as usual". Options that do not apply are refused."""

    level: Level | None
    positions: int | None
    vocabulary_size: int | None
    keys: Mapping[str, str] | None
    images: Path | str | Images | None

    def only(self, source: str, *accepted: str) -> None:
        """Refuse the options that were given and are not ``accepted``."""
        for name, value in vars(self).items():
            if value is not None and name not in accepted:
                there = f"it takes {', '.join(accepted)}" if accepted else "it takes none of its kind"
                raise InputError(f"{source} cannot be loaded with {name}={value!r:.40}; {there}")


def load(
    name_or_path: str | Path,
    *,
    partition: str | Partition | None = None,
    seed: int = 0,
    test_fraction: float | None = None,
    pool_fraction: float = 0.0,
    min_examples: int = 1,
    level: Level | None = None,
    positions: int | None = None,
    vocabulary_size: int | None = None,
    keys: Mapping[str, str] | None = None,
    images: Path | str | Images | None = None,
) -> Splits:
    """Training, test and set-aside users of a data set: the same for the same arguments.

    ``name_or_path`` is a name ("digits", "mnist", "stackexchange", …), an .npz file of arrays, a .jsonl[.gz] file of
    texts by user, a .json file or directory of LEAF, a .parquet or .arrow file or a directory that ``save_to_disk`` of
    Hugging Face's ``datasets`` wrote, or a directory that ``save`` wrote. ``partition`` is "natural",
    "iid:100", "dirichlet:0.1/100" or "balanced:40"; data without users is dealt to IID clients unless it says
    otherwise. ``seed`` decides who is in which split, and the partition.

    ``test_fraction`` and ``pool_fraction`` are shares of the users (of the examples where there are no users); test
    users that the data brings are used by default, else a tenth. Users with fewer than ``min_examples`` are left out.

    Text takes ``level`` ("words" or "characters"), ``positions`` (a sequence's length) and ``vocabulary_size``. Files
    of the caller take ``keys``, the names of their columns; LEAF's CelebA takes ``images``.
    """
    asked = _asked(partition)
    cut = Cut(test_fraction=test_fraction, pool_fraction=pool_fraction, min_examples=min_examples, seed=seed)
    options = _Options(level=level, positions=positions, vocabulary_size=vocabulary_size, keys=keys, images=images)
    path = Path(name_or_path)
    try:
        if isinstance(name_or_path, str) and (name_or_path in NAMED or not path.exists()):
            splits, usual = _load_named(name_or_path, cut, options)
        elif path.exists():
            splits, usual = _load_path(path, cut, options, regrouped=asked is not None)
        else:
            raise InputError(f"there is no file {path}")
    except InputError as error:
        if str(name_or_path) in str(error):
            raise
        raise InputError(f"{name_or_path}: {error}") from error
    return _dealt(str(name_or_path), splits, usual, asked, seed)


def from_datasets(
    source: Any,
    *,
    input: str | None = None,
    label: str | None = None,
    user: str | None = None,
    test: Any = None,
    partition: str | Partition | None = None,
    seed: int = 0,
    test_fraction: float | None = None,
    pool_fraction: float = 0.0,
    min_examples: int = 1,
    level: Level | None = None,
    positions: int | None = None,
    vocabulary_size: int | None = None,
) -> Splits:
    """Training, test and set-aside users of tables of Hugging Face's ``datasets``, as they are in memory.

    ``source`` is a Dataset, a DatasetDict with ``train`` and perhaps ``test``, or partitions: a list or dict of
    Datasets, or a Partitioner of flwr-datasets, in which each partition is a user. ``input``, ``label`` and ``user``
    name columns; usual names are found without. ``test`` is what to test on, where the data does not say. All else is
    as in ``load``.
    """
    asked = _asked(partition)
    cut = Cut(test_fraction=test_fraction, pool_fraction=pool_fraction, min_examples=min_examples, seed=seed)
    keys = {role: name for role, name in (("inputs", input), ("labels", label), ("users", user)) if name is not None}
    options = _Options(level=level, positions=positions, vocabulary_size=vocabulary_size, keys=keys, images=None)
    splits, usual = _load_table("the data", source, test, cut, options)
    return _dealt("the data", splits, usual, asked, seed)


def _asked(partition: str | Partition | None) -> Partition | None:
    asked = partitions.parse(partition) if isinstance(partition, str) else partition
    if not isinstance(asked, Partition | None):
        raise InputError(f"the partition {asked!r:.40} is not known; {partitions.ACCEPTED}")
    return asked


def _dealt(name: str, splits: Splits, usual: Partition, asked: Partition | None, seed: int) -> Splits:
    if isinstance(usual, Iid) and isinstance(asked, Natural | Balanced):
        raise InputError(f"{name} has no users, so it cannot be {asked}: ask for iid or dirichlet")
    return partitions.repartition(splits, asked or usual, seed=seed)


def _load_named(name: str, cut: Cut, options: _Options) -> tuple[Splits, Partition]:
    if name not in NAMED and Path(name).suffix in (".npz", ".json", ".jsonl", ".gz", *tables.SUFFIXES):
        raise InputError(f"there is no file {name}")
    known = named(name)
    usual = partitions.parse(known.partition)
    if known.kind == "digits":
        options.only(name)
        return split_by_user(digits(), cut), usual
    if known.kind == "generated-text":
        options.only(name, "positions", "vocabulary_size")
        return generated_text(
            positions=20 if options.positions is None else options.positions,
            vocabulary_size=1000 if options.vocabulary_size is None else options.vocabulary_size,
            cut=cut,
        ), usual
    if known.kind == "arrays":
        options.only(name)
        return _split_arrays(read_arrays(file_of(name)), cut), usual
    corpus = read_records(file_of(name))
    if known.kind == "labeled":
        options.only(name, "positions", "vocabulary_size")
        return _classification(corpus, cut, options), usual
    options.only(name, "level", "positions", "vocabulary_size")
    return _language(corpus, cut, options, usual=known.kind), usual


def _load_path(path: Path, cut: Cut, options: _Options, *, regrouped: bool) -> tuple[Splits, Partition]:
    if path.is_dir() and (path / INDEX).exists():
        options.only(str(path))
        if cut != Cut(seed=cut.seed):
            raise InputError(f"{path} was saved already split: leave test_fraction, pool_fraction and min_examples out")
        return open_saved(path), Natural()
    if tables.is_saved(path) or path.suffix in tables.SUFFIXES:
        return _load_table(str(path), tables.open_table(path), None, cut, options)
    if path.is_dir() or path.suffix == ".json":
        options.only(str(path), "positions", "vocabulary_size", "images")
        images = read_named_arrays(Path(options.images)) if isinstance(options.images, str | Path) else options.images
        users = read_leaf(path)
        return leaf_splits(
            users, cut, positions=options.positions, vocabulary_size=options.vocabulary_size, images=images
        ), Natural()
    if path.suffix == ".npz":
        options.only(str(path), "keys")
        arrays = read_arrays(path, keys=options.keys)
        if arrays.others and not arrays.has_users and not regrouped:
            raise InputError(
                f"{path} has arrays that are not understood: {', '.join(arrays.others)}. If one says whose each example"
                f' is, give keys={{"users": "{arrays.others[0]}"}}; if none does, give a partition such as "iid:100"'
            )
        splits = _split_arrays(arrays, cut)
        return splits, Natural() if arrays.has_users else Iid(min(_CLIENTS, len(splits.train)))
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        corpus = read_records(path, keys=options.keys)
        if corpus.labels is not None:
            options.only(str(path), "positions", "vocabulary_size", "keys")
            return _classification(corpus, cut, options), Natural()
        options.only(str(path), "level", "positions", "vocabulary_size", "keys")
        return _language(corpus, cut, options, usual="words"), Natural()
    raise InputError(
        f"{path} must end in .npz, .jsonl, .jsonl.gz, .json, .parquet or .arrow, or be a directory of LEAF or of saved "
        "data"
    )


def _load_table(name: str, source: Any, test: Any, cut: Cut, options: _Options) -> tuple[Splits, Partition]:
    train, own = tables.parts_of(source)
    apart = own if test is None else test
    parts = [None if part is None else tables.read(part, keys=options.keys or {}) for part in (train, apart)]
    assert parts[0] is not None
    found = tables.assembled(parts[0], parts[1], source=name)
    if isinstance(found, ArrayData):
        options.only(name, "keys")
        splits = _split_arrays(found, cut)
        return splits, Natural() if found.has_users else Iid(min(_CLIENTS, len(splits.train)))
    if found.labels is not None:
        options.only(name, "positions", "vocabulary_size", "keys")
        return _classification(found, cut, options), Natural()
    options.only(name, "level", "positions", "vocabulary_size", "keys")
    return _language(found, cut, options, usual="words"), Natural()


def _split_arrays(arrays: ArrayData, cut: Cut) -> Splits:
    return split_by_user(arrays.data, cut, test=arrays.test)


def _language(corpus: Corpus, cut: Cut, options: _Options, *, usual: Level) -> Splits:
    level = options.level or usual
    if level not in ("words", "characters"):
        raise InputError(f"level must be words or characters, got {level!r}")
    tokenized = word_tokens(by_line(corpus)) if level == "words" else character_tokens(corpus)
    return language_splits(
        tokenized, cut, level=level, positions=options.positions, vocabulary_size=options.vocabulary_size
    )


def _classification(corpus: Corpus, cut: Cut, options: _Options) -> Splits:
    return classification_splits(corpus, cut, positions=options.positions, vocabulary_size=options.vocabulary_size)
