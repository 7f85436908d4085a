"""The Python SDK: a client on asyncio, and the same for scripts.

It speaks NSQ's protocol, to Penstock or to nsqd, and knows nothing of the broker: it imports
``penstock.protocol``, ``penstock.errors`` and the rules for names and limits, no more. From the
outside in: ``client`` (where a program begins), ``producer`` over ``outbox``, ``consumer`` over
``credit`` and ``message``, ``connection`` over ``compression``, and ``sync`` around it all.
"""

from penstock.sdk.client import Client
from penstock.sdk.consumer import Consumer
from penstock.sdk.errors import (
    AlreadySettled,
    BrokerUnreachable,
    ClientClosed,
    MessageInvalid,
    PublishError,
    PublishLost,
    PublishRefused,
    PublishTimeout,
    Refused,
)
from penstock.sdk.message import Message
from penstock.sdk.options import Address, ClientOptions, ConsumerOptions, ProducerOptions
from penstock.sdk.producer import Producer
from penstock.sdk.statistics import ConsumerStatistics, ProducerStatistics

__all__ = [
    "Client",
    "Producer",
    "Consumer",
    "Message",
    "Address",
    "ClientOptions",
    "ProducerOptions",
    "ConsumerOptions",
    "ProducerStatistics",
    "ConsumerStatistics",
    "PublishError",
    "PublishRefused",
    "PublishLost",
    "PublishTimeout",
    "BrokerUnreachable",
    "Refused",
    "MessageInvalid",
    "AlreadySettled",
    "ClientClosed",
]
