"""The file engine: logs as segment files, journals and state as append-only files in one directory.

    DIR/format                              the version of this layout
    DIR/lock                                held by the one process that has the directory open
    DIR/clean                               there only while nobody has it open and all was closed
    well DIR/state                               small values by key DIR/reserve
    space that journals and state may fall back on DIR/topics/<topic>/<partition>/         one
    directory for the lanes of a partition
        ready_<priority>_<base>.seg         a segment: blocks, one behind the other
        ready_<priority>_<base>.g<n>.seg    its n-th rewritten generation
        ready_<priority>_<base>.index       where which seq lies in it; for the last one: the
        checkpoint ready_<priority>.manifest           the sealed segments, in order
        ready_<priority>.synced             the synced end, for readers outside of the broker
        delay_...                           the same for the delay lane
    DIR/topics/<topic>/channels/<channel>/journal_<n>
    DIR/gone/                               what is being deleted

``disk`` is the border to the operating system, ``layout`` knows the names, ``log`` ``journal``
``state`` are the port's three things, ``recovery`` opens a log again, ``engine`` holds them
together.
"""
