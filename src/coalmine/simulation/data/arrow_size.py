"""How much a .parquet or .arrow file contains, before it is read: a few kilobytes can stand for many gigabytes.

Both formats store runs of equal values, texts of a dictionary and compressed pages once. What is bounded is the size of
the columns as NumPy arrays, in which every number takes eight bytes and every text its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coalmine.errors import InputError
from coalmine.reading import largest_content, opened

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_WIDTH = 8  # bytes of a number
_ROWS = 1 << 16  # of a batch
_OVERHEAD = 1 << 31  # bytes of address space that reading a batch may take beside its content


def check_parquet(path: Path) -> None:
    """Refuse a .parquet file that contains far more than its size.

    Raises:
        InputError: If it does.
    """
    import pyarrow.parquet

    most = largest_content(path)
    with pyarrow.parquet.ParquetFile(path) as file:
        # Columns of a group say more, but asking a damaged file for one ends the process.
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        _check(path, most, _WIDTH * sum(group.num_rows * group.num_columns for group in groups))
        _check(path, most, sum(group.total_byte_size for group in groups))
        texts = [column.path for column in file.schema if column.physical_type == "BYTE_ARRAY"]
    # As dictionaries, equal texts are in memory once, however often they occur.
    with _limited_memory(most), pyarrow.parquet.ParquetFile(path, read_dictionary=texts) as file:
        _check_batches(path, most, file.iter_batches(batch_size=_ROWS))


def check_arrow(path: Path) -> None:
    """Refuse an .arrow file (a stream, as ``datasets`` writes it) that contains far more than its size.

    Raises:
        InputError: If it does.
    """
    import pyarrow

    most = largest_content(path)
    with opened(path), _limited_memory(most), pyarrow.memory_map(str(path)) as file:
        _check_batches(path, most, pyarrow.ipc.open_stream(file))


def _check_batches(path: Path, most: int, batches: Any) -> None:
    """Refuse batches that take too much memory together or are damaged; each is dropped before the next is read."""
    content = 0
    for batch in batches:
        batch.validate(full=True)  # an offset outside of its buffer would end the process
        content += sum(map(_size, batch.columns))
        _check(path, most, content)


def _check(path: Path, most: int, content: int) -> None:
    if content > most:
        raise InputError(f"{path} is too large: {path.stat().st_size:,} bytes that contain {content:,} or more")


def _size(array: Any) -> int:
    """Return the bytes that a column takes as a NumPy array."""
    import pyarrow

    kind = array.type
    if pyarrow.types.is_dictionary(kind):
        return _WIDTH * len(array) + _text_bytes(array)
    if pyarrow.types.is_struct(kind):
        return sum(map(_size, array.flatten()))
    if hasattr(array, "flatten"):  # lists
        return _WIDTH * len(array) + _size(array.flatten())
    if isinstance(array, pyarrow.ExtensionArray):
        return _size(array.storage)
    return max(_WIDTH * len(array), int(array.nbytes))


def _text_bytes(array: Any) -> int:
    """Return the bytes of the values of a dictionary array, each counted as often as it occurs."""
    import pyarrow
    import pyarrow.compute

    values = array.dictionary
    if not (pyarrow.types.is_string(values.type) or pyarrow.types.is_binary(values.type)):
        return int(values.nbytes)
    lengths = pyarrow.compute.binary_length(values).cast(pyarrow.int64())
    return int(pyarrow.compute.sum(lengths.take(array.indices)).as_py() or 0)


@contextmanager
def _limited_memory(content: int) -> Iterator[None]:
    """Let this process take no more than ``content`` bytes and some overhead, on systems where that can be set.

    One compressed page says nothing true about its size before it is read.
    """
    if resource is None or not Path("/proc/self/statm").exists():
        yield
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + content + _OVERHEAD
    lower = limit if before == resource.RLIM_INFINITY else min(before, limit)
    resource.setrlimit(resource.RLIMIT_AS, (lower, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))
