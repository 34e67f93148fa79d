"""LocalDpMod neither clips nor noises scalar parameters: the server receives them unchanged."""

from common import record, reply
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod

mod = LocalDpMod(clipping_norm=1.0, sensitivity=2.0, epsilon=1.0, delta=1e-5)
before = record(weight=[0.0, 0.0], batches=0)
message = Message(RecordDict({"arrays": before, "config": ConfigRecord()}), 1, "train")
sent = record(weight=[0.5, 0.5], batches=137)
out = mod(message, Context(1, 1, {}, RecordDict(), {}), lambda m, c: reply(sent)).content["arrays"]
print("the weights, clipped and noised:", out["weight"].numpy())
print("the number of batches, which was 137:", out["batches"].numpy())
