"""The HTTP door: nsqd's HTTP API at its own paths, on port 4151.

What HTTP is, is ``penstock.http``'s business. ``door`` is the server with the broker behind it,
``request`` one request and what its answer waits for, ``routes`` the table of what there is; behind
it a module per subject: ``publishing`` (/pub, /mpub), ``administration`` (/topic, /channel),
``about`` (/ping, /info), ``stats``, ``options`` (/config) and ``debugging`` (/debug). What only
Penstock has: ``metrics`` in Prometheus's format (``exposition``) and ``health`` for probes.
"""
