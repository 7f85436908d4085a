"""HTTP/1.1 as a server speaks it, whatever is served.

``server`` listens, keeps time for slow clients and holds what all connections share. ``connection``
is one client: bytes through the parser (httptools; nobody else imports it), whole requests one
after the other, answers in their order. ``request`` is one request on its way, ``answers`` its
answer as bytes, ``parameters`` its query, ``routes`` who carries it out. What the paths mean is for
the doors that stand on this: the broker's API and the name server's.
"""
