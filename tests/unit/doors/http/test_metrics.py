"""/metrics: who has a name, what the others come to, and that counters never fall."""

from __future__ import annotations

from penstock.broker.topic import Topic
from penstock.doors.http.metrics import Metrics
from tests.unit.doors.http.rig import HttpRig, get

OTHER_TOPIC = '{topic="(others)"}'
OTHER_CHANNEL = '{topic="(others)",channel="(others)"}'


def told(rig: HttpRig) -> dict[str, float]:
    """Values by metric and labels."""
    text = rig.ask(get("/metrics")).partition(b"\r\n\r\n")[2].decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
    assert len(found) == len(lines), "a sample is told once"
    return found


def capped(label_sets_max: int) -> HttpRig:
    rig = HttpRig()
    rig.door.metrics = Metrics(rig.door, label_sets_max)
    return rig


def topic_of(rig: HttpRig, name: str, *channels: str) -> Topic:
    topic = rig.topic(name)
    for channel in channels:
        topic.channel(channel, rig.clock.now_ns())
    rig.publish(topic, b"x", b"yy")
    rig.settle()
    return topic


def test_a_topic_and_its_channels() -> None:
    rig = HttpRig()
    topic = topic_of(rig, "t", "c")
    topic.pause()
    topic.publish_delayed([b"x"], 1, rig.clock.now_ns() + 10**9, rig.clock.now_ns())
    rig.host.wake()
    rig.settle()
    page = told(rig)
    assert page['penstock_topic_messages_total{topic="t"}'] == 3
    assert page['penstock_topic_message_bytes_total{topic="t"}'] == 4
    assert page['penstock_topic_delayed{topic="t"}'] == 1
    assert page['penstock_topic_paused{topic="t"}'] == 1
    assert page['penstock_topic_disk_bytes{topic="t"}'] > 0
    assert page['penstock_channel_depth{topic="t",channel="c"}'] == 2
    assert page['penstock_channel_sleeping{topic="t",channel="c"}'] == 1
    assert page["penstock_commit_seconds_count"] == 2
    assert page["penstock_syncs_total"] == 2
    assert page['penstock_topics{state="open"}'] == 1


def test_the_setting_is_the_cap() -> None:
    rig = HttpRig()
    assert rig.door.metrics.names.most == rig.settings.metrics_label_sets_max


def test_what_is_beyond_the_cap_is_told_of_as_one() -> None:
    rig = capped(2)
    for name in ("a", "b", "d"):
        topic_of(rig, name, "c")
    page = told(rig)
    assert page['penstock_topic_messages_total{topic="a"}'] == 2
    assert page['penstock_channel_depth{topic="a",channel="c"}'] == 2
    assert not [one for one in page if 'topic="b"' in one or 'topic="d"' in one]
    assert page[f"penstock_topic_messages_total{OTHER_TOPIC}"] == 4
    assert page[f"penstock_channel_depth{OTHER_CHANNEL}"] == 4
    assert page['penstock_label_sets_summed{kind="topic"}'] == 2
    assert page['penstock_label_sets_summed{kind="channel"}'] == 2


def test_the_others_counters_never_fall() -> None:
    rig = capped(0)
    gone, topic = topic_of(rig, "gone"), topic_of(rig, "t")
    counter = f"penstock_topic_messages_total{OTHER_TOPIC}"
    assert told(rig)[counter] == 4
    rig.publish(topic, b"x")
    rig.host.delete_topic(gone.name)
    rig.settle()
    assert told(rig)[counter] == 5
    rig.host.topics.unload(topic)
    rig.settle()
    assert told(rig).get(counter, 5) == 5
    assert rig.host.topic("t", lambda topic, error: None) is None
    rig.settle()
    rig.publish(rig.topic("t"), b"x", b"y")
    rig.settle()
    assert told(rig)[counter] == 7


def test_a_name_is_free_again_when_its_topic_is_deleted() -> None:
    rig = capped(1)
    topic_of(rig, "first")
    topic_of(rig, "second")
    assert 'penstock_topic_depth{topic="first"}' in told(rig)
    rig.host.delete_topic("first")
    rig.settle()
    page = told(rig)
    assert 'penstock_topic_depth{topic="second"}' in page
    assert 'penstock_topic_depth{topic="first"}' not in page


def test_a_channel_that_was_deleted_is_not_told_of() -> None:
    rig = HttpRig()
    topic = topic_of(rig, "t", "c", "d")
    told(rig)
    rig.host.delete_channel(topic, "c")
    rig.settle()
    page = told(rig)
    assert 'penstock_channel_depth{topic="t",channel="c"}' not in page
    assert rig.door.metrics.names.named == {("t", ""), ("t", "d")}


def test_a_closed_topic_shows_what_waits_in_it() -> None:
    rig = HttpRig()
    topic = topic_of(rig, "t", "c")
    rig.host.topics.unload(topic)
    rig.settle()
    page = told(rig)
    assert page['penstock_channel_depth{topic="t",channel="c"}'] == 2
    assert page['penstock_topics{state="closed"}'] == 1
    assert "t" not in rig.host.broker.topics


def test_how_late_the_loop_is() -> None:
    rig = HttpRig()
    rig.loop.advance(0.25)
    rig.loop.advance(0.25 + 0.1)
    page = told(rig)
    bucket = "penstock_event_loop_lag_seconds_bucket"
    assert page[f'{bucket}{{le="0.0001"}}'] == 1
    assert page[f'{bucket}{{le="0.05"}}'] == 1
    assert page[f'{bucket}{{le="0.1"}}'] == 2


def test_a_batch_that_was_not_kept_is_counted() -> None:
    rig = HttpRig()
    topic = topic_of(rig, "t")
    rig.publish(topic, b"x")
    rig.host.broker.next_tag = 1 << 24
    topic.ready_lanes()[0].skip_to((1 << 40) - 1)
    rig.publish(topic, b"x", b"y")
    rig.settle()
    assert told(rig)["penstock_commits_failed_total"] == 1
