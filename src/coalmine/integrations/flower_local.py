"""A Flower grid in this process: the same apps without Ray, SuperLink or sockets, for tests and small runs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from flwr.app import ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from coalmine.errors import check_count, check_kind


class LocalGrid(Grid):
    """``nodes`` nodes that run ``client_app`` one after another, numbered from 1.

    Each has ``partition-id`` (from 0) and ``num-partitions`` in its node_config, as in Flower's simulation, or what
    ``node_config(partition)`` gives; and a state of its own for the whole run. A ClientApp that raises replies with an
    error, as everywhere in Flower; one that returns None never answers.
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
        given = node_config or (lambda partition: {"partition-id": partition, "num-partitions": count})
        self._app, self._sent = client_app, 0
        self._run: Any = SimpleNamespace(run_id=1)
        self._replies: dict[str, Message] = {}
        self.run_config = dict(run_config or {})
        self._contexts = {
            partition + 1: Context(
                run_id=1,
                node_id=partition + 1,
                node_config=dict(given(partition)),
                state=RecordDict(),
                run_config=self.run_config,
            )
            for partition in range(count)
        }

    def set_run(self, run: Any) -> None:
        """Keep it."""
        self._run = run

    @property
    def run(self) -> Any:
        """What was set."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """A message, the old way."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """1 to ``nodes``."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Have them answered, and keep the answers."""
        found = []
        for message in messages:
            self._sent += 1
            identity = f"local-{self._sent}"
            message.metadata.__dict__["_message_id"] = identity
            reply = self._answer(message)
            if reply is not None:
                self._replies[identity] = reply
            found.append(identity)
        return found

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Hand the answers out, once."""
        return [self._replies.pop(identity) for identity in message_ids if identity in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Ask all nodes in turn; nobody is waited for."""
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message | None:
        context = self._contexts[message.metadata.dst_node_id]
        # Messages of a round share one content, and mods write into it.
        own = Message(metadata=copy.copy(message.metadata), content=copied(message.content))
        try:
            reply = self._app(own, context)
        except Exception as error:  # whatever user code raises
            reason = f"{type(error).__name__}: {error}"
            return Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason), reply_to=message)
        if reply is not None:
            reply.metadata.__dict__["_message_id"] = f"reply-{self._sent}"
        return reply


def copied(content: RecordDict) -> RecordDict:
    """A content of one's own to write into; the bytes of arrays, which nobody can change, are shared."""
    found = RecordDict()
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            found[name] = ArrayRecord()
            for key, array in record.items():
                found[name][key] = copy.copy(array)
        else:
            found[name] = copy.deepcopy(record)
    return found


def _identify() -> None:
    """Say who this process is, which messages carry: an engine says so before it starts an app."""
    for name in ("task_id", "run_id", "node_id"):
        try:
            getattr(TaskIdentity, name)
        except RuntimeError:
            setattr(TaskIdentity, name, 1)
