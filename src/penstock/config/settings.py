"""What there is to set: each setting with its kind, default, description and reason.

The command line, `penstock config` and docs/configuration.md are all made from these fields. A key
is the field's name without its unit (`sync_interval` for `sync_interval_ms`), because values are
written with one (`2s`, `64MiB`). To add a setting: add its field here and run `make docs`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeVar
from urllib.parse import quote

from penstock import limits
from penstock.config.kinds import (
    ADDRESS,
    ADDRESS_OR_NONE,
    ADDRESSES,
    DURATION,
    DURATION_OR_NONE,
    FLAG,
    PATH,
    PATH_OR_NONE,
    SIZE,
    TEXT,
    TEXTS,
    TLS_REQUIRED,
    Address,
    Durability,
    EventLoop,
    HttpMethod,
    Kind,
    LogLevel,
    TlsClientAuth,
    TlsRequired,
    TlsVersion,
    choice,
    count,
)

ENVIRONMENT_PREFIX = "PENSTOCK_"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known of one setting beside its value."""

    field: str
    key: str
    group: str
    kind: Kind[object]
    default: object
    doc: str
    reason: str

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.key.upper()

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")

    @property
    def default_shown(self) -> str:
        return self.kind.show(self.default)


class _Note(NamedTuple):
    group: str
    kind: Kind[object]
    doc: str
    reason: str


def _set(group: str, kind: Kind[T], default: T, doc: str, reason: str) -> T:
    made: T = field(default=default, metadata={"note": _Note(group, kind, doc, reason)})
    return made


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """What a `[topics."name"]` table says; None is as the broker's."""

    durability: Durability | None = None
    partitions: int | None = None


_ADDRESSES = "Addresses"
_STORAGE = "Storage and durability"
_MEMORY = "Memory and background work"
_MESSAGES = "Messages and clients"
_TLS = "TLS and compression"
_AUTH = "Authentication"
_PROCESS = "The process"


@dataclass(frozen=True, slots=True)
class Settings:
    """All that is in force. `Settings()` is what `penstock serve` has when nothing is given."""

    # addresses
    tcp_address: Address = _set(
        _ADDRESSES,
        ADDRESS,
        Address("127.0.0.1", 4150),
        "Where NSQ clients connect; a path is a Unix socket.",
        "nsqd's port; only this machine, until someone decides otherwise",
    )
    http_address: Address | None = _set(
        _ADDRESSES,
        ADDRESS_OR_NONE,
        Address("127.0.0.1", 4151),
        "Where HTTP clients connect; a path is a Unix socket, empty is no HTTP.",
        "nsqd's port",
    )
    https_address: Address | None = _set(
        _ADDRESSES,
        ADDRESS_OR_NONE,
        None,
        "Where HTTPS clients connect; nothing listens without tls_cert and tls_key.",
        "HTTPS needs a certificate, so there is no address until one is given",
    )
    broadcast_address: str = _set(
        _ADDRESSES,
        TEXT,
        "",
        "The name under which name servers say that it is reached; empty is the host's name.",
        "as nsqd",
    )
    broadcast_tcp_port: int = _set(
        _ADDRESSES,
        count(0, 65_535),
        0,
        "The TCP port told to name servers; 0 is the one that is bound.",
        "as nsqd; needed only behind a port mapping",
    )
    broadcast_http_port: int = _set(
        _ADDRESSES,
        count(0, 65_535),
        0,
        "The HTTP port told to name servers; 0 is the one that is bound, else the TCP port.",
        "as nsqd; needed only behind a port mapping",
    )
    lookupd_tcp_addresses: tuple[Address, ...] = _set(
        _ADDRESSES,
        ADDRESSES,
        (),
        "TCP addresses of the name servers to register with.",
        "one broker needs no name server",
    )

    # storage and durability
    data_path: Path = _set(
        _STORAGE,
        PATH,
        Path("data"),
        "The directory that holds everything; made when missing, used by one broker at a time.",
        "beside where it was started, so that a first try leaves nothing elsewhere",
    )
    storage: str = _set(
        _STORAGE,
        TEXT,
        "",
        "The engine as a URL, file:///var/lib/penstock or memory://; empty is files in data_path.",
        "files need nothing installed beside Penstock",
    )
    durability: Durability = _set(
        _STORAGE,
        choice(Durability),
        Durability.SYNCED,
        "What an OK promises: synced (survives power loss), written (survives kill -9), memory.",
        "an OK that does not survive power loss is a surprise on the worst day",
    )
    sync_interval_ms: int = _set(
        _STORAGE,
        DURATION,
        limits.SYNC_INTERVAL_DEFAULT_MS,
        "At durability written: the longest that a message waits for its sync.",
        "nsqd's sync-timeout",
    )
    sync_messages_max: int = _set(
        _STORAGE,
        count(1),
        limits.SYNC_MESSAGES_DEFAULT,
        "At durability written: the most messages of a log that wait for their sync.",
        "nsqd's sync-every",
    )
    partitions: int = _set(
        _STORAGE,
        count(1, limits.PARTITIONS_MAX),
        1,
        "Partitions of a topic that is created without saying how many.",
        "one partition keeps the order of a topic",
    )
    segment_bytes_max: int = _set(
        _STORAGE,
        SIZE,
        limits.SEGMENT_BYTES_DEFAULT,
        "A log goes on in a new file when its file would grow past this.",
        "space is freed by whole files: few files for a busy log, yet pieces that can go",
    )
    retain_hours: int = _set(
        _STORAGE,
        count(0),
        24,
        "How long messages stay readable after every channel has finished them.",
        "a day's replay for whoever finds a bug the next morning",
    )
    disk_reserve_bytes: int = _set(
        _STORAGE,
        SIZE,
        64 * limits.MIB,
        "Space kept back for journals, so that consumers can go on when the disk is full.",
        "hours of finishing at a usual rate, and nothing beside a disk of today",
    )
    journal_write_interval_ms: int = _set(
        _STORAGE,
        DURATION,
        50,
        "The longest that what consumers finished waits to be written.",
        "half of the 100 ms after which kill -9 must not bring a finished message back",
    )
    journal_sync_interval_ms: int = _set(
        _STORAGE,
        DURATION,
        500,
        "The longest that what consumers finished waits to be synced.",
        "half of the second after which power loss must not bring a finished message back",
    )

    # memory and background work
    uncommitted_bytes_max: int = _set(
        _MEMORY,
        SIZE,
        64 * limits.MIB,
        "Published bytes, over all connections, that wait for the disk; above it reading stops.",
        "bounds memory when a disk stalls, and holds a second of a fast disk",
    )
    connection_uncommitted_bytes_max: int = _set(
        _MEMORY,
        SIZE,
        16 * limits.MIB,
        "The same for one connection.",
        "one publisher cannot take the whole; three of the largest commands still fit",
    )
    block_cache_bytes: int = _set(
        _MEMORY,
        SIZE,
        32 * limits.MIB,
        "Blocks read back from disk that stay in memory for further channels.",
        "ten channels that read one backlog together read it once",
    )
    mem_queue_size: int = _set(
        _MEMORY,
        count(0),
        limits.MEM_QUEUE_SIZE_DEFAULT,
        "Messages that an ephemeral channel may be behind before it drops the oldest.",
        "as nsqd, which drops the newest",
    )
    sync_threads: int = _set(
        _MEMORY,
        count(1, 64),
        8,
        "Threads that wait for the disk.",
        "logs sync beside each other; more than a disk's queue serves gives nothing",
    )
    segment_files_open_max: int = _set(
        _MEMORY,
        count(16),
        512,
        "Segment files that are open at once.",
        "half of the usual limit of 1,024 files, the rest is for connections",
    )

    # messages and clients
    max_msg_size: int = _set(
        _MESSAGES,
        SIZE,
        limits.MSG_SIZE_BYTES_MAX,
        "The largest message.",
        "as nsqd",
    )
    max_body_size: int = _set(
        _MESSAGES,
        SIZE,
        limits.BODY_SIZE_BYTES_MAX,
        "The largest body of one command, such as an MPUB.",
        "as nsqd",
    )
    msg_timeout_ms: int = _set(
        _MESSAGES,
        DURATION,
        limits.MSG_TIMEOUT_DEFAULT_MS,
        "How long a consumer may take for a message before it is delivered again.",
        "as nsqd; a client can ask for another time in IDENTIFY",
    )
    max_msg_timeout_ms: int = _set(
        _MESSAGES,
        DURATION,
        limits.MSG_TIMEOUT_MAX_MS,
        "The longest such time that a client may ask for, TOUCH included.",
        "as nsqd",
    )
    max_req_timeout_ms: int | None = _set(
        _MESSAGES,
        DURATION_OR_NONE,
        None,
        "The longest delay of REQ and DPUB; none is a hundred years.",
        "delays are kept on disk and need no limit; penstock nsqd keeps nsqd's 1h",
    )
    max_rdy_count: int = _set(
        _MESSAGES,
        count(1),
        limits.RDY_COUNT_MAX,
        "The most messages in flight to one connection.",
        "as nsqd",
    )
    max_channel_consumers: int = _set(
        _MESSAGES,
        count(0),
        0,
        "The most consumers of one channel; 0 is no limit.",
        "as nsqd",
    )
    max_heartbeat_interval_ms: int = _set(
        _MESSAGES,
        DURATION,
        limits.HEARTBEAT_INTERVAL_MAX_MS,
        "The longest time between heartbeats that a client may ask for.",
        "as nsqd",
    )
    max_output_buffer_size: int = _set(
        _MESSAGES,
        SIZE,
        limits.OUTPUT_BUFFER_SIZE_MAX_BYTES,
        "The largest output buffer that a client may ask for.",
        "as nsqd",
    )
    output_buffer_timeout_ms: int = _set(
        _MESSAGES,
        DURATION,
        limits.OUTPUT_BUFFER_TIMEOUT_DEFAULT_MS,
        "The output buffer's timeout that IDENTIFY answers when a client asks for none.",
        "as nsqd",
    )
    min_output_buffer_timeout_ms: int = _set(
        _MESSAGES,
        DURATION,
        limits.OUTPUT_BUFFER_TIMEOUT_MIN_MS,
        "The shortest that a client may ask for.",
        "as nsqd",
    )
    max_output_buffer_timeout_ms: int = _set(
        _MESSAGES,
        DURATION,
        limits.OUTPUT_BUFFER_TIMEOUT_MAX_MS,
        "The longest that a client may ask for.",
        "as nsqd",
    )

    # TLS and compression
    tls_cert: Path | None = _set(
        _TLS, PATH_OR_NONE, None, "The broker's certificate (PEM).", "without one there is no TLS"
    )
    tls_key: Path | None = _set(
        _TLS,
        PATH_OR_NONE,
        None,
        "The key of that certificate (PEM).",
        "without one there is no TLS",
    )
    tls_required: TlsRequired = _set(
        _TLS,
        TLS_REQUIRED,
        TlsRequired.NO,
        "Whether clients must use TLS; tcp-https leaves plain HTTP open.",
        "as nsqd",
    )
    tls_client_auth_policy: TlsClientAuth = _set(
        _TLS,
        choice(TlsClientAuth),
        TlsClientAuth.NONE,
        "What is asked of clients' certificates; anything but empty makes TLS required.",
        "as nsqd",
    )
    tls_root_ca_file: Path | None = _set(
        _TLS,
        PATH_OR_NONE,
        None,
        "Authorities that sign clients' certificates (PEM); empty is the system's.",
        "as nsqd",
    )
    tls_min_version: TlsVersion = _set(
        _TLS,
        choice(TlsVersion),
        TlsVersion.TLS_1_2,
        "The oldest TLS version that is accepted.",
        "older versions are broken, and today's OpenSSL refuses them anyway",
    )
    deflate: bool = _set(
        _TLS,
        FLAG,
        True,
        "Whether clients may negotiate deflate.",
        "as nsqd; it costs nothing unused",
    )
    max_deflate_level: int = _set(
        _TLS,
        count(limits.DEFLATE_LEVEL_MIN, limits.DEFLATE_LEVEL_MAX),
        limits.DEFLATE_LEVEL_DEFAULT,
        "The highest deflate level that a client may ask for.",
        "as nsqd; higher levels cost the broker's time",
    )
    snappy: bool = _set(
        _TLS,
        FLAG,
        True,
        "Whether clients may negotiate snappy.",
        "as nsqd; it costs nothing unused",
    )

    # authentication
    auth_http_addresses: tuple[str, ...] = _set(
        _AUTH,
        TEXTS,
        (),
        "Auth servers (host:port or URL), asked in turn; any makes AUTH required.",
        "nsqd's protocol for auth servers",
    )
    auth_http_request_method: HttpMethod = _set(
        _AUTH,
        choice(HttpMethod),
        HttpMethod.GET,
        "How the auth server is asked: get or post.",
        "as nsqd; post keeps the secret out of the server's access log",
    )
    auth_token_file: Path | None = _set(
        _AUTH,
        PATH_OR_NONE,
        None,
        "A file of tokens and what each may do; looked at before any auth server is asked.",
        "a handful of clients does not need a server",
    )
    http_client_connect_timeout_ms: int = _set(
        _AUTH,
        DURATION,
        limits.HTTP_CLIENT_CONNECT_TIMEOUT_DEFAULT_MS,
        "How long connecting to an auth server may take.",
        "as nsqd",
    )
    http_client_request_timeout_ms: int = _set(
        _AUTH,
        DURATION,
        limits.HTTP_CLIENT_REQUEST_TIMEOUT_DEFAULT_MS,
        "How long a whole request to an auth server or to a name server may take.",
        "as nsqd",
    )

    # the process
    metrics_label_sets_max: int = _set(
        _PROCESS,
        count(0),
        2_000,
        "Topics and channels that /metrics tells of by name; the rest is summed under one.",
        "some 16,000 series, which a Prometheus takes in its stride",
    )
    log_level: LogLevel = _set(
        _PROCESS,
        choice(LogLevel),
        LogLevel.INFO,
        "The least severe log lines that are printed.",
        "nsqd's levels and default",
    )
    event_loop: EventLoop = _set(
        _PROCESS,
        choice(EventLoop),
        EventLoop.AUTO,
        "Which event loop runs: auto is uvloop where it is installed, else asyncio's own.",
        "uvloop takes a third of the time for a read and a write",
    )
    shutdown_timeout_ms: int = _set(
        _PROCESS,
        DURATION,
        10 * limits.SECOND_MS,
        "How long a stop waits for consumers and for what is on its way; then it cuts them off.",
        "supervisors send SIGKILL after 10 s or more",
    )
    verify: bool = _set(
        _PROCESS,
        FLAG,
        False,
        "Check every channel's invariants after each step; slow, for hunting a bug.",
        "the checks cost more than the work they check",
    )

    # what single topics do otherwise, from the file's [topics."name"] tables
    topics: Mapping[str, TopicSettings] = field(default_factory=dict)

    @property
    def storage_url(self) -> str:
        """The engine in force, the default filled in."""
        return self.storage or f"file://{quote(str(self.data_path.absolute()))}"

    def durability_of(self, topic: str) -> Durability:
        return (self.topics.get(topic) or _AS_BROKER).durability or self.durability

    def partitions_of(self, topic: str) -> int:
        return (self.topics.get(topic) or _AS_BROKER).partitions or self.partitions


_AS_BROKER = TopicSettings()


def _as_setting(name: str, default: object, note: _Note) -> Setting:
    key = name.removesuffix("_ms")
    return Setting(name, key, note.group, note.kind, default, note.doc, note.reason)


SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        setting.key: setting
        for f in fields(Settings)
        if "note" in f.metadata
        for setting in [_as_setting(f.name, f.default, f.metadata["note"])]
    }
)

# What a topic's own table may say: the same settings, for that topic.
TOPIC_SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {f.name: SETTINGS[f.name] for f in fields(TopicSettings)}
)
