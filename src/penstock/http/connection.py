"""One HTTP client: bytes through the parser, one request after the other, answers in their order.

As in nsqd, a request is begun when the one before it is answered; what a client sends ahead waits
here, and reading pauses. So what one client may keep in memory is bounded: a body that its route
takes, one read of requests behind it, and answers up to the high water.

A request that is refused before its body has come is answered at once if the body is long (and the
connection ended, as Go does it), else behind the body, and the connection goes on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, cast

import httptools

from penstock.http.answers import CONTINUE, Refused, encode_answer, encode_fault
from penstock.http.request import Request
from penstock.http.routes import BODY_IGNORED_BYTES_MAX
from penstock.runtime.listening import keep_alive, peer_of

if TYPE_CHECKING:
    from penstock.http.server import HttpServer

log = logging.getLogger("penstock.http")

WRITE_HIGH_WATER = 512 * 1024
TURN_NS = 2_000_000  # of the loop, for one client's requests
HEAD_BYTES_MAX = 64 * 1024
TICKS_MAX = 12  # of the door's clock, without a step forward
LINGER_TICKS_MAX = 1  # to take an answer that ended the connection


_VERSIONS = ("1.0", "1.1")
# what says where a body ends, and whether the connection does
_FRAMING = {b"host", b"content-length", b"transfer-encoding", b"expect"}


class Connection(asyncio.Protocol):
    """A client and its requests."""

    def __init__(self, door: HttpServer, *, secure: bool) -> None:
        self.door = door
        self.secure = secure
        self.transport: asyncio.Transport | None = None
        self.peer = ""
        self.parser = httptools.HttpRequestParser(self)
        # of the request that is coming in
        self.coming: Request | None = None
        self.in_head = False
        self.url: list[bytes] = []
        self.has_host = False
        self.length = 0
        self.expects = False
        self.first = b""  # of its body; most come in one piece
        self.more = bytearray()
        self.body_bytes = 0
        self.head_bytes = 0
        self.silent_bytes = 0  # read since the last step forward
        self.fault = b""
        self.framing: list[tuple[bytes, bytes]] = []
        self.upgrade_passed_over = False
        # whole ones
        self.waiting: deque[Request] = deque()
        self.current: Request | None = None
        self.busy = False
        self.to_continue = False  # the peer waits for our word before it sends a body
        self.blocked = False  # the peer does not read
        self.reading = True
        self.over = False  # nothing that comes in counts any more
        self.lingering = False
        self.ticks = 0
        self.steps = 0

    # -- the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not asyncio's by class
        self.transport = transport = cast("asyncio.Transport", transport)
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        keep_alive(transport)
        self.peer = peer_of(transport)
        self.door.connections[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.over = True
        self._forget_body()
        self.waiting.clear()
        self.current = None
        del self.parser  # it holds our methods: nobody else would free the two
        self.door.connections.pop(self, None)

    def eof_received(self) -> bool:
        """The peer sends no more; it still gets its answers, where TLS allows that."""
        self._no_more()
        return bool(self.current or self.waiting) and not (self.secure or self.lingering)

    def pause_writing(self) -> None:
        self.blocked = True
        self._pause_reading()

    def resume_writing(self) -> None:
        self.blocked = False
        self._next()

    def data_received(self, data: bytes) -> None:
        if self.over:
            return
        self.steps += 1
        self.silent_bytes += len(data)
        self._parse(data)
        if self.silent_bytes > HEAD_BYTES_MAX:
            self.fault = self.fault or encode_fault(431)
        if self.fault:
            self._take_no_more()  # it is said behind the answers
        self._next()

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            raise  # ours
        except httptools.HttpParserUpgrade as upgrade:
            if self.upgrade_passed_over:
                self.upgrade_passed_over = False
                anew = self._head_without_upgrade() + data[upgrade.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self._parse(anew)
            else:
                self._no_more()  # CONNECT, which is answered like any other method
        except httptools.HttpParserError as error:
            log.debug("%s: no HTTP: %s", self.peer, error)
            self.fault = self.fault or encode_fault(400)

    def _head_without_upgrade(self) -> bytes:
        """What a body's end hangs on. The parser takes all behind an upgrade for another protocol;
        as in Go, it is answered as if it had not been asked for."""
        line = (
            self.parser.get_method(),
            b"".join(self.url),
            self.parser.get_http_version().encode(),
        )
        framing = [b"%b: %b\r\n" % header for header in self.framing]
        return b"%b %b HTTP/%b\r\n" % line + b"".join(framing) + b"\r\n"

    # -- the parser's calls

    def on_message_begin(self) -> None:
        self.silent_bytes = 0
        self.in_head = True
        self.url = []
        self.has_host = self.expects = False
        self.length = self.head_bytes = 0
        self.framing = []

    def on_url(self, url: bytes) -> None:
        self.url.append(url)
        self.head_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.head_bytes += len(name) + len(value) + len(b": \r\n")
        if self.head_bytes > HEAD_BYTES_MAX:
            self.fault = self.fault or encode_fault(431)
        elif self.in_head:
            name = name.lower()
            if name in _FRAMING or (name == b"connection" and b"close" in value.lower()):
                self.framing.append((name, value if name in _FRAMING else b"close"))
            if name == b"host":
                self.has_host = True
            elif name == b"content-length":
                self.length = int(value)
            elif name == b"expect":
                self.expects = value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        self.in_head = False
        self.silent_bytes = 0
        if self.fault or self.over:
            return
        method = self.parser.get_method()
        if self.parser.should_upgrade() and method != b"CONNECT":
            self.upgrade_passed_over = True
            return
        url = b"".join(self.url)
        if url.startswith(b"http"):
            # the form that is meant for proxies
            url = b"/" + url.partition(b"://")[2].partition(b"/")[2]
        path, _, query = url.partition(b"?")
        coming = self.door.request(self, method, path, query)
        version = self.parser.get_http_version()
        if version not in _VERSIONS:
            self.fault = encode_fault(400, f"HTTP/{version} is not spoken here")
            return
        coming.old = version == "1.0"
        if not coming.old and not self.has_host:
            self.fault = encode_fault(400, "missing required Host header")
            return
        self.coming = coming
        coming.route = self.door.find(coming.method, path, secure=self.secure)
        self._refuse_long(self.length)
        if isinstance(coming.route, Refused):
            if self.expects or self.length > BODY_IGNORED_BYTES_MAX:
                self._answer_early()
        elif self.expects:
            self.to_continue = True

    def _refuse_long(self, size: int) -> None:
        coming = self.coming
        if coming is None or isinstance(coming.route, Refused):
            return
        if size > coming.route.body_bytes_max:
            coming.route = Refused(413, coming.route.too_big)

    def on_body(self, body: bytes) -> None:
        self.silent_bytes = 0
        coming = self.coming
        if coming is None or self.over:
            return
        size = len(body)
        self.body_bytes += size
        self._refuse_long(self.body_bytes)
        if not isinstance(coming.route, Refused):
            if self.door.take_room(size):
                if self.first:
                    self.more += body
                else:
                    self.first = body
                return
            self.body_bytes -= size  # it got no room
            coming.route = Refused(503, "TOO_MANY_BODIES")
        self._give_room_back()
        if self.body_bytes > BODY_IGNORED_BYTES_MAX:
            self._answer_early()

    def on_message_complete(self) -> None:
        self.silent_bytes = 0
        coming, self.coming = self.coming, None
        self.to_continue = False
        if coming is None or self.over:
            return
        coming.body = self.first + self.more if self.more else self.first
        self._forget_body()
        coming.keep = self.parser.should_keep_alive()
        self.waiting.append(coming)
        if not coming.keep:
            self.over = True

    def _answer_early(self) -> None:
        """The rest of the body is not worth reading: the connection ends behind the answer."""
        coming, self.coming = self.coming, None
        assert coming is not None
        coming.keep = False
        self.lingering = True
        self.waiting.append(coming)
        self._no_more()

    # -- requests

    def _take_no_more(self) -> None:
        self.over = True
        self.in_head = False
        self.coming = None
        self._forget_body()

    def _no_more(self) -> None:
        """The last of what came whole is the last that is answered."""
        self._take_no_more()
        last = self.waiting[-1] if self.waiting else self.current
        if last is not None:
            last.keep = False

    def _forget_body(self) -> None:
        self._give_room_back()
        self.body_bytes = 0

    def _give_room_back(self) -> None:
        if self.first:
            self.door.give_room_back(len(self.first) + len(self.more))
            self.first = b""
            if self.more:
                self.more = bytearray()

    def _next(self) -> None:
        """Carry out what can be, one at a time, and read on if nothing waits. One client's
        thousand requests don't keep the others waiting."""
        if self.busy:
            return
        self.busy = True
        until_ns = time.perf_counter_ns() + TURN_NS
        more = True
        while more and self.waiting and self.current is None and not self.blocked:
            self.current = request = self.waiting.popleft()
            self.steps += 1
            request.carry_out()
            more = time.perf_counter_ns() < until_ns
        self.busy = False
        if self.transport is None:
            return
        if self.waiting:
            self._pause_reading()
            if not more and self.current is None:
                self.door.call_soon(self._next)
        elif self.current is None:
            self._read_on(self.transport)

    def _read_on(self, transport: asyncio.Transport) -> None:
        if self.fault:
            transport.write(self.fault)
            self.fault = b""
            self._linger(transport)
        elif self.to_continue:
            self.to_continue = False
            transport.write(CONTINUE)
        if not self.reading and not self.blocked and not transport.is_closing():
            self.reading = True
            transport.resume_reading()

    def _pause_reading(self) -> None:
        if self.reading and self.transport is not None and not self.over:
            self.reading = False
            self.transport.pause_reading()

    def answer(
        self, request: Request, status: int, body: bytes, content_type: str, headers: str
    ) -> None:
        transport = self.transport
        if transport is None or request is not self.current:
            return
        self.current = None
        keep = request.keep and not self.door.stopping
        transport.write(
            encode_answer(
                status,
                body,
                content_type,
                headers,
                self.door.date(),
                old=request.old,
                keep=keep,
                with_body=request.method != b"HEAD",
            )
        )
        if not keep:
            self.over = True
            self.waiting.clear()
            self.fault = b""
            if self.lingering:
                self._linger(transport)
            else:
                transport.close()
        elif self.waiting and not self.busy:
            # not from here: whoever ends a turn goes on with its lane, which the next may delete
            self.door.call_soon(self._next)
        else:
            self._next()

    # -- ending

    def _linger(self, transport: asyncio.Transport) -> None:
        """A close while the peer still sends would take the answer away from it: it gets the end
        of our stream, and the door ends the connection a little later."""
        self.lingering = True
        self.over = True
        self.ticks = 0
        if not transport.can_write_eof():
            transport.close()
            return
        transport.write_eof()
        if not self.reading:
            self.reading = True
            transport.resume_reading()

    def close_in_order(self) -> None:
        """The broker stops: what was begun is answered, nothing else is read."""
        if self.current is None and not self.waiting and self.transport is not None:
            self.over = True
            self.transport.close()

    def tick(self) -> None:
        """Now and then: who neither sends nor takes what is under way is cut off."""
        ours = self.current is not None or bool(self.waiting)  # to answer
        theirs = self.coming is not None or self.in_head or self.lingering
        stepped = self.steps > 0 and not self.in_head and not self.lingering
        self.steps = 0
        if not (self.blocked or (theirs and not ours)) or stepped:
            self.ticks = 0
            return
        self.ticks += 1
        if self.ticks > (LINGER_TICKS_MAX if self.lingering else TICKS_MAX):
            log.info("%s: nothing came or went for too long, dropped", self.peer)
            self._abort()

    def _abort(self) -> None:
        self._take_no_more()
        if self.transport is not None:
            self.transport.abort()
