"""How `check` and `dump` come to a data directory, and what they say when they cannot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from penstock.config import nearest
from penstock.errors import ConfigError, OperatingError
from penstock.storage.file.survey import Survey


@contextmanager
def surveyed(path: str) -> Iterator[Survey]:
    """The directory as it is, nothing locked; what the system refuses is said in one sentence."""
    try:
        yield Survey(path)
    except BrokenPipeError:
        raise  # whoever reads our output has seen enough
    except OSError as error:
        raise OperatingError(
            f"{error.filename or path}: {error.strerror or error}. Nothing was changed; check the "
            "disk, and that you may read what the broker wrote"
        ) from error


def topics_of(survey: Survey, state: Iterable[str], topic: str | None) -> list[str]:
    """All topics that have files or that the state knows, or the one that was asked for."""
    topics = {*survey.topics(), *[key[6:] for key in state if key.startswith("topic/")]}
    if topic is None:
        return sorted(topics)
    if topic not in topics:
        raise ConfigError(f"{survey.root} holds no topic '{topic}'{nearest(topic, topics)}")
    return [topic]
