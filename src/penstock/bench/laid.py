"""A long log of single messages, laid down by the file engine itself.

What a publisher leaves that awaits the answer to each PUB is a log with a block for each message.
Over the wire 10 GB of it take an hour, so the directory of a broker that was killed is opened here
and the blocks are appended; then the process ends without closing anything, as if it were killed.

`python -m penstock.bench.laid DIRECTORY TOPIC MESSAGES BODY_BYTES`
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from penstock.bench.wire import BenchError
from penstock.protocol.block import NUMBER_BITS, Block, form_frames
from penstock.storage.file.engine import FileEngine
from penstock.storage.file.log import FileOptions

BLOCKS_PER_WRITE = 2_500  # and per sync, as at durability `written`


def lay_single_messages(directory: str, topic: str, messages: int, body_bytes: int) -> None:
    """Append to the log of a topic that has one message, in a process that does not end well."""
    argv = [sys.executable, "-m", "penstock.bench.laid", directory, topic]
    done = subprocess.run(  # noqa: S603  our own module, with a directory of ours
        [*argv, str(messages), str(body_bytes)], check=False
    )
    if done.returncode:
        raise BenchError(f"the log could not be laid down: exit code {done.returncode}")


def _main() -> None:
    directory, topic, messages, body_bytes = sys.argv[1:]
    log = FileEngine(directory, FileOptions()).log(topic, 0, 0)
    (first,) = log.read(0, 1)
    bodies = [b"x" * int(body_bytes)]
    for seq in range(first.end, first.end + int(messages)):
        now_ns = time.time_ns()
        ends, frames = form_frames((first.tag << NUMBER_BITS) | seq, [(now_ns, bodies)])
        log.append(
            Block(
                tag=first.tag,
                lane=0,
                base=seq,
                ends=ends,
                frames=frames,
                appended_at_ns=now_ns,
                published_first_ns=now_ns,
                published_last_ns=now_ns,
            )
        )
        if seq % BLOCKS_PER_WRITE == 0:
            log.write()
            log.sync()
    log.write()
    os._exit(0)


if __name__ == "__main__":
    _main()
