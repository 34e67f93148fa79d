"""Loading data sets by name, from files and from tables in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coalmine.errors import InputError
from coalmine.simulation.data import partition as partitions
from coalmine.simulation.data import tables
from coalmine.simulation.data.federated import Splits
from coalmine.simulation.data.generated_text import generated_text
from coalmine.simulation.data.images import ArrayData, digits, read_arrays, read_named_arrays
from coalmine.simulation.data.leaf import Images, leaf_splits, read_leaf
from coalmine.simulation.data.named import NAMED, file_of, named
from coalmine.simulation.data.partition import Balanced, Iid, Natural, Partition
from coalmine.simulation.data.records import read_records
from coalmine.simulation.data.splitting import SplitOptions, split_by_user
from coalmine.simulation.data.store import INDEX, open_saved
from coalmine.simulation.data.text import (
    Corpus,
    classification_splits,
    language_splits,
    split_lines,
    tokenize_characters,
    tokenize_words,
)
from coalmine.simulation.data.vocabulary import Level

_CLIENTS = 100  # default number of clients for data without users


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Options of `load` that apply to some sources only; None means the default."""

    level: Level | None
    positions: int | None
    vocabulary_size: int | None
    keys: Mapping[str, str] | None
    images: Path | str | Images | None

    def check(self, source: str, *accepted: str) -> None:
        """Raise if an option is set that ``source`` does not accept."""
        for name, value in vars(self).items():
            if value is not None and name not in accepted:
                hint = f"it accepts {', '.join(accepted)}" if accepted else "leave it out"
                raise InputError(f"{source} cannot be loaded with {name}={value!r:.40}; {hint}")


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
    """Load a data set and split its users into train, test and pool.

    The same arguments give the same splits. Users are split before a partition regroups their examples, so no example
    of a training user ends up in test or pool.

    Args:
        name_or_path: A name such as ``"digits"`` or ``"mnist"`` (`NAMES` lists them), or a path: an .npz file of
            arrays, a .jsonl or .jsonl.gz file of texts by user, a .json file or directory of LEAF, a .parquet or .arrow
            file, a directory that ``save_to_disk`` of Hugging Face's ``datasets`` wrote, or one that `save` wrote.
        partition: ``"natural"``, ``"iid:100"``, ``"dirichlet:0.1/100"``, ``"balanced:40"`` or a `Partition`. By default
            the users of the data, or IID clients if it has none.
        seed: Seed for which user is in which split, and for the partition.
        test_fraction: Fraction of users (of examples, if there are no users) to test on. By default the test users that
            the data comes with, or a tenth.
        pool_fraction: Fraction of users to set aside for designing canaries.
        min_examples: Users with fewer examples are dropped.
        level: ``"words"`` or ``"characters"``, for text without labels.
        positions: Sequence length in tokens, for text.
        vocabulary_size: Largest size of the vocabulary including special tokens, for text.
        keys: Names of the columns in your own file, such as ``{"inputs": "scan", "users": "ward"}``.
        images: For LEAF's CelebA: an .npz file, or a mapping, with one array per image name.

    Returns:
        Training and test users, and a pool if ``pool_fraction`` is positive.

    Raises:
        InputError: If there is no such data, if a file is damaged, or if an option does not apply.

    Example:
        >>> splits = load("digits", partition="dirichlet:0.5/20", test_fraction=0.2)
        >>> splits.train
        FederatedData(20 clients of 71 to 72 examples, 1438 in all, 1×8×8, 10 classes)
        >>> splits.train.client(0).inputs.shape
        (71, 1, 8, 8)
    """
    chosen = _parse(partition)
    split = SplitOptions(test_fraction=test_fraction, pool_fraction=pool_fraction, min_examples=min_examples, seed=seed)
    options = _Options(level=level, positions=positions, vocabulary_size=vocabulary_size, keys=keys, images=images)
    path = Path(name_or_path)
    try:
        if isinstance(name_or_path, str) and (name_or_path in NAMED or not path.exists()):
            splits, default = _load_named(name_or_path, split, options)
        elif path.exists():
            splits, default = _load_path(path, split, options, regrouped=chosen is not None)
        else:
            raise InputError(f"there is no file {path}")
    except InputError as error:
        if str(name_or_path) in str(error):
            raise
        raise InputError(f"{name_or_path}: {error}") from error
    return _regroup(str(name_or_path), splits, default, chosen, seed)


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
    """Split tables of Hugging Face's ``datasets`` that are in memory into train, test and pool.

    Args:
        source: A Dataset, a DatasetDict with ``train`` and optionally ``test``, or partitions, each of which is a user:
            a list or dict of Datasets, or a Partitioner of flwr-datasets.
        input: Column of inputs. Usual names such as ``image``, ``text`` and ``x`` are recognized.
        label: Column of labels.
        user: Column of users.
        test: Data to test on, if ``source`` has no test part.
        partition: As for `load`.
        seed: As for `load`.
        test_fraction: As for `load`.
        pool_fraction: As for `load`.
        min_examples: As for `load`.
        level: As for `load`.
        positions: As for `load`.
        vocabulary_size: As for `load`.

    Returns:
        Training and test users, and a pool if ``pool_fraction`` is positive.

    Raises:
        InputError: If ``datasets`` is not installed, if a column is missing, or as for `load`.

    Example:
        >>> from datasets import Dataset  # doctest: +SKIP
        >>> table = Dataset.from_dict({"x": [[0.0], [1.0]] * 20, "y": [0, 1] * 20, "user": list(range(20)) * 2})
        ... # doctest: +SKIP
        >>> from_datasets(table).train  # doctest: +SKIP
        FederatedData(18 clients of 2 examples, 36 in all, 1, 2 classes)
    """
    chosen = _parse(partition)
    split = SplitOptions(test_fraction=test_fraction, pool_fraction=pool_fraction, min_examples=min_examples, seed=seed)
    keys = {role: name for role, name in (("inputs", input), ("labels", label), ("users", user)) if name is not None}
    options = _Options(level=level, positions=positions, vocabulary_size=vocabulary_size, keys=keys, images=None)
    splits, default = _load_table("the data", source, test, split, options)
    return _regroup("the data", splits, default, chosen, seed)


def _parse(partition: str | Partition | None) -> Partition | None:
    """Return the partition that a string describes; partitions and None as they are."""
    chosen = partitions.parse(partition) if isinstance(partition, str) else partition
    if not isinstance(chosen, Partition | None):
        raise InputError(f"unknown partition {chosen!r:.40}; {partitions.ACCEPTED}")
    return chosen


def _regroup(name: str, splits: Splits, default: Partition, chosen: Partition | None, seed: int) -> Splits:
    """Apply the chosen partition, or the default one."""
    if isinstance(default, Iid) and isinstance(chosen, Natural | Balanced):
        raise InputError(f"{name} has no users, so the partition cannot be {chosen}: use iid or dirichlet")
    return partitions.repartition(splits, chosen or default, seed=seed)


def _load_named(name: str, split: SplitOptions, options: _Options) -> tuple[Splits, Partition]:
    """Load a data set by its name; return it with its default partition."""
    if name not in NAMED and Path(name).suffix in (".npz", ".json", ".jsonl", ".gz", *tables.SUFFIXES):
        raise InputError(f"there is no file {name}")
    entry = named(name)
    default = partitions.parse(entry.partition)
    if entry.kind == "digits":
        options.check(name)
        return split_by_user(digits(), split), default
    if entry.kind == "generated-text":
        options.check(name, "positions", "vocabulary_size")
        return generated_text(
            positions=20 if options.positions is None else options.positions,
            vocabulary_size=1000 if options.vocabulary_size is None else options.vocabulary_size,
            split=split,
        ), default
    if entry.kind == "arrays":
        options.check(name)
        return _split_arrays(read_arrays(file_of(name)), split)[0], default
    corpus = read_records(file_of(name))
    return _split_texts(name, corpus, split, options, level="words" if entry.kind == "labeled" else entry.kind), default


def _load_path(path: Path, split: SplitOptions, options: _Options, *, regrouped: bool) -> tuple[Splits, Partition]:
    """Load a file or directory; return it with its default partition."""
    if path.is_dir() and (path / INDEX).exists():
        options.check(str(path))
        if split != SplitOptions(seed=split.seed):
            raise InputError(f"{path} is already split: leave out test_fraction, pool_fraction and min_examples")
        return open_saved(path), Natural()
    if tables.is_saved(path) or path.suffix in tables.SUFFIXES:
        return _load_table(str(path), tables.open_table(path), None, split, options)
    if path.is_dir() or path.suffix == ".json":
        options.check(str(path), "positions", "vocabulary_size", "images")
        images = read_named_arrays(Path(options.images)) if isinstance(options.images, str | Path) else options.images
        return leaf_splits(
            read_leaf(path),
            split,
            positions=options.positions,
            vocabulary_size=options.vocabulary_size,
            images=images,
        ), Natural()
    if path.suffix == ".npz":
        options.check(str(path), "keys")
        arrays = read_arrays(path, keys=options.keys)
        # An array with an unknown name may hold the users. Ignoring it would audit the wrong clients, so ask.
        if arrays.unrecognized and not arrays.has_users and not regrouped:
            raise InputError(
                f"{path} has unrecognized arrays: {', '.join(arrays.unrecognized)}. If one holds the user of each"
                f' example, pass keys={{"users": "{arrays.unrecognized[0]}"}}; if none does, pass a partition such as'
                ' "iid:100"'
            )
        return _split_arrays(arrays, split)
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        corpus = read_records(path, keys=options.keys)
        return _split_texts(str(path), corpus, split, options, "keys", level="words"), Natural()
    raise InputError(
        f"{path} must end in .npz, .jsonl, .jsonl.gz, .json, .parquet or .arrow, or be a directory of LEAF or of saved"
        " data"
    )


def _load_table(name: str, source: Any, test: Any, split: SplitOptions, options: _Options) -> tuple[Splits, Partition]:
    """Load a table of ``datasets``; return it with its default partition."""
    train, test_part = tables.split_parts(source)
    test = test_part if test is None else test
    keys = options.keys or {}
    test_table = None if test is None else tables.read(test, keys=keys)
    data = tables.to_data(tables.read(train, keys=keys), test_table, source=name)
    if isinstance(data, ArrayData):
        options.check(name, "keys")
        return _split_arrays(data, split)
    return _split_texts(name, data, split, options, "keys", level="words"), Natural()


def _split_arrays(arrays: ArrayData, split: SplitOptions) -> tuple[Splits, Partition]:
    """Split arrays by user; the default partition is IID if there are no users."""
    splits = split_by_user(arrays.data, split, test=arrays.test)
    return splits, Natural() if arrays.has_users else Iid(min(_CLIENTS, len(splits.train)))


def _split_texts(
    name: str, corpus: Corpus, split: SplitOptions, options: _Options, *accepted: str, level: Level
) -> Splits:
    """Split texts by user, to classify if they have labels, else to predict the next token at ``level`` by default."""
    if corpus.labels is not None:
        options.check(name, "positions", "vocabulary_size", *accepted)
        return classification_splits(
            corpus, split, positions=options.positions, vocabulary_size=options.vocabulary_size
        )
    options.check(name, "level", "positions", "vocabulary_size", *accepted)
    level = options.level or level
    if level not in ("words", "characters"):
        raise InputError(f"level must be words or characters, got {level!r}")
    tokenized = tokenize_words(split_lines(corpus)) if level == "words" else tokenize_characters(corpus)
    return language_splits(
        tokenized, split, level=level, positions=options.positions, vocabulary_size=options.vocabulary_size
    )
