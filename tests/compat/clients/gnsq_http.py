"""gnsq's client for nsqd's HTTP API: each call once, what came of it as a JSON line; on its own."""

from __future__ import annotations

import json
import sys
from typing import Any

import gnsq

client = gnsq.NsqdHTTPClient("127.0.0.1", int(sys.argv[1]))
topic, channel = "t", "c"
calls: list[tuple[Any, ...]] = [
    ("ping",),
    ("info",),
    ("publish", topic, b"one"),
    ("publish", topic, b"later", 50),
    ("multipublish", topic, [b"two", b"three"]),
    ("multipublish", topic, [b"fo\nur"], True),
    ("create_channel", topic, channel),
    ("stats", topic),
    ("pause_channel", topic, channel),
    ("unpause_channel", topic, channel),
    ("empty_channel", topic, channel),
    ("delete_channel", topic, channel),
    ("pause_topic", topic),
    ("unpause_topic", topic),
    ("empty_topic", topic),
    ("delete_topic", topic),
    ("create_topic", topic),
    ("delete_topic", "not_there"),
]
for name, *arguments in calls:
    try:
        result = getattr(client, name)(*arguments)
    except gnsq.errors.NSQHttpError as error:
        result = str(error)
    print(json.dumps([name, result.decode() if isinstance(result, bytes) else result]))
