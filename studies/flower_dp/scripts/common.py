"""Shared by the scripts: replies as clients send them, without a network. Uses only Flower and NumPy."""

import logging

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # an engine would set it
logging.getLogger("flwr").setLevel(logging.CRITICAL)
CLIP, NOISE = 1.0, 1.0


def record(**arrays):
    """Return a model."""
    return ArrayRecord({key: Array(np.asarray(value)) for key, value in arrays.items()})


def reply(arrays, weight=1, **metrics):
    """Return what a client sends."""
    asked = Message(RecordDict({"config": ConfigRecord()}), 1, "train")
    content = {"arrays": arrays, "metrics": MetricRecord({"num-examples": weight, **metrics})}
    return Message(RecordDict(content), reply_to=asked)


def released(model, replies, inner=None, sampled=None):
    """Return the model after a round of Flower's central DP with server-side fixed clipping."""
    strategy = DifferentialPrivacyServerSideFixedClipping(
        inner or FedAvg(fraction_evaluate=0.0), NOISE, CLIP, sampled or len(replies)
    )
    strategy.current_arrays = model
    if hasattr(strategy.strategy, "current_arrays"):
        strategy.strategy.current_arrays = (
            {k: a.numpy() for k, a in model.items()} if hasattr(strategy.strategy, "m_t") else model
        )
    np.random.seed(0)  # the same noise with and without the client, so that the difference is the client
    arrays, _ = strategy.aggregate_train(1, replies)
    return arrays


def report(what, moved, clients):
    """Print how far one client moves the release, in standard deviations of its noise."""
    deviations, claimed = abs(moved) / (NOISE * CLIP / clients), 1 / NOISE
    print(f"{what}: one client moves the release by {deviations:.1f} standard deviations of its noise", end="; ")
    print(f"claimed {claimed:.1f}")
