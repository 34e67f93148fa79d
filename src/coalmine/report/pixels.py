"""Arrays as pictures in the page: PNG, in the standard library's few lines."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt


def png(picture: npt.NDArray[Any]) -> bytes | None:
    """An array (height, width), (1 or 3, height, width) or (height, width, 1 or 3), from its least to its largest.

    None where it is no picture.
    """
    array = np.asarray(picture, dtype=float)
    if array.ndim == 3 and array.shape[0] in (1, 3):
        array = np.moveaxis(array, 0, -1)
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[-1] not in (1, 3) or not array.size or not np.isfinite(array).all():
        return None
    low, high = array.min(), array.max()
    levels = np.round(255 * (array - low) / ((high - low) or 1.0)).astype(np.uint8)
    height, width, channels = levels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in levels)
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


def data_address(png: bytes) -> str:
    """A picture as an address that needs no network."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")
