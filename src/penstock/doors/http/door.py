"""The HTTP door: nsqd's API on an HTTP server, with TLS on an address of its own."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence

from penstock.clock import Clock
from penstock.config import Address, Settings, TlsRequired
from penstock.doors.http.metrics import Metrics
from penstock.doors.http.request import Request
from penstock.doors.http.routes import routes
from penstock.http.answers import Refused
from penstock.http.routes import Route
from penstock.http.server import HttpServer
from penstock.limits import DELAY_MAX_MS
from penstock.runtime.host import Host
from penstock.runtime.listening import Listener
from penstock.runtime.tlscontext import tls_context

QUERIES_KEPT_MAX = 1_000


class HttpDoor(HttpServer):
    """nsqd's HTTP API."""

    request = Request

    def __init__(
        self, host: Host, settings: Settings, clock: Clock, tcp_port: Callable[[], int]
    ) -> None:
        super().__init__(routes(settings), clock, settings.shutdown_timeout_ms / 1000)
        self.host = host
        self.settings = settings
        self.tcp_port = tcp_port
        self.started_at_ns = clock.now_ns()
        self.started_monotonic_ns = clock.monotonic_ns()
        longest = settings.max_req_timeout_ms
        self.delay_ms_max = DELAY_MAX_MS if longest is None else min(longest, DELAY_MAX_MS)
        self.tls_context: ssl.SSLContext | None = tls_context(settings)
        # whoever wired the broker says what comes of new name servers
        self.register_with: Callable[[Sequence[Address]], None] = _nothing
        self.publish_queries: dict[bytes, tuple[str, int]] = {}
        self.profiling = False
        self.draining = False  # publishes are refused
        self.metrics = Metrics(self, settings.metrics_label_sets_max)
        self.plain: Listener | None = None
        self.secure: Listener | None = None

    async def start(self) -> None:
        settings = self.settings
        if settings.http_address is not None:
            self.plain = await self.listen(settings.http_address, "http_address")
        if settings.https_address is not None and self.tls_context is not None:
            self.secure = await self.listen(
                settings.https_address, "https_address", self.tls_context
            )

    @property
    def addresses(self) -> list[Address]:
        return self.plain.addresses if self.plain is not None else []

    @property
    def secure_addresses(self) -> list[Address]:
        return self.secure.addresses if self.secure is not None else []

    @property
    def http_port(self) -> int:
        return self.addresses[0].port if self.addresses else 0

    # -- what connections share

    def find(self, method: bytes, path: bytes, *, secure: bool) -> Route | Refused:
        if not secure and self.settings.tls_required is TlsRequired.YES:
            ports = self.secure_addresses
            body = f'{{"message": "TLS_REQUIRED", "https_port": {ports[0].port if ports else 0}}}'
            return Refused(403, "TLS_REQUIRED", body=body.encode())
        return super().find(method, path, secure=secure)

    def call_soon(self, call: Callable[[], None]) -> None:
        self.host.loop.call_soon(call)

    def remember_query(self, query: bytes, asked: tuple[str, int]) -> None:
        """A publisher says the same each time."""
        if len(self.publish_queries) >= QUERIES_KEPT_MAX:
            self.publish_queries.clear()
        self.publish_queries[query] = asked

    def health(self) -> str:
        """nsqd's words: OK, or NOK and why."""
        for problem in self.host.problems.values():
            return f"NOK - {problem}"
        return "OK"


def _nothing(addresses: Sequence[Address]) -> None:
    """There are no name servers."""
