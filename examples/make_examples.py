"""Writes scores.csv and losses.csv: samples of a Gaussian mechanism with ε = 4.377 at δ = 1e-5."""

from __future__ import annotations

from pathlib import Path

import numpy as np

HERE = Path(__file__).parent


def main() -> None:
    """Write 1,000 scores of members and of non-members each, and losses of 100 canaries and 1,000 references."""
    rng = np.random.default_rng([20230208, 1000, 10])
    members, nonmembers = rng.normal(1, 1, 1000), rng.normal(0, 1, 1000)
    scores = [f"{x},1" for x in members] + [f"{x},0" for x in nonmembers]
    losses = [f"{-x},1" for x in members[:100]] + [f"{-x},0" for x in nonmembers]
    (HERE / "scores.csv").write_text("score,member\n" + "\n".join(scores) + "\n")
    (HERE / "losses.csv").write_text("loss,canary\n" + "\n".join(losses) + "\n")


if __name__ == "__main__":
    main()
