"""Two arrays that are read as one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Appended:
    """The rows of ``first``, then those of ``rest``: what is asked for is copied, the whole never is.

    It is indexed as an array is, by a slice, by a row or by an array of rows.
    """

    def __init__(self, first: NDArray[Any] | Appended, rest: NDArray[Any]) -> None:
        self.first, self.rest = first, np.asarray(rest, dtype=first.dtype)

    def __len__(self) -> int:
        return len(self.first) + len(self.rest)

    @property
    def shape(self) -> tuple[int, ...]:
        """As of an array."""
        return (len(self), *self.first.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """As of an array."""
        return self.first.dtype

    def __getitem__(self, index: Any) -> NDArray[Any]:
        if isinstance(index, slice):
            return self._rows(np.arange(len(self))[index])
        rows = np.asarray(index)
        return self._rows(rows.reshape(1))[0] if rows.ndim == 0 else self._rows(rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[:], dtype=dtype)

    def _rows(self, rows: NDArray[Any]) -> NDArray[Any]:
        rows = np.where(rows < 0, rows + len(self), rows)
        late = rows >= len(self.first)
        if not late.any():
            return self.first[rows]
        found = np.empty((len(rows), *self.shape[1:]), dtype=self.dtype)
        found[~late] = self.first[rows[~late]]
        found[late] = self.rest[rows[late] - len(self.first)]
        return found
