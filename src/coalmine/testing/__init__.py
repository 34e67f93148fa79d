"""Privacy as a unit test: assert that a mechanism keeps its claimed guarantee.

Each function tests a claim and raises an AssertionError if it is refuted. A correct mechanism fails with at most the
probability ``false_alarm_rate``, one in a thousand by default, if its scores are independent (docs/ci.md says what
dependence at a large δ costs). A passing test is not a proof of privacy. A test
that could never fail, for lack of scores, is refused.
"""

from coalmine.testing.local import assert_locally_private
from coalmine.testing.mechanism import assert_private
from coalmine.testing.scores import assert_private_scores
from coalmine.testing.sensitivity import assert_sensitivity

__all__ = ["assert_locally_private", "assert_private", "assert_private_scores", "assert_sensitivity"]
