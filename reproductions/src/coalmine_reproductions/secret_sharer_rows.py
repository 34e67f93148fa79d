"""Rows of the four tables of the secret-sharer paper (Thakkar et al. 2020): trainings and their results."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Data = Literal["IID", "Non-IID"]
Optimizer = Literal["SGD", "Momentum", "Adam", "FedAvg", "FedAvg+Clip", "DP-FedAvg", "FedAvg+Adam"]
Length = Literal["whole", "tenth", "ten epochs"]


@dataclass(frozen=True)
class Setting:
    """A row of a table.

    Args:
        data: How examples are distributed over users.
        optimizer: Training algorithm.
        batch: The paper's batch size: records in central training, users in federated training.
        paper: The paper's results: RS, its lowest configuration, BS, its lowest configuration, accuracy, perplexity.
        length: How long it trains: all 8,000 rounds or 37.5 M steps (``"whole"``), a tenth of them, or ten epochs, with
            a larger learning rate for larger batches of records.
    """

    data: Data
    optimizer: Optimizer
    batch: int
    paper: tuple[int, str, int, str, float, float]
    length: Length = "whole"

    @property
    def central(self) -> bool:
        """Whether training is central, so that batches consist of records."""
        return self.optimizer in ("SGD", "Momentum", "Adam")

    @property
    def name(self) -> str:
        """A name by which claims find it."""
        length = "" if self.length == "whole" else f"-{self.length}"
        return f"{self.data}-{self.optimizer}-{self.batch}{length}".lower().replace("+", "-").replace(" ", "-")

    @property
    def training_name(self) -> str:
        """The name of its training: ten epochs of the smallest batches are the whole training of Table 1."""
        return replace(self, length="whole").name if self.batch in (32, 500) and self.length != "tenth" else self.name

    @property
    def title(self) -> str:
        """The setting in the paper's words, with the length where it is a tenth."""
        shorter = ", a tenth" if self.length == "tenth" else ""
        return f"{self.data}, {self.optimizer}, {'b_r' if self.central else 'b_u'} = {self.batch}{shorter}"


TABLE_1 = (
    Setting("IID", "SGD", 32, (54, "1/50K, 10%", 42, "3/50K, 10%", 24, 62.2)),
    Setting("IID", "SGD", 64, (54, "1/50K, 10%", 42, "3/50K, 10%", 24.1, 61.5)),
    Setting("IID", "SGD", 128, (52, "1/50K, 10%", 45, "3/50K, 10%", 24, 62)),
    Setting("IID", "SGD", 256, (53, "1/50K, 10%", 43, "1/50K, 10%", 24.1, 61.1)),
    Setting("IID", "FedAvg", 500, (66, "1/50K, 10%", 56, "1/50K, 10%", 24.6, 57.5)),
    Setting("IID", "FedAvg", 1000, (69, "3/50K, 1%", 58, "1/50K, 10%", 24.6, 57.3)),
    Setting("IID", "FedAvg", 2000, (67, "3/50K, 1%", 56, "1/50K, 10%", 24.6, 57.4)),
    Setting("IID", "FedAvg", 5000, (65, "3/50K, 1%", 58, "1/50K, 10%", 24.6, 57.3)),
    Setting("Non-IID", "SGD", 32, (37, "1/50K, 10%", 19, "3/50K, 10%", 23.7, 64.3)),
    Setting("Non-IID", "SGD", 64, (49, "1/50K, 10%", 36, "1/50K, 10%", 24.1, 61.8)),
    Setting("Non-IID", "SGD", 128, (48, "1/50K, 10%", 34, "1/50K, 10%", 24.1, 61.5)),
    Setting("Non-IID", "SGD", 256, (51, "1/50K, 10%", 39, "3/50K, 10%", 24.1, 61.3)),
    Setting("Non-IID", "FedAvg", 500, (21, "1/5K, 1%", 0, "-", 24.4, 58.8)),
    Setting("Non-IID", "FedAvg", 1000, (23, "1/5K, 1%", 1, "1/5K, 100%", 24.3, 59.5)),
    Setting("Non-IID", "FedAvg", 2000, (19, "1/5K, 1%", 1, "1/5K, 100%", 24.5, 58.3)),
    Setting("Non-IID", "FedAvg", 5000, (26, "1/5K, 1%", 2, "1/5K, 100%", 24.5, 58.2)),
)
TABLE_2 = (
    Setting("IID", "FedAvg", 5000, (65, "3/50K, 1%", 58, "1/50K, 10%", 24.6, 57.3)),
    Setting("IID", "FedAvg+Clip", 5000, (58, "1/50K, 10%", 49, "1/50K, 10%", 24.2, 60)),
    Setting("IID", "DP-FedAvg", 5000, (48, "1/50K, 10%", 42, "3/50K, 10%", 23.9, 63)),
    Setting("IID", "FedAvg+Clip", 5000, (28, "1/50K, 100%", 18, "3/50K, 100%", 21.9, 83.2), "tenth"),
    Setting("IID", "DP-FedAvg", 5000, (26, "1/50K, 100%", 18, "3/50K, 100%", 21.8, 84.2), "tenth"),
    Setting("Non-IID", "FedAvg", 5000, (26, "1/5K, 1%", 2, "1/5K, 100%", 24.5, 58.2)),
    Setting("Non-IID", "FedAvg+Clip", 5000, (11, "1/5K, 10%", 0, "-", 24, 61.5)),
    Setting("Non-IID", "DP-FedAvg", 5000, (12, "1/5K, 10%", 0, "-", 23.3, 68.5)),
    Setting("Non-IID", "FedAvg+Clip", 5000, (0, "-", 0, "-", 20.8, 95.9), "tenth"),
    Setting("Non-IID", "DP-FedAvg", 5000, (0, "-", 0, "-", 20.7, 97.1), "tenth"),
)
TABLE_3 = (
    Setting("IID", "SGD", 32, (54, "1/50K, 10%", 42, "3/50K, 10%", 24, 62.2)),
    Setting("IID", "Momentum", 32, (64, "3/50K, 1%", 50, "1/50K, 10%", 24.2, 60.6)),
    Setting("IID", "Adam", 32, (56, "1/50K, 10%", 42, "3/50K, 10%", 22.7, 70.8)),
    Setting("IID", "FedAvg", 500, (66, "1/50K, 10%", 56, "1/50K, 10%", 24.6, 57.5)),
    Setting("IID", "FedAvg+Adam", 500, (60, "1/50K, 10%", 46, "1/50K, 10%", 23.7, 63.7)),
    Setting("Non-IID", "SGD", 32, (37, "1/50K, 10%", 19, "3/50K, 10%", 23.7, 64.3)),
    Setting("Non-IID", "Momentum", 32, (48, "3/50K, 1%", 36, "1/50K, 10%", 24.3, 59.9)),
    Setting("Non-IID", "Adam", 32, (21, "1/50K, 10%", 13, "1/50K, 10%", 21.5, 84.1)),
    Setting("Non-IID", "FedAvg", 500, (21, "1/5K, 1%", 0, "-", 24.4, 58.8)),
    Setting("Non-IID", "FedAvg+Adam", 500, (8, "1/5K, 10%", 0, "-", 23.3, 66.5)),
)
TABLE_4 = (
    Setting("IID", "SGD", 32, (49, "1/50K, 10%", 43, "3/50K, 10%", 23.9, 63), "ten epochs"),
    Setting("IID", "SGD", 64, (51, "1/50K, 10%", 39, "3/50K, 10%", 23.5, 65.1), "ten epochs"),
    Setting("IID", "SGD", 128, (46, "3/50K, 10%", 36, "1/50K, 100%", 23.2, 67.6), "ten epochs"),
    Setting("IID", "SGD", 256, (46, "3/50K, 10%", 32, "1/50K, 100%", 23, 69.7), "ten epochs"),
    Setting("IID", "FedAvg", 500, (66, "1/50K, 10%", 56, "1/50K, 10%", 24.6, 57.5), "ten epochs"),
    Setting("IID", "FedAvg", 1000, (27, "1/50K, 100%", 18, "3/50K, 100%", 24.5, 58), "ten epochs"),
    Setting("IID", "FedAvg", 2000, (28, "1/50K, 100%", 18, "3/50K, 100%", 24.4, 59.3), "ten epochs"),
    Setting("IID", "FedAvg", 5000, (28, "1/50K, 100%", 18, "3/50K, 100%", 24, 62.5), "ten epochs"),
    Setting("Non-IID", "SGD", 32, (40, "1/50K, 10%", 29, "1/50K, 10%", 23.7, 64.2), "ten epochs"),
    Setting("Non-IID", "SGD", 64, (38, "1/50K, 10%", 32, "1/50K, 10%", 23.6, 65.6), "ten epochs"),
    Setting("Non-IID", "SGD", 128, (35, "1/50K, 10%", 26, "1/50K, 100%", 23.2, 68.2), "ten epochs"),
    Setting("Non-IID", "SGD", 256, (40, "3/50K, 10%", 31, "1/50K, 100%", 23, 69.8), "ten epochs"),
    Setting("Non-IID", "FedAvg", 500, (21, "1/5K, 1%", 0, "-", 24.4, 58.8), "ten epochs"),
    Setting("Non-IID", "FedAvg", 1000, (10, "1/5K, 10%", 0, "-", 24, 61.2), "ten epochs"),
    Setting("Non-IID", "FedAvg", 2000, (0, "-", 0, "-", 24, 61.9), "ten epochs"),
    Setting("Non-IID", "FedAvg", 5000, (0, "-", 0, "-", 23.3, 67.9), "ten epochs"),
)
