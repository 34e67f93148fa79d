"""A Flower grid in this process: the same apps without Ray, SuperLink or sockets, for tests and small runs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from coalmine.errors import check_count, check_kind


class LocalGrid(Grid):
    """Nodes that run a ClientApp one after another in this process, numbered from 1.

    As in Flower itself, a node keeps its state for the whole run, and a ClientApp that raises replies with an
    error. One that returns None never replies.

    Args:
        client_app: The app.
        nodes: Number of nodes.
        run_config: The run's configuration, which the app finds in its context.
        node_config: Function from a partition (from 0) to the node's configuration. By default ``partition-id`` and
            ``num-partitions``, as in Flower's simulation.

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

    def __init__(
        self,
        client_app: ClientApp,
        *,
        nodes: int,
        run_config: Mapping[str, Any] | None = None,
        node_config: Callable[[int], Mapping[str, Any]] | None = None,
    ) -> None:
        check_kind("client_app", client_app, ClientApp, "a flwr ClientApp")
        count = check_count("nodes", nodes)
        _identify()
        configure = node_config or (lambda partition: {"partition-id": partition, "num-partitions": count})
        self._app, self._sent = client_app, 0
        self._run: Any = SimpleNamespace(run_id=1)
        self._replies: dict[str, Message] = {}
        self.run_config = dict(run_config or {})
        self._contexts = {
            partition + 1: Context(
                run_id=1,
                node_id=partition + 1,
                node_config=dict(configure(partition)),
                state=RecordDict(),
                run_config=self.run_config,
            )
            for partition in range(count)
        }

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
        """Return a message, as older code creates it."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return 1 to the number of nodes."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Have messages answered at once, and keep the replies."""
        ids = []
        for message in messages:
            self._sent += 1
            message_id = f"local-{self._sent}"
            message.metadata.__dict__["_message_id"] = message_id
            reply = self._answer(message)
            if reply is not None:
                self._replies[message_id] = reply
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return replies, each once."""
        return [self._replies.pop(message_id) for message_id in message_ids if message_id in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Ask all nodes in turn; there is nothing to wait for."""
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message | None:
        context = self._contexts[message.metadata.dst_node_id]
        # Messages of a round share their content, and mods write into it.
        separate = Message(metadata=copy.copy(message.metadata), content=copy.deepcopy(message.content))
        try:
            reply = self._app(separate, context)
        except Exception as error:  # whatever user code raises
            reason = f"{type(error).__name__}: {error}"
            return Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason), reply_to=message)
        if reply is None:
            return None
        reply.metadata.__dict__["_message_id"] = f"reply-{self._sent}"
        return copy.deepcopy(reply)


def _identify() -> None:
    """Give this process the identity that messages carry; an engine does so before it starts an app."""
    for name in ("task_id", "run_id", "node_id"):
        try:
            getattr(TaskIdentity, name)
        except RuntimeError:
            setattr(TaskIdentity, name, 1)
