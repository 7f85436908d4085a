"""The broker on an event loop: what the core decided is carried out here.

``host`` holds it together; ``committer`` makes publishes durable and hands messages out,
``reader`` fetches cold blocks, ``journals`` writes what happened, ``loading`` opens topics,
``timers`` calls who is due, ``pool`` is the few threads that may wait for a disk.
"""
