"""What a connection tells about itself, for whoever lists clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.statistics import ClientStatistics

if TYPE_CHECKING:
    from penstock.doors.nsq.connection import Connection

_NSQDS_STATES = {"init": 0, "subscribed": 3, "closing": 4}


def statistics_of(connection: Connection) -> ClientStatistics:
    negotiated, subscriber = connection.negotiated, connection.subscriber
    grants = connection.grants
    tls = connection.tls if connection.secured else None
    address = connection.peer.rpartition(":")[0]
    identified = negotiated is not connection.door.unidentified
    return ClientStatistics(
        client_id=negotiated.client_id if identified else address,
        hostname=negotiated.hostname if identified else address,
        user_agent=negotiated.user_agent,
        remote_address=connection.peer,
        state=_NSQDS_STATES[connection.state.value],
        ready_count=subscriber.ready if subscriber else 0,
        in_flight_count=subscriber.in_flight if subscriber else 0,
        message_count=subscriber.message_count if subscriber else 0,
        finish_count=subscriber.finished if subscriber else 0,
        requeue_count=subscriber.requeued if subscriber else 0,
        connected_at_ns=connection.connected_at_ns,
        sample_rate=negotiated.sample_rate,
        deflate=negotiated.deflate,
        snappy=negotiated.snappy,
        identity=grants.identity if grants else None,
        identity_url=grants.identity_url if grants else "",
        published=connection.published,
        tls_version=tls.version if tls else "",
        tls_cipher=tls.cipher if tls else "",
    )
