"""Nodes of a Flower training: `LocalGrid` runs them in this process, `canary_mod` lets real nodes send canaries."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from coalmine.errors import check_count, check_kind
from coalmine.integrations.flower.arrays import Layout
from coalmine.methods.one_shot.canaries import update_canaries
from coalmine.methods.one_shot.families import UpdateCanaries

_REQUEST = "coalmine.canary"  # our key in the configuration that a message carries

# A host sends several canaries of the same audit in every round.
_cached_canaries = functools.lru_cache(maxsize=4)(update_canaries)


class LocalGrid(Grid):
    """Nodes that run a ClientApp one after another in this process, numbered from 1.

    As in Flower itself, a node keeps its state for the whole run, and a ClientApp that raises replies with an
    error. One that returns None never replies.

    Args:
        client_app: The app.
        nodes: Number of nodes.
        run_config: The run's configuration, which the app finds in its context.

    Example:
        >>> app = ClientApp()
        >>> @app.train()
        ... def train(message, context):
        ...     return Message(message.content, reply_to=message)
        >>> grid = LocalGrid(app, nodes=2)
        >>> replies = grid.send_and_receive([Message(RecordDict(), node, "train") for node in grid.get_node_ids()])
        >>> [reply.metadata.src_node_id for reply in replies]
        [1, 2]
    """

    def __init__(self, client_app: ClientApp, *, nodes: int, run_config: Mapping[str, Any] | None = None) -> None:
        check_kind("client_app", client_app, ClientApp, "a flwr ClientApp")
        # Messages carry the identity of their process, which an engine sets before it starts an app.
        for name in ("task_id", "run_id", "node_id"):
            try:
                getattr(TaskIdentity, name)
            except RuntimeError:
                setattr(TaskIdentity, name, 1)
        self._app, self._nodes = client_app, range(1, check_count("nodes", nodes) + 1)
        self._run_config = dict(run_config or {})
        self._run: Any = SimpleNamespace(run_id=1)
        self._sent, self._replies = 0, dict[str, Message]()
        self._contexts: dict[int, Context] = {}

    def set_run(self, run: Any) -> None:
        """Set the run."""
        self._run = run

    @property
    def run(self) -> Any:
        """The run."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Return a message, for code that uses the old API."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return 1 to the number of nodes."""
        return list(self._nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Run each message at once, and keep the replies."""
        ids = []
        for message in messages:
            self._sent += 1
            message_id = f"local-{self._sent}"
            message.metadata.__dict__["_message_id"] = message_id
            ids.append(message_id)
            node = message.metadata.dst_node_id
            if node not in self._contexts:  # the same names as in Flower's simulation
                config = {"partition-id": self._nodes.index(node), "num-partitions": len(self._nodes)}
                self._contexts[node] = Context(1, node, config, RecordDict(), self._run_config)
            # Messages of a round share their content, and mods write into it.
            separate = Message(metadata=copy.copy(message.metadata), content=copied(message.content))
            try:
                reply = copy.deepcopy(self._app(separate, self._contexts[node]))
            except Exception as error:  # whatever user code raises
                reason = f"{type(error).__name__}: {error}"
                reply = Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason), reply_to=message)
            if reply is not None:
                reply.metadata.__dict__["_message_id"] = f"reply-{self._sent}"
                self._replies[message_id] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return replies; each can be pulled once."""
        return [self._replies.pop(message_id) for message_id in message_ids if message_id in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Ask all nodes in turn; there is nothing to wait for."""
        return self.pull_messages(self.push_messages(messages))


def through_mods(mods: Sequence[Any], content: RecordDict, message: Message, context: Context) -> Message:
    """Return a client's reply after the mods of its app; as in Flower, the first mod is the outermost."""

    def call(asked: Message, _: Context) -> Message:
        return Message(content, reply_to=asked)

    for mod in reversed(mods):
        call = functools.partial(lambda mod, inner, asked, node: mod(asked, node, inner), mod, call)
    # Messages of a round share their content, and mods write into it.
    return call(Message(metadata=message.metadata, content=copied(message.content)), context)


def canary_mod(message: Message, context: Context, call_next: Any) -> Message:
    """Reply with a canary if the message asks for one, and with what the client trained otherwise.

    The client trains in both cases, so that its reply has the usual names and metrics. List this mod last, nearest to
    the app, so that mods that clip or add noise treat the canary like an update.

    Example:
        >>> app = ClientApp(mods=[canary_mod])
    """
    requests = [record[_REQUEST] for record in message.content.config_records.values() if _REQUEST in record]
    if not requests:
        return call_next(message, context)
    asked = json.loads(requests[0])
    received = next(iter(message.content.array_records.values()))
    # A copy: messages of Flower's legacy workflows have no shapes, and their clients empty what they read.
    before = ArrayRecord({key: Array(array.numpy()) for key, array in received.items()})
    layout = Layout({key: tuple(before[key].shape) for key in asked["parameters"]})
    sent = layout.nudged(before, asked["norm"])
    if asked["canary"] >= 0:  # not held out
        canaries = _cached_canaries(asked["family"], dim=asked["dim"], count=asked["count"], seed=asked["seed"])
        sent = layout.moved(before, canaries.canary(asked["canary"]) * np.float32(asked["norm"]))
    reply = call_next(message, context)
    if reply.has_content():
        reply.content[next(iter(reply.content.array_records))] = sent
    return reply


def canary_request(
    canaries: UpdateCanaries, family: str, layout: Layout, *, canary: int, norm: float
) -> dict[str, str]:
    """Return the entry of a message's configuration that asks a node for a canary.

    The message carries the parameters that a canary is made from, never its vector.

    Args:
        canaries: The canaries.
        family: Their family.
        layout: The layout of the model.
        canary: Number of the canary, or -1 for a held-out one, which only takes a small step.
        norm: Norm of the canary, or of the step.
    """
    made_from = {"family": family, "dim": canaries.dim, "count": canaries.count, "seed": canaries.seed}
    return {_REQUEST: json.dumps({**made_from, "canary": canary, "norm": norm, "parameters": list(layout.shapes)})}


def copied(content: RecordDict) -> RecordDict:
    """Return a copy of a message's content to write into."""
    # Flower keeps views of the bytes of an array that it has sent, and deepcopy cannot copy a view: they are shared.
    shared: dict[int, Any] = {}
    for record in content.array_records.values():
        for array in record.values():
            views = vars(array).get("_chunks")
            shared[id(views)] = views
    return copy.deepcopy(content, shared)
