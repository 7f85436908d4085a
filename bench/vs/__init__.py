"""Penstock beside Redis Streams and NATS JetStream: the same workloads in one interleaved run.

`python -m bench.vs` from the source tree, with the servers of `bench/vs/requirements.txt` on the
PATH. Every system is driven by the same loops from as many processes, on the same disk, and is read
with the same measure (``penstock.bench.process``); what can't be the same is in `docs/bench.md`.
"""
