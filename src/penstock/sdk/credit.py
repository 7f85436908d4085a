"""How a consumer's ``max_in_flight`` is split over its connections (NSQ's RDY).

Pure arithmetic. RDY is a standing order: the broker keeps up to that many messages in flight on the
connection until it is told another number. The sum over all connections never passes max_in_flight;
while one connection still has more in flight than its new share, the others get that much less, and
the rest once it has settled some.
"""

from __future__ import annotations

from collections.abc import Sequence


def shares(max_in_flight: int, limits: Sequence[int], turn: int = 0) -> list[int]:
    """What each connection should have; ``limits`` is the most that each one's broker allows.

    As even as the limits permit. What does not divide goes to the connections from number ``turn``
    on, so that with fewer credits than connections each gets its turn as ``turn`` advances.
    """
    count = len(limits)
    result = [0] * count
    left = max_in_flight
    order = [(turn + step) % count for step in range(count)] if count else []
    while left and order:
        even = left // len(order)
        if even == 0:
            for index in order[:left]:
                result[index] += 1
            return result
        still_open: list[int] = []
        for index in order:
            given = min(even, limits[index] - result[index])
            result[index] += given
            left -= given
            if result[index] < limits[index]:
                still_open.append(index)
        order = still_open
    return result


def grants(
    max_in_flight: int, targets: Sequence[int], held: Sequence[int], in_flight: Sequence[int]
) -> list[int]:
    """What each connection may be told now, on its way from ``held`` to its target.

    Less can be told at once. More only as far as neither what others hold nor what they still have
    in flight is promised twice.
    """
    result = [min(target, now) for target, now in zip(targets, held)]
    taken = sum(map(max, result, in_flight))
    for index, target in enumerate(targets):
        own = max(result[index], in_flight[index])
        granted = min(target, max_in_flight - taken + own)
        if granted > result[index]:
            taken += max(granted, in_flight[index]) - own
            result[index] = granted
    return result
