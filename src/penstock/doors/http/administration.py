"""/topic/… and /channel/…: make, delete, empty, pause. Answered when it is safe that it is done."""

from __future__ import annotations

from collections.abc import Callable

from penstock.broker.lanes import Turn
from penstock.broker.topic import Topic
from penstock.doors.http.request import Request
from penstock.errors import OperatingError
from penstock.http.answers import Refused
from penstock.http.parameters import topic_and_channel_of, topic_of
from penstock.runtime.host import Host

TopicAct = Callable[[Host, Topic], Turn]
ChannelAct = Callable[[Host, Topic, str], Turn]


def _failed() -> Refused:
    return Refused(500, "INTERNAL_ERROR")


# -- topics


def create_topic(request: Request) -> None:
    name = topic_of(request.parameters())
    if request.topic(name, _failed()) is not None:
        request.when(request.door.host.state_turn(), _failed())


def _topic_act(act: TopicAct, *, named_well: bool = False) -> Callable[[Request], None]:
    def handler(request: Request) -> None:
        parameters = request.parameters()
        if named_well:
            name = topic_of(parameters)
        elif "topic" in parameters:
            name = parameters["topic"]
        else:
            raise Refused(400, "MISSING_ARG_TOPIC")
        topic = request.existing_topic(name)
        if topic is not None:
            _done(request, lambda: act(request.door.host, topic))

    return handler


def _done(request: Request, act: Callable[[], Turn]) -> None:
    try:
        turn = act()
    except OperatingError as error:
        raise _failed() from error
    request.when(turn, _failed())
    request.door.host.wake()


# -- channels


def create_channel(request: Request) -> None:
    topic_name, name = topic_and_channel_of(request.parameters())
    topic = request.existing_topic(topic_name)
    if topic is None:
        return
    host = request.door.host
    if name not in topic.channels and host.is_leaving(topic_name, name, request.again):
        return

    def make() -> Turn:
        topic.channel(name, host.clock.now_ns())
        return host.state_turn()

    _done(request, make)


def _channel_act(act: ChannelAct) -> Callable[[Request], None]:
    def handler(request: Request) -> None:
        topic_name, name = topic_and_channel_of(request.parameters())
        topic = request.existing_topic(topic_name)
        if topic is None:
            return
        if name not in topic.channels:
            raise Refused(404, "CHANNEL_NOT_FOUND")
        _done(request, lambda: act(request.door.host, topic, name))

    return handler


def _delete_channel(host: Host, topic: Topic, name: str) -> Turn:
    turn = host.delete_channel(topic, name)
    if topic.ephemeral and not topic.channels:
        # it goes with its last channel
        return host.delete_topic(topic.name)
    return turn


def _pause(host: Host, topic: Topic, name: str) -> Turn:
    return host.pause_channel(topic, name, paused=True)


def _unpause(host: Host, topic: Topic, name: str) -> Turn:
    return host.pause_channel(topic, name, paused=False)


HANDLERS: dict[bytes, Callable[[Request], None]] = {
    b"/topic/create": create_topic,
    b"/topic/delete": _topic_act(lambda host, topic: host.delete_topic(topic.name)),
    b"/topic/empty": _topic_act(Host.empty_topic, named_well=True),
    b"/topic/pause": _topic_act(Host.pause_topic),
    b"/topic/unpause": _topic_act(Host.unpause_topic),
    b"/channel/create": create_channel,
    b"/channel/delete": _channel_act(_delete_channel),
    b"/channel/empty": _channel_act(Host.empty_channel),
    b"/channel/pause": _channel_act(_pause),
    b"/channel/unpause": _channel_act(_unpause),
}
