"""The NSQ door: NSQ's TCP protocol V2 on port 4150.

``door`` accepts clients and keeps time for them. ``wire`` is the bytes and answers of one of them,
``connection`` its commands, ``client`` what it tells about itself. ``identify`` (with ``gojson``)
is what it may negotiate; ``layers`` are TLS, snappy and deflate under the protocol. ``auth`` says
who may do what: by a token file (``tokens``) or by auth servers (``authserver``), as ``grants`` of
``patterns``.
"""
