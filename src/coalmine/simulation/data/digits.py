"""Handwritten digits from scikit-learn: images that need no file."""

from __future__ import annotations

import importlib

import numpy as np

from coalmine.errors import InputError
from coalmine.simulation.data.federated import FederatedData, Task
from coalmine.simulation.data.images import without_users


def digits() -> FederatedData:
    """Return the 1,797 digits (8 × 8 pixels) of UCI's test set as float32 in [0, 1], each as its own user."""
    try:
        bunch = importlib.import_module("sklearn.datasets").load_digits()
    except ImportError:
        raise InputError("the data set digits needs scikit-learn: run pip install scikit-learn") from None
    images = (bunch.images / 16).astype(np.float32)[:, None]
    return without_users(images, bunch.target.astype(np.uint8), Task(input_shape=(1, 8, 8), classes=10))
