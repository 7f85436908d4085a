"""`penstock tail`: print a topic's messages as they come.

A message is finished after it has been written out, so a reader that goes away in the middle loses
nothing: what it did not get is delivered again. Without `--channel` it has a channel of its own,
which goes when it ends.
"""

import argparse
import json
import os
import sys

from penstock.cli import ExitCode
from penstock.cli.connecting import add_connecting_arguments, client_of, name
from penstock.cli.wording import body_fields
from penstock.errors import ConfigError
from penstock.sdk.sync import SyncMessage

EXAMPLES = """\
examples:
  penstock tail access                          all that is published from here on, until Ctrl-C
  penstock tail access -n 10 --json             ten messages with their ids, one JSON object a line
  penstock tail access --channel audit          as a consumer of the channel `audit`

With --channel, the messages that it prints are finished there: other consumers do not get them.
"""

FETCH_MESSAGES = 500
IN_FLIGHT = 500


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Print a topic's messages as they come, one a line."
    parser.epilog = EXAMPLES
    parser.add_argument("topic", type=name, metavar="TOPIC")
    parser.add_argument(
        "--channel",
        type=name,
        metavar="NAME",
        help="consume this channel (default: one of its own)",
    )
    parser.add_argument("-n", "--count", type=int, metavar="N", help="end after so many messages")
    parser.add_argument(
        "--json", action="store_true", help="one JSON object a line: id, timestamp, attempts, body"
    )
    add_connecting_arguments(parser)


def run(args: argparse.Namespace) -> int:
    if args.count is not None and args.count < 1:
        raise ConfigError("-n must be 1 or more.")
    left = args.count
    out = sys.stdout.buffer
    # no more in flight than will be printed: the others stay for other consumers
    in_flight = min(left or IN_FLIGHT, IN_FLIGHT)
    with (
        client_of(args) as client,
        client.consumer(args.topic, args.channel or own_channel(), max_in_flight=in_flight) as own,
    ):
        while left is None or left > 0:
            messages = own.fetch(min(left or FETCH_MESSAGES, FETCH_MESSAGES))
            out.writelines(
                as_json(message) if args.json else as_line(message) for message in messages
            )
            out.flush()
            for message in messages:
                message.finish()
            if left is not None:
                left -= len(messages)
    return ExitCode.OK


def own_channel() -> str:
    """A channel of this process alone, which the broker drops with its connection."""
    return f"tail{os.getpid()}-{os.urandom(4).hex()}#ephemeral"


def as_line(message: SyncMessage) -> bytes:
    """The body as it is, and a line end."""
    return message.body + b"\n"


def as_json(message: SyncMessage) -> bytes:
    """One JSON object; a body that is not UTF-8 is `body_base64` instead of `body`."""
    shown: dict[str, object] = {
        "id": message.id,
        "timestamp_ns": message.timestamp_ns,
        "attempts": message.attempts,
        **body_fields(message.body),
    }
    return json.dumps(shown, ensure_ascii=False).encode() + b"\n"
