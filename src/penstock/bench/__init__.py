"""The load generator and the measurements behind `penstock bench`.

It stands outside the broker, on both ends of a message's way: worker processes publish and consume
over NSQ's TCP protocol, and the broker's CPU time, memory, files and disk are read from the system
while they do. It must not be the bottleneck: payloads are built before the clock starts, answers
and messages are counted by strides of whole reads, and no object is made per message where a slice
will do. It knows nothing of the broker's inside and imports no part of it but the client side of
the protocol.
"""
