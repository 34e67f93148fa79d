"""A Flower grid in this process: the same apps without Ray, SuperLink or sockets, for tests and small runs."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode, SType
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
            if reply.has_content():
                for name, record in reply.content.array_records.items():
                    reply.content[name] = _owned(record)
        return reply


def copied(content: RecordDict) -> RecordDict:
    """A content of one's own to write into; the bytes of arrays, which nobody can change, are shared."""
    found = RecordDict()
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            found[name] = _owned(record)
        else:
            found[name] = record.copy()  # of values that nobody can change, and lists of them
            for key, value in record.items():
                if isinstance(value, list):
                    found[name][key] = list(value)
    return found


class QuickArray(Array):
    """Flower's array, which reads its bytes without parsing what numpy wrote before them each time anew.

    In a grid of one process that is a seventh of a round: each client reads the same model, and a strategy that clips
    reads all replies twice. What is read is the same, and whatever is unusual is left to Flower.
    """

    __qualname__ = Array.__qualname__  # by which Flower names what it stores

    def numpy(self) -> npt.NDArray[Any]:
        """A new array, as ever."""
        data = self.data
        start = 10 + int.from_bytes(data[8:10], "little")
        layout = _layout(data[:start]) if self.stype == SType.NUMPY else None
        if layout is None:
            return super().numpy()
        dtype, shape, count = layout
        return np.frombuffer(data, dtype, count, start).reshape(shape).copy()

    def __eq__(self, other: object) -> bool:
        """Equal to any array of the same content, as arrays of Flower are to one another."""
        if not isinstance(other, Array):
            return NotImplemented
        mine, theirs = ((a.dtype, a.shape, a.stype, a.data) for a in (self, other))
        return mine == theirs

    __hash__ = None  # type: ignore[assignment]


@lru_cache(maxsize=4096)
def _layout(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...], int] | None:
    """Type, shape and number of an array's values by the header of version 1.0 that numpy writes; None for others."""
    file = io.BytesIO(header)
    try:
        if np.lib.format.read_magic(file) != (1, 0):
            return None
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    except ValueError:
        return None
    count = math.prod(shape)
    return None if fortran or dtype.hasobject or count == 0 else (dtype, shape, count)


def _owned(record: ArrayRecord) -> ArrayRecord:
    """A record of one's own with the same arrays, each an object of its own."""
    found = record.copy()
    arrays = vars(found)["_data"]  # what was in a record may be in one: Flower need not check it again
    for key, array in record.items():
        if type(array) in (Array, QuickArray):
            own = object.__new__(QuickArray)
            own.__dict__.update(array.__dict__)
            arrays[key] = own
        else:
            arrays[key] = copy.copy(array)
    return found


def _identify() -> None:
    """Say who this process is, which messages carry: an engine says so before it starts an app."""
    for name in ("task_id", "run_id", "node_id"):
        try:
            getattr(TaskIdentity, name)
        except RuntimeError:
            setattr(TaskIdentity, name, 1)
