"""Two arrays that are read as one, without copying either."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Appended:
    """The rows of ``first``, then those of ``rest``. Only the rows that are read are copied.

    Supports a slice, a row number or an array of row numbers as index, like an array.
    """

    def __init__(self, first: NDArray[Any] | Appended, rest: NDArray[Any]) -> None:
        self.first, self.rest = first, np.asarray(rest, dtype=first.dtype)

    def __len__(self) -> int:
        return len(self.first) + len(self.rest)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of both arrays together."""
        return (len(self), *self.first.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""
        return self.first.dtype

    def __getitem__(self, index: Any) -> NDArray[Any]:
        if isinstance(index, slice):
            return self._gather(np.arange(len(self))[index])
        rows = np.asarray(index)
        return self._gather(rows.reshape(1))[0] if rows.ndim == 0 else self._gather(rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[:], dtype=dtype)

    def _gather(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return copies of the rows with these numbers; negative ones count from the end."""
        rows = np.where(rows < 0, rows + len(self), rows)
        in_rest = rows >= len(self.first)
        if not in_rest.any():
            return self.first[rows]
        values = np.empty((len(rows), *self.shape[1:]), dtype=self.dtype)
        values[~in_rest] = self.first[rows[~in_rest]]
        values[in_rest] = self.rest[rows[in_rest] - len(self.first)]
        return values
