"""Audits in experiment trackers: MLflow, TensorBoard and Weights & Biases.

A `Tracker` takes numbers along the training and the results with their report at the end. docs/tracking.md has
examples.
"""

from coalmine.integrations.tracking.backends import BACKENDS, MLflow, TensorBoard, WeightsAndBiases, tracker
from coalmine.integrations.tracking.tracker import Tracker, log_run

__all__ = ["BACKENDS", "MLflow", "TensorBoard", "Tracker", "WeightsAndBiases", "log_run", "tracker"]
