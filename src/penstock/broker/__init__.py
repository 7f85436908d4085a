"""The pure core: topics, partitions, lanes, channels, leases, schedules.

It takes bytes and the current time, changes its own state, and leaves the effects to be picked up:
lanes with something to commit, channels with something to hand out, records for a channel's
journal, alarms. It imports no asyncio, opens no file and never waits, so that all of it runs under
a simulated clock, disk and network. Doors translate, engines persist; what is decided is decided
here.
"""
