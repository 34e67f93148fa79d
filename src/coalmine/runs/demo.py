"""The demo: two small federated trainings on bundled data, audited by five methods."""

from __future__ import annotations

from coalmine.runs.settings import RunSettings, run_from_text

_FILE = """\
[run]
title = "coalmine demo"

# Handwritten digits of 150 clients, trained by DP-FedAvg with a noise multiplier of 2.
[training]
data = "digits"
rounds = 40
evaluate_every = 5

[one-shot]
view = ["final-change", "updates"]

[canife]
every = 20

# A language model on generated texts, without differential privacy: what does it memorize?
[text-training]
data = "generated-text"
vocabulary_size = 300
positions = 10
model_settings = {embedding = 24, units = 64}
rounds = 20
cohort = "poisson:0.3"

[secret-sharer]
references = 200000

[exposure]

# Clients that randomize their own gradients (local differential privacy).
[ldp]
crafter = ["benign", "gradient-flip", "dummy-gradient"]
epsilon = [1, 2, 4]
trials = 5000
"""


def demo_settings(seed: int) -> RunSettings:
    """Return the settings of the demo, which takes about a minute."""
    seeds = [f"{table}.seed={seed}" for table in ("training", "text-training", "ldp")]
    return run_from_text(_FILE, "the demo", seeds)
