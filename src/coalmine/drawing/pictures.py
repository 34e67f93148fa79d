"""Arrays as PNG images in ``data:`` URLs, for self-contained pages and figures."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from coalmine.errors import InputError

# Images are enlarged to at least this many pixels per side, since viewers blur small ones.
_SIDE = 112


def is_picture(shape: tuple[int, ...]) -> bool:
    """Whether an array of this shape is an image: (1, height, width) or (3, height, width)."""
    return len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) > 1


def png_uri(numbers: npt.NDArray[Any], span: tuple[float, float] | None = None) -> str:
    """Return an image of shape (1 or 3, height, width) as the ``data:`` URL of a PNG.

    Args:
        numbers: The image.
        span: The values shown as black and white, by default the smallest and the largest. Others are clipped.
    """
    if not is_picture(numbers.shape):
        raise InputError(f"an image has shape (1, height, width) or (3, height, width), got {numbers.shape}")
    low, high = (float(numbers.min()), float(numbers.max())) if span is None else span
    scaled = (numbers.astype(np.float64) - low) / (high - low if high > low else 1.0)
    pixels = np.round(255 * np.clip(scaled, 0, 1)).astype(np.uint8).transpose(1, 2, 0)
    times = max(1, -(-_SIDE // min(pixels.shape[:2])))
    pixels = pixels.repeat(times, axis=0).repeat(times, axis=1)
    return f"data:image/png;base64,{base64.b64encode(_png(pixels)).decode('ascii')}"


def _png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Return the PNG of pixels of shape (height, width, 1 or 3), eight bits per channel."""
    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    # Each row starts with the number of its filter; 0 means none.
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, content) for name, content in parts)


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
