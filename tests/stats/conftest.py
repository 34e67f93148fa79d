"""Coverage simulations: one cheap case of each runs by day, the whole grid with ``make test-all``."""

import pytest

# The case that runs by day, as the start of its id; the others are slow.
BY_DAY = {
    "test_the_bound_exceeds_the_truth_in_at_most_5_percent_of_audits": "50-50-2",
    "test_split_exceeds_the_truth_in_at_most_5_percent_of_audits": "100-False-1.0-0.05",
    "test_a_true_gaussian_claim_has_small_p_values_as_rarely_as_they_say": "1.7",
    "test_a_true_claim_is_refuted_ever_in_at_most_5_percent": "leaky",
    "test_the_bound_exceeds_the_true_epsilon_ever_in_at_most_5_percent": "0.62",
    "test_the_interval_holds_the_truth_as_often_as_it_says": "False-20",
    "test_power_with_a_known_null_is_how_often_the_p_value_is_small": "25-5.5",
    "test_fit_is_the_maximum_of_the_likelihood": "-300000.0-0.01-5",
    "test_the_walk_beats_a_union_bound_over_its_counts_by_a_tenth_at_100_scores_per_side": "1.0-fixed",
    "test_theorem_1_is_exact_for_the_least_favorable_scores": "3-10-1-12",
    "test_theorem_2_holds_for_the_least_favorable_scores": "20-",
    "test_the_bound_for_one_copy_exceeds_the_truth_in_at_most_5_percent_of_audits": "2-",
    "test_one_run_exceeds_the_truth_in_at_most_5_percent_of_audits": "1.0-0.001",
    "test_power_is_the_share_of_audits_that_refute": "1.67-0.4",
}


def pytest_collection_modifyitems(items):
    """Mark all but the case by day of each simulation as slow."""
    for item in items:
        by_day = BY_DAY.get(getattr(item, "originalname", None))
        if by_day is not None and not item.callspec.id.startswith(by_day):
            item.add_marker(pytest.mark.slow)
