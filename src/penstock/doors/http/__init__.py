"""The HTTP door: nsqd's HTTP API at its own paths, on port 4151.

``door`` listens, keeps time for slow clients and holds what all connections share. ``connection``
is one client: bytes through the parser (httptools; nobody else imports it), whole requests one
after the other, answers in their order. ``request`` is one request on its way, ``answers`` its
answer as bytes, ``parameters`` its query. ``routes`` is the table of what there is; behind it a
module per subject: ``publishing`` (/pub, /mpub), ``administration`` (/topic, /channel), ``about``
(/ping, /info), ``stats``, ``options`` (/config) and ``debugging`` (/debug).
"""
