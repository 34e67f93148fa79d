"""Memory that a model keeps between training steps."""

from __future__ import annotations

import math
import threading

import torch
from torch import Tensor


class Workspace(threading.local):
    """Scratch tensors by name, kept for the next call.

    Fresh tensors of a few megabytes cost a page fault for every 4 kB each time they are written, which is a tenth of a
    client's step. What was taken before under the same name is overwritten, so nothing taken may outlive the call.
    Each thread has its own; copies and pickles of a module start with an empty one.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, *shape: int, like: Tensor) -> Tensor:
        """A tensor of this shape with arbitrary content, of the type and device of ``like``."""
        size = math.prod(shape)
        kept = self._buffers.get((name, like.dtype))
        if kept is None or kept.numel() < size or kept.device != like.device:
            kept = self._buffers[name, like.dtype] = like.new_empty(size)
        return kept[:size].view(shape)

    def __reduce__(self) -> tuple[type[Workspace], tuple[()]]:
        return Workspace, ()
