"""The ClientApp of a site, and how our signed messages lie in Flower's.

Flower brings messages from machine to machine and is trusted with nothing else: messages are signed, deadlines and
quorum are ours, and no code travels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kohort.errors import IntegrityError
from kohort.transport.flower.environment import require_flower

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict
    from flwr.clientapp import ClientApp

__all__ = ["client_app", "message_bytes", "message_content"]

_RECORD, _FIELD = "kohort", "letter"


def client_app(answer: Callable[[bytes], bytes]) -> ClientApp:
    """A ClientApp that hands messages to a site and its replies back.

    Args:
        answer: What makes a site's reply out of a message, such as `SiteServer.reply`.

    Returns:
        The app; the same over Flower and in a loop-back.
    """
    require_flower()
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.query()
    def reply(message: Message, context: Context) -> Message:
        del context
        try:
            data = message_bytes(message)
        except IntegrityError:
            data = b""  # no bytes at all: the site says so, signed, and writes it down
        return Message(message_content(answer(data)), reply_to=message)

    return app


def message_content(data: bytes) -> RecordDict:
    """The content of a Flower message that carries bytes; `message_bytes` reads them.

    Args:
        data: A signed message of kohort's.

    Returns:
        One record with the bytes, and nothing else.
    """
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({_RECORD: ConfigRecord({_FIELD: data})})


def message_bytes(message: Message) -> bytes:
    """The inverse of `message_content`.

    Args:
        message: What came in.

    Returns:
        The bytes it carries.

    Raises:
        IntegrityError: It carries none, or something else.
    """
    try:
        data = message.content[_RECORD][_FIELD]
    except (KeyError, ValueError, TypeError) as error:
        raise IntegrityError("a Flower message carries no message of kohort") from error
    if not isinstance(data, bytes):
        raise IntegrityError("a Flower message does not carry bytes")
    return data
