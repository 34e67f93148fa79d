"""The ClientApp: nothing here knows of the audit."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_app.task import build, fit, partition

app = ClientApp()
model = build()  # one for all messages: its parameters come with each


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on one's own examples. All clients count alike: their numbers of examples stay with them."""
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    number, count = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    loss = fit(model, *partition(number, count))
    metrics = MetricRecord({"num-examples": 1, "loss": loss})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
