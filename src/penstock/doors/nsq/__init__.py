"""The NSQ door: NSQ's TCP protocol V2 on port 4150.

``door`` accepts and keeps time for connections, ``connection`` is one client, ``identify`` what it
may negotiate, ``layers`` TLS, snappy and deflate under the protocol, ``auth`` who may do what.
"""
