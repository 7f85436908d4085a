"""One connection to one broker: opened, introduced, upgraded, kept alive, and cut into frames.

Between the socket and a producer or consumer (its *owner*). It speaks the handshake (IDENTIFY, TLS,
compression, AUTH, and the owner's own first commands), answers heartbeats, notices when the broker
has gone silent, and hands over what each socket read brought in one piece. It does not reconnect,
and it knows nothing of batches, credit or settling.

During the handshake the stream may change its form behind any answer, so frames are cut one at a
time; after it everything goes through one flat scan.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable, Sequence
from socket import gethostname
from typing import Generic, Protocol, TypeVar, cast

from penstock import __version__
from penstock.errors import PeerError
from penstock.protocol import nsq_client as wire
from penstock.sdk.compression import Codec, new_codec
from penstock.sdk.errors import BrokerUnreachable, Refused
from penstock.sdk.options import Address, ClientOptions

log = logging.getLogger("penstock.sdk")

# Above it the owner is told to hold back; nsqd's clients use 16 KiB buffers, but a batch is larger.
WRITE_HIGH_WATER_BYTES = 1024 * 1024
# How long a closing connection may take to hand its last bytes over.
CLOSE_TIMEOUT = 2.0

# A connection that lasted so long was a success; the next loss begins with the shortest wait again.
STABLE_AFTER = 5.0

# NSQ's codes that no second attempt with the same words can cure.
PERMANENT_CODES = frozenset(
    {"E_BAD_TOPIC", "E_BAD_CHANNEL", "E_BAD_MESSAGE", "E_BAD_BODY", "E_INVALID", "E_UNAUTHORIZED"}
    | {"E_AUTH_DISABLED", "E_BAD_PROTOCOL"}
)

M = TypeVar("M")
MessageFactory = Callable[[int, int, bytes, bytes], M]


class Owner(Protocol[M]):
    """Who uses a connection. All calls come from the event loop; none may block or raise."""

    def on_messages(self, messages: list[M]) -> None:
        """Messages that one socket read brought."""
        ...

    def on_answer(self, data: bytes) -> None:
        """The broker answered a command (heartbeats are not shown)."""
        ...

    def on_error(self, code: str, explanation: str) -> None:
        """The broker answered with an error; if it is a fatal one, ``on_lost`` follows."""
        ...

    def on_writable(self, writable: bool) -> None:
        """Whether the socket takes more."""
        ...

    def on_lost(self, reason: str) -> None:
        """The connection has ended; nothing comes any more."""
        ...


async def connect(
    address: Address,
    options: ClientOptions,
    owner: Owner[M],
    new_message: MessageFactory[M],
    *,
    identity: dict[str, wire.Scalar] | None = None,
    greeting: Sequence[bytes] = (),
) -> Connection[M]:
    """An open connection: introduced, upgraded, authorized, each command of ``greeting`` answered
    OK.

    ``identity`` goes into IDENTIFY beside what the client options ask for.
    """
    connection = Connection(address, options, owner, new_message)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(options.connect_timeout):
            if address.is_path:
                await loop.create_unix_connection(lambda: connection, address.host)
            else:
                await loop.create_connection(lambda: connection, address.host, address.port)
            await connection.greet(identity or {}, greeting)
    except TimeoutError as error:
        connection.abort("no answer in time")
        raise BrokerUnreachable(
            f"no answer from {address} within {options.connect_timeout:g} s"
        ) from error
    except ssl.SSLError as error:
        connection.abort("TLS failed")
        raise BrokerUnreachable(
            f"no TLS with {address}: {getattr(error, 'verify_message', error)}; to trust an "
            "authority of your own give tls=ssl.create_default_context(cafile=...)"
        ) from error
    except OSError as error:
        connection.abort("the connection failed")
        raise BrokerUnreachable(
            f"cannot connect to {address}: {_reason(error)}; "
            "check the address, and that a broker runs there (`penstock serve`)"
        ) from error
    except PeerError as error:
        connection.abort("the handshake failed")
        raise BrokerUnreachable(f"{address}: {error}") from error
    except BaseException:
        connection.abort("the handshake failed")
        raise
    return connection


class Connection(asyncio.Protocol, Generic[M]):
    """See the module. ``facts`` is what the broker answered to IDENTIFY."""

    def __init__(
        self,
        address: Address,
        options: ClientOptions,
        owner: Owner[M],
        new_message: MessageFactory[M],
    ) -> None:
        self.address = address
        self.facts: dict[str, wire.Scalar] = {}
        self.closed = False
        self._ending = False
        self._options = options
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._codec: Codec | None = None
        self._reader = wire.FrameReader(new_message)
        self._plain = b""  # the handshake's unread bytes
        self._arrival: asyncio.Future[None] | None = None
        self._greeted = False
        self._reason = "the broker closed the connection"
        self._heard_at = self._loop.time()
        self._check_at = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._outgoing: list[bytes] = []
        self._ended: asyncio.Future[None] = self._loop.create_future()

    # --- the handshake ---------------------------------------------------------------------------

    async def greet(self, identity: dict[str, wire.Scalar], greeting: Sequence[bytes]) -> None:
        """Everything up to the first command of real work. Only ``connect`` calls it."""
        options = self._options
        settings: dict[str, wire.Scalar] = {
            "client_id": options.client_id,
            "hostname": gethostname(),
            "user_agent": f"{options.user_agent}/{__version__}",
            "feature_negotiation": True,
            "heartbeat_interval": round(options.heartbeat_interval * 1000),
            "tls_v1": bool(options.tls),
            "snappy": options.compression == "snappy",
            "deflate": options.compression == "deflate",
        }
        if options.compression == "deflate":
            settings["deflate_level"] = options.deflate_level
        self._write_now(wire.MAGIC + wire.encode_identify(settings | identity))
        self.facts = wire.decode_answer(await self._answer("IDENTIFY"))
        await self._upgrade()
        if self.facts.get("auth_required"):
            if options.auth_secret is None:
                raise Refused(
                    f"{self.address} asks for authorization and this client has no auth_secret",
                    code="E_AUTH_FIRST",
                )
            await self._ask(wire.encode_auth(options.auth_secret), "AUTH")
        for command in greeting:
            await self._ask(command, command.partition(b" ")[0].decode())

        self._greeted = True
        self._schedule_check()
        rest, self._plain = self._plain, b""
        if rest:
            self._scan(rest)

    async def _upgrade(self) -> None:
        options = self._options
        if options.tls and not self.facts.get("tls_v1"):
            raise Refused(
                f"{self.address} does not offer TLS; set it up there, or connect without tls",
                code="E_NO_TLS",
            )
        if options.tls:
            context = options.tls
            if not isinstance(context, ssl.SSLContext):
                context = ssl.create_default_context()
            assert self._transport is not None
            transport = await self._loop.start_tls(
                self._transport, self, context, server_hostname=self.address.host
            )
            if transport is None:
                raise BrokerUnreachable(f"{self.address} ended the connection during TLS")
            self._take(transport)
            await self._answer("TLS")
        if options.compression is not None and self.facts.get(options.compression):
            self._codec = new_codec(options.compression, options.deflate_level)
            # What came behind the last answer is already compressed.
            self._plain = self._codec.decompress(self._plain) if self._plain else b""
            await self._answer(options.compression)

    async def _ask(self, command: bytes, name: str) -> bytes:
        self._write_now(command)
        return await self._answer(name)

    async def _answer(self, name: str) -> bytes:
        """The handshake's next answer; heartbeats in between are answered."""
        while True:
            cut = wire.cut_frame(self._plain)
            if cut is None:
                self._arrival = self._loop.create_future()
                if self.closed:
                    raise BrokerUnreachable(f"{self.address} at {name}: {self._reason}")
                await self._arrival
                continue
            kind, data, self._plain = cut
            if kind == wire.TYPE_ERROR:
                code, explanation = wire.decode_error(data)
                raise Refused(
                    f"{self.address} refused {name}: {code} {explanation}".rstrip(),
                    code=code,
                    retry=code not in PERMANENT_CODES,
                )
            if data == wire.HEARTBEAT:
                self._write_now(wire.NOP)
                continue
            return data

    # --- what asyncio calls ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport and not its class.
        self._take(cast("asyncio.Transport", transport))

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        try:
            if self._codec is not None:
                data = self._codec.decompress(data)
            if self._greeted:
                self._scan(data)
            else:
                self._plain += data
                self._wake()
        except PeerError as error:
            self.abort(str(error))

    def pause_writing(self) -> None:
        self._owner.on_writable(False)

    def resume_writing(self) -> None:
        self._owner.on_writable(True)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if exc is not None:
            self._reason = str(exc) or type(exc).__name__
        if self._watch is not None:
            self._watch.cancel()
        self._wake()
        if not self._ended.done():
            self._ended.set_result(None)
        if self._greeted:
            self._owner.on_lost(self._reason)

    # --- what owners call ------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """To the socket at once; nowhere, if the connection is ending."""
        if not self.closed and not self._ending:
            self._write_now(data)

    def send(self, command: bytes) -> None:
        """With all else of this turn of the loop, in one write at its end."""
        outgoing = self._outgoing
        if not outgoing:
            self._loop.call_soon(self.flush)
        outgoing.append(command)

    def flush(self) -> None:
        """What ``send`` has gathered, now."""
        if self._outgoing:
            data = b"".join(self._outgoing)
            self._outgoing.clear()
            self.write(data)

    async def close(self) -> None:
        """Hand over what was written, then end."""
        self.flush()
        transport = self._transport
        if transport is None or self.closed:
            return
        # The broker reads to the end of what was sent before it closes. To close at once, with its
        # bytes unread here, could reset the connection and take our last commands with it.
        self._ending = True
        if transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()
        await asyncio.wait((self._ended,), timeout=CLOSE_TIMEOUT)
        self.abort("closed")

    def abort(self, reason: str) -> None:
        """End now, whatever is still unwritten."""
        self._reason = reason
        if self._transport is not None and not self.closed:
            self._transport.abort()

    # --- inside ----------------------------------------------------------------------------------

    def _take(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)

    def _scan(self, data: bytes) -> None:
        messages, others = self._reader.feed(data)
        if messages:
            self._owner.on_messages(messages)
        for kind, answer in others:
            if answer == wire.HEARTBEAT:
                self.write(wire.NOP)
            elif kind == wire.TYPE_ERROR:
                self._owner.on_error(*wire.decode_error(answer))
            else:
                self._owner.on_answer(answer)

    def _write_now(self, data: bytes) -> None:
        if self._codec is not None:
            data = self._codec.compress(data)
        assert self._transport is not None
        self._transport.write(data)

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _check_alive(self) -> None:
        interval = self._options.heartbeat_interval
        now = self._loop.time()
        silence = now - self._heard_at
        # If this timer itself is late, the program has held the loop up: what the broker sent in
        # the meantime has not been read yet, so its silence proves nothing.
        on_time = now - self._check_at < interval / 2
        if silence > 2 * interval and on_time:
            self.abort(f"no sign of life for {silence:.0f} s")
            return
        self._schedule_check()

    def _schedule_check(self) -> None:
        self._check_at = self._loop.time() + self._options.heartbeat_interval
        self._watch = self._loop.call_at(self._check_at, self._check_alive)


def _reason(error: OSError) -> str:
    """In the system's words; asyncio's are "Connect call failed ('127.0.0.1', 4150)"."""
    if isinstance(error, ConnectionError) and error.errno is not None:
        return os.strerror(error.errno)
    return error.strerror or str(error)


def no_message(*_: object) -> None:
    """The message factory of a connection that never subscribes."""
    raise PeerError("E_BAD_FRAME", "the broker sent a message to a producer")


def report_bug(task: asyncio.Task[None]) -> None:
    """A background task's unforeseen exception goes to the loop's handler, at once."""
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler(
            {"message": "a background task of the client failed", "exception": error, "task": task}
        )
