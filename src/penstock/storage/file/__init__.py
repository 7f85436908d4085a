"""The file engine: logs as segment files, journals and state as append-only files in one directory.

::

    DIR/format                      the version of this layout
    DIR/lock                        held by the one process that has the directory open
    DIR/clean                       which logs were closed well; there only while nobody has it open
    DIR/state                       small values by key
    DIR/reserve                     space that journals and state may fall back on
    DIR/topics/TOPIC/PARTITION/     one directory for the lanes of a partition
        ready_PRIORITY_BASE.seg         a segment: blocks, one behind the other
        ready_PRIORITY_BASE.gN.seg      its Nth rewritten generation
        ready_PRIORITY_BASE.index       where which seq lies in it; of the last one: the checkpoint
        ready_PRIORITY.manifest         the sealed segments, in order
        ready_PRIORITY.synced           the synced end, for readers outside of the broker
        delay_BASE.seg and so on        the same for the delay lane
    DIR/topics/TOPIC/channels/CHANNEL/journal_N
    DIR/gone/                       what is being deleted

``disk`` is the border to the operating system, ``layout`` knows the names, ``log`` ``journal``
``state`` are the port's three things, ``recovery`` opens a log again, ``engine`` holds them
together. ``survey`` and ``verify`` look at a directory from outside, whoever has it open.
"""
