"""L1 of one rank against a model that is simple and slow: any calls in any order."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from kvserving_connector.core.slots import SlotPool

KEYS = [bytes([index]) for index in range(5)]
CAPACITY = 6
SPARE = 2
key = st.sampled_from(KEYS)


class Entry:
    def __init__(self, slots: tuple[int, ...]) -> None:
        self.slots = slots
        self.state = "reserved"
        self.written = False
        self.pins = 0
        self.step = 0
        self.used = 0
        self.applied = False

    @property
    def over(self) -> bool:
        gone = self.state == "forgotten" or (self.state == "leaving" and self.applied)
        return gone and not self.pins and self.written


class Machine(RuleBasedStateMachine):
    """The pool against a list of entries that is searched for everything."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = SlotPool(CAPACITY, spare=SPARE)
        self.entries: dict[bytes, Entry] = {}
        self.lost: list[bytes] = []
        self.missing = 0
        self.step = 0
        self.time = 0

    def _now(self) -> int:
        self.time += 1
        return self.time

    def _free(self) -> int:
        return CAPACITY - sum(len(entry.slots) for entry in self.entries.values())

    def _settle(self) -> None:
        self.entries = {each: entry for each, entry in self.entries.items() if not entry.over}

    def _state(self, each: bytes) -> str:
        return self.entries[each].state if each in self.entries else "none"

    @rule(each=key, count=st.integers(1, 3))
    def put(self, each: bytes, count: int) -> None:
        self.reserve(each, count)
        self.commit(each)

    @rule(each=key, count=st.integers(1, 3))
    def reserve(self, each: bytes, count: int) -> None:
        state = self._state(each)
        if state not in ("none", "forgotten"):
            with pytest.raises(ValueError, match=r"^key: "):
                self.pool.reserve(each, count)
            return
        slots = self.pool.reserve(each, count)
        if state == "forgotten" or count > self._free():
            assert slots is None
            self.missing += count if state == "none" else 0
            return
        assert slots is not None
        assert len(set(slots)) == count
        for entry in self.entries.values():
            assert not set(slots) & set(entry.slots)
        self.entries[each] = Entry(slots)

    @rule(each=key)
    def commit(self, each: bytes) -> None:
        entry = self.entries.get(each)
        if entry is None:
            with pytest.raises(KeyError):
                self.pool.commit(each)
        elif entry.written:
            with pytest.raises(ValueError, match=r"^key: "):
                self.pool.commit(each)
        else:
            assert self.pool.commit(each) is (entry.state == "reserved")
            entry.written = True
            if entry.state == "reserved":
                entry.state, entry.used = "held", self._now()
            self._settle()

    @rule(each=key)
    def discard(self, each: bytes) -> None:
        self.pool.discard(each)
        if each in self.entries:
            entry = self.entries[each]
            if entry.state == "held":
                self.lost = [other for other in self.lost if other != each] + [each]
            entry.state, entry.written = "forgotten", True
            self._settle()

    @rule(each=key)
    def pin(self, each: bytes) -> None:
        if self._state(each) in ("none", "forgotten"):
            with pytest.raises(KeyError):
                self.pool.pin(each)
        else:
            self.pool.pin(each)
            self.entries[each].pins += 1

    @rule(each=key)
    def unpin(self, each: bytes) -> None:
        entry = self.entries.get(each)
        if entry is None or not entry.pins:
            with pytest.raises((KeyError, ValueError)):
                self.pool.unpin(each)
        else:
            self.pool.unpin(each)
            entry.pins -= 1
            self._settle()

    @rule(keys=st.lists(key))
    def touch(self, keys: list[bytes]) -> None:
        self.pool.touch(keys)
        for each in keys:
            if self._state(each) == "held":
                self.entries[each].used = self._now()

    @rule(each=key)
    def revive(self, each: bytes) -> None:
        stays = self._state(each) in ("held", "leaving")
        assert self.pool.revive(each) is stays
        if stays:
            entry = self.entries[each]
            entry.state, entry.applied, entry.used = "held", False, self._now()

    @rule()
    def announce(self) -> None:
        self.step += 1
        lost = [each for each in self.lost if self._state(each) != "held"]
        coming = sum(len(each.slots) for each in self.entries.values() if each.state == "leaving" and not each.pins)
        room = self._free() + coming
        idle = [each for each in self.entries if self._state(each) == "held" and not self.entries[each].pins]
        victims = []
        for each in sorted(idle, key=lambda other: self.entries[other].used):
            if room >= min(CAPACITY, max(SPARE, self.missing)):
                break
            victims.append(each)
            room += len(self.entries[each].slots)
            self.entries[each].state, self.entries[each].step = "leaving", self.step
        assert self.pool.announce(self.step) == (*lost, *victims)
        self.lost, self.missing = [], 0

    @precondition(lambda self: self.step > 0)
    @rule(data=st.data())
    def applied(self, data: st.DataObject) -> None:
        step = data.draw(st.integers(max(0, self.step - 3), self.step))
        self.pool.applied(step)
        for entry in self.entries.values():
            if entry.state == "leaving" and entry.step <= step:
                entry.applied = True
        self._settle()

    @rule()
    def clear(self) -> None:
        self.pool.clear()
        for entry in self.entries.values():
            entry.state = "forgotten"
        self.lost, self.missing = [], 0
        self._settle()

    @invariant()
    def agrees(self) -> None:
        self.pool.check()
        assert self.pool.used == CAPACITY - self._free()
        held = {each for each in self.entries if self._state(each) == "held"}
        assert self.pool.held() == held
        assert len(self.pool) == len(held)
        for each in KEYS:
            readable = self._state(each) in ("held", "leaving")
            assert self.pool.get(each) == (self.entries[each].slots if readable else None)
            assert self.pool.leaving(each) is (self._state(each) == "leaving")


def test_the_pool_does_what_a_simple_model_does() -> None:
    run_state_machine_as_test(Machine, settings=settings(max_examples=300, stateful_step_count=60, deadline=None))
