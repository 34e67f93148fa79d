"""The same audits on trainings that are not ours."""
