"""A run of every method, small enough to be made once per test session; tests copy it."""

EVERY_METHOD = """\
[run]
title = "together"
baseline = true
checkpoint_every = 2

[training]
data = "generated-text"
vocabulary_size = 120
positions = 6
clients = 40
rounds = 4
cohort = "poisson:1.0"
clip_norm = 0.5
noise_multiplier = 1.0
model_settings = {embedding = 8, units = 12}

[one-shot]
view = ["final-change", "updates"]
canaries = 40

[canife]
every = 2
trials = 12
design.iterations = 3

[secret-sharer]
references = 500
each = 4
twins = 2
design = "fixed"

[ldp]
trials = 300
measurements = 2
epsilon = [1.0]
crafter = ["dummy-gradient"]
view = ["white-box", "black-box"]

[exposure]

[mechanism]
noise_multiplier = 1.0
claim = 2.0
dim = 2000
canaries = 50
calls = 16
"""

ONE_METHOD = """\
[run]
checkpoint_every = 1

[training]
partition = "iid:10"
rounds = 3
noise_multiplier = 0.5
model_settings = {hidden = 4}
client = {epochs = 1, batch_size = "all"}

[one-shot]
view = ["final-change", "updates"]
canaries = 10
"""
