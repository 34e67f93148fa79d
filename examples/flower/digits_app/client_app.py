"""The ClientApp, which knows nothing about the audit."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_app.task import build, fit, partition

app = ClientApp()
model = build()  # reused for all messages, which bring its parameters


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on the client's examples. All clients have the same weight, so num-examples is 1."""
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    number, count = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    loss = fit(model, *partition(number, count))
    metrics = MetricRecord({"num-examples": 1, "loss": loss})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
