"""nsqd 1.3's limits and defaults, each with its reason, and the few limits of Penstock's own.

These are the numbers that the protocol's clients know, or that keep memory bounded whatever a peer
does. What a user may change is a setting in `config`, whose default stands here where nsqd has one.
Nothing here is computed, and this module imports nothing.
"""

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS

# --- the wire ----------------------------------------------------------------------------------

# nsqd reads commands through a 16 KiB buffer and drops a connection whose line does not fit.
COMMAND_LINE_BYTES_MAX = 16 * KIB

# nsqd's limit for topic and channel names, `#ephemeral` included.
NAME_CHARS_MAX = 64

# Attempts travel as u16; nsqd wraps around, Penstock stays at the top.
ATTEMPTS_MAX = 65_535

# --- messages and commands ---------------------------------------------------------------------

# One message: what nsqd refuses above, so that a producer meets the same answer here.
MSG_SIZE_BYTES_MAX = 1 * MIB

# One command's body (an MPUB, an IDENTIFY): bounds what one connection makes the broker hold.
BODY_SIZE_BYTES_MAX = 5 * MIB

# Time to answer a message, unless the client asks otherwise in IDENTIFY.
MSG_TIMEOUT_DEFAULT_MS = 60 * SECOND_MS

# The longest that a client may ask for, and the longest that TOUCH can stretch one delivery.
MSG_TIMEOUT_MAX_MS = 15 * MINUTE_MS

# Below a second a timeout measures the network, not the handler; nsqd refuses it.
MSG_TIMEOUT_MIN_MS = 1 * SECOND_MS

# The longest delay of REQ and DPUB in nsqd; `penstock serve` has no such limit.
REQ_TIMEOUT_MAX_MS = 1 * HOUR_MS

# The longest delay that anyone can ask for: a hundred years. Times on disk are nanoseconds in 64
# signed bits, which end in 2262.
DELAY_MAX_MS = 100 * 365 * 24 * HOUR_MS

# Messages in flight to one connection: bounds what one lost consumer delays.
RDY_COUNT_MAX = 2_500

# --- what a client may negotiate ---------------------------------------------------------------

# Heartbeats: half of nsqd's client timeout of 60 s by default, 1 s at least.
HEARTBEAT_INTERVAL_DEFAULT_MS = 30 * SECOND_MS
HEARTBEAT_INTERVAL_MIN_MS = 1 * SECOND_MS
HEARTBEAT_INTERVAL_MAX_MS = 60 * SECOND_MS

# A connection that misses two heartbeats is gone, as in nsqd.
HEARTBEATS_MISSED_MAX = 2

# nsqd's buffer for a client's output; 64 bytes at least, or every frame would be a write.
OUTPUT_BUFFER_SIZE_DEFAULT_BYTES = 16 * KIB
OUTPUT_BUFFER_SIZE_MIN_BYTES = 64
OUTPUT_BUFFER_SIZE_MAX_BYTES = 64 * KIB

# How long buffered output may wait. Below 25 ms nsqd's flush timers cost more than they give.
OUTPUT_BUFFER_TIMEOUT_DEFAULT_MS = 250
OUTPUT_BUFFER_TIMEOUT_MIN_MS = 25
OUTPUT_BUFFER_TIMEOUT_MAX_MS = 30 * SECOND_MS

# A share of messages in percent; 0 means all, and 100 would mean the same.
SAMPLE_RATE_PERCENT_MAX = 99

# Deflate above level 6 costs much time for little space.
DEFLATE_LEVEL_DEFAULT = 6
DEFLATE_LEVEL_MIN = 1
DEFLATE_LEVEL_MAX = 9

# --- storage and memory ------------------------------------------------------------------------

# `written`: how much a power cut may take, in time and in messages; as nsqd's disk queue.
SYNC_INTERVAL_DEFAULT_MS = 2 * SECOND_MS
SYNC_MESSAGES_DEFAULT = 2_500

# A segment is the unit in which space is freed; at 1 GiB a busy log still has few files.
SEGMENT_BYTES_DEFAULT = 1 * GIB

# nsqd's size of a disk queue file, kept by `penstock nsqd`.
NSQD_SEGMENT_BYTES_DEFAULT = 100 * MIB

# Messages that an ephemeral topic or channel may be behind before it drops, as in nsqd.
MEM_QUEUE_SIZE_DEFAULT = 10_000

# Partitions are directories and logs; more than this in one topic is a mistake in a script.
PARTITIONS_MAX = 1_024

# --- helpers of nsqd's command line ------------------------------------------------------------

# nsqd's node id is ten bits of its message ids.
NODE_ID_END = 1_024

# nsqd's HTTP client, towards auth servers and nsqlookupd.
HTTP_CLIENT_CONNECT_TIMEOUT_DEFAULT_MS = 2 * SECOND_MS
HTTP_CLIENT_REQUEST_TIMEOUT_DEFAULT_MS = 5 * SECOND_MS
