"""Settings that all tests share."""

from hypothesis import settings

# Machines are noisy: nothing is asserted about time. The same examples every time: a red test is red everywhere.
settings.register_profile("coalmine", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("coalmine")
