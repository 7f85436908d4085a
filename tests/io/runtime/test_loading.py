"""Opening a topic that an earlier run left, where the disk has other plans."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import failpoint
from penstock.broker.broker import Broker, BrokerOptions
from penstock.errors import CorruptionError, LogFrozen
from penstock.runtime.loading import load
from penstock.storage.file.engine import FileEngine
from penstock.storage.file.log import FileOptions
from penstock.storage.port import Engine
from tests.unit.broker.rig import Consumer
from tests.unit.runtime.rig import Rig

FILES = FileOptions(reserve_bytes=0)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[FileEngine]:
    """Of a broker that stopped in the middle of its work; its channel had finished a message."""
    engine = FileEngine(str(tmp_path / "data"), FILES)
    rig = Rig("written", engine)
    topic = rig.topic("t")
    channel = topic.channel("c", rig.clock.now_ns())
    consumer = Consumer()
    channel.subscribe(consumer.subscriber)
    channel.set_ready(consumer.subscriber, 10)
    rig.publish(topic, b"x")
    rig.settle()
    channel.finish(consumer.subscriber, consumer.ids, rig.clock.now_ns())
    for journal in rig.host.journals.collect():
        journal.write()
    for writer in rig.host.committer.writers.values():
        writer.log.close()
    for journal in rig.host.journals.open.values():
        journal.close()
    yield engine
    failpoint.arm("")
    engine.close()


def test_what_a_killed_broker_had_finished_is_synced_before_anything_goes_on(
    engine: FileEngine,
) -> None:
    broker = known(engine)
    failpoint.arm("journal.sync=eio")
    with pytest.raises(LogFrozen):
        load(broker.topic_from("t"), engine, {})
    load(broker.topic_from("t"), engine, {})


def test_what_could_not_be_opened_can_be_asked_for_again(
    engine: FileEngine, tmp_path: Path
) -> None:
    journal = next((tmp_path / "data").rglob("journal_1"))
    stored = journal.read_bytes()
    journal.write_bytes(b"?" + stored[1:])
    broker = known(engine)
    for _ in range(2):
        with pytest.raises(CorruptionError):
            load(broker.topic_from("t"), engine, {})
    journal.write_bytes(stored)
    loaded = load(broker.topic_from("t"), engine, {})
    assert [lane.durable_end for lane in loaded.logs] == [1]


def known(engine: Engine) -> Broker:
    broker = Broker(BrokerOptions())
    broker.restore(dict(engine.state.items("")))
    return broker
