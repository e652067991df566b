"""One rank's L1: which part of which span lies in which slots of host memory, and which part leaves next.

A part leaves in two steps, because the scheduler promises from what the ranks said that they hold. ``announce`` names
the victims, which go into the rank's report; their slots are reused only after ``applied`` says that the scheduler has
dropped them. Whatever it promised before is pinned by then. So no promise is false because of an eviction.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

SPARE_SHARE = 16
"""One slot in so many is kept free ahead of need."""


class _State(Enum):
    RESERVED = auto()
    HELD = auto()
    LEAVING = auto()
    FORGOTTEN = auto()
    """Unreadable, but something still reads or writes its slots."""
    FREED = auto()


@dataclass(eq=False, slots=True)
class _Part:
    key: bytes
    slots: tuple[int, ...]
    state: _State = _State.RESERVED
    pins: int = 0
    left_in: int = -1
    """Step whose report named the part as a victim."""
    applied: bool = False
    written: bool = False


class SlotPool:
    """The slots of one rank and an index by key in order of use. Pure; for one thread.

    Every call costs O(1) per part and slot that it names, besides ``held``, ``clear`` and ``check``; ``announce``
    steps over pinned parts that were used longer ago than its victims.
    """

    def __init__(self, capacity: int, spare: int | None = None) -> None:
        """Make a pool of ``capacity`` free slots, numbered from 0.

        ``spare``: slots that victims are announced for ahead of need; one in ``SPARE_SHARE`` when left out.
        Raises ValueError unless 0 <= ``spare`` <= ``capacity`` and ``capacity`` is at least 1.
        """
        if capacity < 1:
            raise ValueError(f"capacity: {capacity} must be at least 1 slot; give L1 more memory")
        if spare is None:
            spare = capacity // SPARE_SHARE
        if not 0 <= spare <= capacity:
            raise ValueError(f"spare: {spare} must be from 0 to the pool's {capacity} slots")
        self.capacity = capacity
        self._spare = spare
        # Taken from the end: the lowest first.
        self._free = list(range(capacity - 1, -1, -1))
        self._parts: dict[bytes, _Part] = {}
        self._held: OrderedDict[bytes, _Part] = OrderedDict()
        self._victims: deque[tuple[int, _Part]] = deque()
        # Keys that were held until discard(), in order; a dict, as a key may be forgotten twice between reports.
        self._lost: dict[bytes, None] = {}
        self._missing = 0
        self._idle = 0
        self._coming = 0
        self._last_step = -1

    @property
    def used(self) -> int:
        """Slots that are not free."""
        return self.capacity - len(self._free)

    def __len__(self) -> int:
        """Return the number of readable parts that are not leaving."""
        return len(self._held)

    def held(self) -> frozenset[bytes]:
        """Return the keys of the readable parts that are not leaving."""
        return frozenset(self._held)

    def reserve(self, key: bytes, count: int, *, again: bool = True) -> tuple[int, ...] | None:
        """Take ``count`` slots for a part that is about to be written; nobody reads it before ``commit``.

        Returns None when there is no room now: the next ``announce`` makes some if ``again`` says that it will be asked
        for. Also None while a forgotten part of the same key is pinned or being written. Raises ValueError when the key
        is reserved or readable (ask ``get`` first, ``revive`` a leaving part), and for a count that no pool of this
        size has.
        """
        if not 1 <= count <= self.capacity:
            raise ValueError(f"count: {count} slots for one part must be from 1 to the pool's {self.capacity}")
        known = self._parts.get(key)
        if known is not None:
            if known.state is _State.FORGOTTEN:
                return None
            raise ValueError(f"key: the part is {known.state.name.lower()} already; ask get() before reserve()")
        if count > len(self._free):
            self._missing += count if again else 0
            return None
        slots = tuple(self._free[: -count - 1 : -1])
        del self._free[-count:]
        self._parts[key] = _Part(key, slots)
        return slots

    def commit(self, key: bytes) -> bool:
        """Note that a reserved part is written: readable from now on, most recently used.

        Returns False, and the part is gone, when ``clear`` came first. Raises KeyError for an unknown key, ValueError
        for a part that is not being written.
        """
        part = self._parts[key]
        if part.written:
            raise ValueError("key: the part is written already; commit() follows reserve()")
        part.written = True
        if part.state is _State.FORGOTTEN:
            self._free_when_unused(part)
            return False
        self._hold(part)
        return True

    def discard(self, key: bytes) -> None:
        """Forget a part that is wrong or was not written: unreadable at once, its slots free when unpinned.

        A key that was held is named by the next ``announce``. For a reserved part call this once nothing writes
        its slots any more, or while they are pinned. An unknown key is left alone.
        """
        part = self._parts.get(key)
        if part is None:
            return
        if part.state is _State.HELD:
            self._lost[key] = None
        part.written = True
        self._forget(part)

    def get(self, key: bytes) -> tuple[int, ...] | None:
        """Return the slots of a readable part, also of one that is leaving; None otherwise. Not a use of the part."""
        part = self._parts.get(key)
        return part.slots if part is not None and part.state in (_State.HELD, _State.LEAVING) else None

    def leaving(self, key: bytes) -> bool:
        """Return whether the part was announced as a victim and still is readable."""
        part = self._parts.get(key)
        return part is not None and part.state is _State.LEAVING

    def pin(self, key: bytes) -> None:
        """Keep the part's slots until as many calls of ``unpin``, whatever happens to the part.

        A pinned part is no victim; a victim that is pinned before ``applied`` stays readable. Raises KeyError for a
        part that is neither reserved nor readable.
        """
        part = self._parts[key]
        if part.state is _State.FORGOTTEN:
            raise KeyError(key)
        self._count(part, -1)
        part.pins += 1
        self._count(part, 1)

    def unpin(self, key: bytes) -> None:
        """Take back one ``pin``. Raises KeyError for an unknown key, ValueError for a part without pins."""
        part = self._parts[key]
        if not part.pins:
            raise ValueError("key: the part is not pinned; unpin() follows pin()")
        self._count(part, -1)
        part.pins -= 1
        self._count(part, 1)
        self._free_when_unused(part)

    def touch(self, keys: Iterable[bytes]) -> None:
        """Note a use of the parts, the last of them the most recent; keys that are not held are left out."""
        held = self._held
        for key in keys:
            if key in held:
                held.move_to_end(key)

    def revive(self, key: bytes) -> bool:
        """Keep a part that is leaving, most recently used; report it as present afterwards.

        Returns whether the part is readable and stays, as a held part does anyway.
        """
        part = self._parts.get(key)
        if part is None or part.state not in (_State.HELD, _State.LEAVING):
            return False
        if part.state is _State.LEAVING:
            self._count(part, -1)
            self._hold(part)
        else:
            self._held.move_to_end(key)
        return True

    def announce(self, step: int) -> tuple[bytes, ...]:
        """Return what leaves with the report of ``step``: forgotten parts, then new victims, least recently used first.

        Victims are unpinned; there are as many as it takes for free and leaving slots to reach ``spare`` and what
        ``reserve`` could not give since the last call. They stay readable until ``applied``. No key that is returned
        is held: where the same report says that a part was saved, the loss is the later news. Raises ValueError for a
        step before the last one.
        """
        if step < self._last_step:
            raise ValueError(f"step: {step} comes after {self._last_step}; reports are numbered upwards")
        self._last_step = step
        gone = [key for key in self._lost if key not in self._held]
        self._lost.clear()
        wanted = min(self.capacity, max(self._spare, self._missing)) - len(self._free) - self._coming
        self._missing = 0
        victims: list[_Part] = []
        if wanted > 0 and self._idle:
            for part in self._unpinned():
                victims.append(part)
                wanted -= len(part.slots)
                if wanted <= 0:
                    break
        for part in victims:
            self._count(part, -1)
            del self._held[part.key]
            part.state, part.left_in = _State.LEAVING, step
            self._count(part, 1)
            self._victims.append((step, part))
        return (*gone, *(part.key for part in victims))

    def applied(self, step: int) -> None:
        """Free the victims of the reports up to ``step``, which the scheduler has dropped; pinned ones when unpinned.

        What the scheduler asked for before it dropped them must be pinned before this call.
        """
        while self._victims and self._victims[0][0] <= step:
            left_in, part = self._victims.popleft()
            # Not one that was revived, nor one that was revived and announced again later.
            if part.state is _State.LEAVING and part.left_in == left_in:
                part.applied = True
                self._free_when_unused(part)

    def clear(self) -> None:
        """Forget all parts, for a scheduler that has dropped them: ``announce`` names none of them.

        Slots that are pinned stay until unpinned, those being written until ``commit`` or ``discard``.
        """
        for part in list(self._parts.values()):
            self._forget(part)
        self._lost.clear()
        self._victims.clear()
        self._missing = 0

    def check(self) -> None:
        """Raise AssertionError when an invariant is broken, such as a slot that is free and used, or in no state."""
        taken = [slot for part in self._parts.values() for slot in part.slots]
        assert sorted([*self._free, *taken]) == list(range(self.capacity)), "each slot is free or of one part"
        for key, part in self._parts.items():
            assert part.key == key, "parts are under their key"
            assert part.state is not _State.FREED, "freed parts are out of the index"
            assert (part.state is _State.HELD) == (self._held.get(key) is part), "held parts are in order of use"
            if part.state is _State.FORGOTTEN or part.applied:
                assert part.pins or not part.written, "parts that nothing uses are freed"
        assert self._held.keys() <= self._parts.keys(), "parts in order of use are in the index"
        pending = {part for step, part in self._victims if part.left_in == step}
        leaving = {part for part in self._parts.values() if part.state is _State.LEAVING}
        assert all(part.applied or part in pending for part in leaving), "victims wait for their report"
        unpinned = [part for part in self._parts.values() if not part.pins]
        for state, count in ((_State.HELD, self._idle), (_State.LEAVING, self._coming)):
            assert count == sum(len(part.slots) for part in unpinned if part.state is state), f"{state.name} slots"

    def _unpinned(self) -> Iterator[_Part]:
        """Yield the held parts that are not pinned, least recently used first."""
        left = self._idle
        for part in self._held.values():
            if not part.pins:
                yield part
                left -= len(part.slots)
                if not left:
                    return

    def _count(self, part: _Part, sign: int) -> None:
        """Add the part's slots to, or take them from, those that may leave and those that are about to."""
        if part.pins:
            return
        if part.state is _State.HELD:
            self._idle += sign * len(part.slots)
        elif part.state is _State.LEAVING:
            self._coming += sign * len(part.slots)

    def _hold(self, part: _Part) -> None:
        part.state, part.applied = _State.HELD, False
        self._held[part.key] = part
        self._count(part, 1)

    def _forget(self, part: _Part) -> None:
        self._count(part, -1)
        self._held.pop(part.key, None)
        part.state = _State.FORGOTTEN
        self._free_when_unused(part)

    def _free_when_unused(self, part: _Part) -> None:
        gone = part.state is _State.FORGOTTEN or (part.state is _State.LEAVING and part.applied)
        if not gone or part.pins or not part.written:
            return
        self._count(part, -1)
        part.state = _State.FREED
        del self._parts[part.key]
        self._free.extend(reversed(part.slots))
