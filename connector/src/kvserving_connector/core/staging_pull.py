"""Reading staged prompts through a few chunks of a pool: pure logic over a transport, in turns.

Every pull looks at its slot's header, reads rows into chunks, has each chunk scattered into the engine's blocks, looks
at the header again, and has ended when nothing of it is under way. Chunks are shared: the pulls that came first get
them first, but while several want some, none gets more than half, so that one that stalls does not hold up all.

Nothing but a scatter writes into the engine's blocks, and a pull does not end before its scatters have. A read that is
given up keeps its chunk until it has come to an end by itself, and never costs a block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from kvserving_connector.core.staging import Slot

# Between two looks at a header that is not whole yet, and how long a slot may take until it is.
RETRY_SECONDS = 0.002
PATIENCE_SECONDS = 5.0
# A pull of which nothing moves fails later while others read from the same engine: they share what joins them.
SHARED_STALLS = 6


class TransportError(Exception):
    """A read failed; the message says why."""


class State(Enum):
    """How far a pull is. Only the last two are final."""

    OPENING = "opening"
    """Its slot's header is not seen to be whole yet."""
    READING = "reading"
    """It has rows to ask for."""
    ARRIVING = "arriving"
    """Its last rows are on their way."""
    CHECKING = "checking"
    """All rows are here; the header must still be the same."""
    VERIFIED = "verified"
    """It was the same; the last rows are being copied."""
    DONE = "done"
    FAILED = "failed"


@dataclass(eq=False)
class Pull:
    """One prompt to read: the last rows of its slot go into ``blocks``, which are as many or fewer."""

    peer: str
    slot: Slot
    blocks: Sequence[int]
    notify: bytes
    state: State = State.OPENING
    reason: str = ""
    reads: int = 0
    waited: float = 0.0
    """Seconds without a chunk while it could have read."""
    began: float = 0.0
    ended: float = 0.0
    _next: int = 0
    _moved: float = 0.0
    _look: float = 0.0
    _wants: float | None = None
    _looking: int = 0
    _reading: int = 0
    _copying: int = 0

    @property
    def first(self) -> int:
        """The first row to read; those before it are in the engine's prefix cache."""
        return self.slot.rows - len(self.blocks)

    @property
    def bytes(self) -> int:
        """Bytes to read."""
        return len(self.blocks) * self.slot.row_bytes

    @property
    def final(self) -> bool:
        """Whether it has ended, and nothing of it writes into its blocks any more."""
        return self.state in (State.DONE, State.FAILED)


class Transport(Protocol):
    """What moves the bytes. ``cell`` and ``chunk`` number places that nobody else uses meanwhile.

    Handles are the transport's own. Beginning and asking for the end of a read may raise TransportError. After ``done``
    has raised it, ``settled`` is asked until nothing writes the place any more.
    """

    def read_header(self, pull: Pull, cell: int) -> Any:
        """Begin to read the slot's header into a cell."""

    def read_rows(self, pull: Pull, first: int, count: int, chunk: int) -> Any:
        """Begin to read rows into a chunk."""

    def done(self, handle: Any) -> bool:
        """Whether a read has ended well."""

    def settled(self, handle: Any) -> bool:
        """Whether nothing writes the place of a read that was given up any more."""

    def generations(self, cell: int) -> tuple[int, int]:
        """Return the two words of the header in a cell."""

    def scatter(self, pull: Pull, row: int, count: int, chunk: int) -> Any:
        """Begin to copy rows of a chunk into the blocks from ``pull.blocks[row]`` on."""

    def scattered(self, handle: Any) -> bool:
        """Whether a copy has ended."""

    def notify(self, pull: Pull) -> None:
        """Tell the other side that the slot was read."""


@dataclass(eq=False)
class _Flight:
    """A read or a copy under way, and the place that it takes."""

    pull: Pull
    handle: Any
    place: int
    row: int = 0
    count: int = 0


class Pipeline:
    """All pulls of one rank. For one thread."""

    def __init__(
        self, transport: Transport, *, chunks: int, cells: int, chunk_bytes: int, stall_seconds: float
    ) -> None:
        """Take the number of chunks and their size, and of cells, which hold a header each.

        A pull of which nothing moves for ``stall_seconds`` fails, while others read from the same engine later.
        """
        self._transport = transport
        self._chunk_bytes = chunk_bytes
        self._stall_seconds = stall_seconds
        self._all_chunks = chunks
        self._chunks = deque(range(chunks))
        self._cells = deque(range(cells))
        self._pulls: list[Pull] = []
        self._headers: list[_Flight] = []
        self._reads: list[_Flight] = []
        self._copies: list[_Flight] = []
        self._given_up: list[tuple[_Flight, deque[int]]] = []
        self._heard: dict[str, float] = {}

    @property
    def idle(self) -> bool:
        """Whether nothing is under way, reads that were given up included."""
        return not self._pulls and not self._given_up

    def submit(self, pull: Pull, now: float) -> None:
        """Take a pull. One that cannot be is failed at once."""
        pull.began = pull._moved = now
        if not 1 <= len(pull.blocks) <= pull.slot.rows:
            self._end(pull, now, f"{len(pull.blocks)} blocks cannot be filled from {pull.slot.rows} rows")
        elif pull.slot.row_bytes > self._chunk_bytes:
            self._end(pull, now, f"a row of {pull.slot.row_bytes} bytes is larger than a chunk of {self._chunk_bytes}")
        else:
            self._pulls.append(pull)

    def cancel(self, reason: str) -> None:
        """Fail all pulls; each ends in a later turn, when nothing of it writes any more."""
        for pull in self._pulls:
            self._fail(pull, reason)

    def turn(self, now: float) -> bool:
        """Do what can be done now; return whether anything was."""
        moved = self._collect_headers(now)
        moved |= self._collect_copies(now)
        moved |= self._collect_given_up()
        landed = self._collect_reads(now)
        # Before what has arrived is copied: the link would be idle meanwhile.
        moved |= self._look_at_headers(now)
        moved |= self._read(now)
        for flight in landed:
            flight.handle = self._transport.scatter(flight.pull, flight.row, flight.count, flight.place)
        self._watch(now)
        return self._finish(now) or bool(landed) or moved

    # What has ended

    def _collect_headers(self, now: float) -> bool:
        moved = False
        for flight in list(self._headers):
            well = self._landed(flight)
            if well is None:
                continue
            moved = True
            self._headers.remove(flight)
            flight.pull._looking -= 1
            if well:
                words = self._transport.generations(flight.place)
                self._cells.append(flight.place)
                flight.pull._moved = self._heard[flight.pull.peer] = now
                self._judge(flight.pull, words, now)
            else:
                self._given_up.append((flight, self._cells))
        return moved

    def _collect_reads(self, now: float) -> list[_Flight]:
        """Return those that arrived; each is among the copies, and its copy is to begin in this turn."""
        landed = []
        for flight in list(self._reads):
            well = self._landed(flight)
            if well is None:
                continue
            pull = flight.pull
            self._reads.remove(flight)
            pull._reading -= 1
            if not well:
                self._given_up.append((flight, self._chunks))
                continue
            pull._moved = self._heard[pull.peer] = now
            landed.append(flight)
            self._copies.append(flight)
            pull._copying += 1
            if pull.state is State.ARRIVING and not pull._reading:
                pull.state, pull._look = State.CHECKING, now
        return landed

    def _collect_copies(self, now: float) -> bool:
        over = [flight for flight in self._copies if self._transport.scattered(flight.handle)]
        for flight in over:
            self._copies.remove(flight)
            self._chunks.append(flight.place)
            flight.pull._copying -= 1
            flight.pull._moved = now
        return bool(over)

    def _collect_given_up(self) -> bool:
        over = [each for each in self._given_up if self._transport.settled(each[0].handle)]
        for each in over:
            self._given_up.remove(each)
            each[1].append(each[0].place)
        return bool(over)

    def _landed(self, flight: _Flight) -> bool | None:
        """Whether a read ended well; None while it goes on."""
        try:
            return True if self._transport.done(flight.handle) else None
        except TransportError as error:
            self._fail(flight.pull, str(error))
            return False

    def _judge(self, pull: Pull, words: tuple[int, int], now: float) -> None:
        first, second = words
        wanted = pull.slot.generation
        if pull.state is State.CHECKING:
            if first != wanted:
                self._fail(pull, "its slot was given to another prompt while it was read: the lease was over")
                return
            pull.state = State.VERIFIED
            self._transport.notify(pull)
        elif first == second == wanted:
            pull.state, pull._wants = State.READING, now
        elif first > wanted:
            self._fail(pull, "its slot was given to another prompt before it was read: the lease was over")
        elif now - pull.began > PATIENCE_SECONDS:
            self._fail(pull, f"its slot did not hold it within {PATIENCE_SECONDS:g} s")
        else:
            pull._look = now + RETRY_SECONDS

    # What begins

    def _look_at_headers(self, now: float) -> bool:
        moved = False
        for pull in self._pulls:
            due = pull.state in (State.OPENING, State.CHECKING) and not pull._looking and now >= pull._look
            if not due or pull.reason or not self._cells:
                continue
            cell = self._cells.popleft()
            try:
                handle = self._transport.read_header(pull, cell)
            except TransportError as error:
                self._cells.append(cell)
                self._fail(pull, str(error))
                continue
            pull._looking += 1
            self._headers.append(_Flight(pull, handle, cell))
            moved = True
        return moved

    def _read(self, now: float) -> bool:
        wanting = [pull for pull in self._pulls if pull.state is State.READING and not pull.reason]
        share = self._all_chunks if len(wanting) == 1 else max(1, self._all_chunks // 2)
        before = len(self._chunks)
        for pull in wanting:
            while self._chunks and pull._reading + pull._copying < share and pull.state is State.READING:
                if not self._read_rows(pull, now):
                    break
        for pull in wanting:
            if pull.state is State.READING and pull._wants is None and not pull._reading + pull._copying:
                pull._wants = now
        return len(self._chunks) < before

    def _read_rows(self, pull: Pull, now: float) -> bool:
        row = pull._next
        count = min(self._chunk_bytes // pull.slot.row_bytes, len(pull.blocks) - row)
        chunk = self._chunks.popleft()
        try:
            handle = self._transport.read_rows(pull, pull.first + row, count, chunk)
        except TransportError as error:
            self._chunks.append(chunk)
            self._fail(pull, str(error))
            return False
        self._reads.append(_Flight(pull, handle, chunk, row, count))
        pull._reading += 1
        pull.reads += 1
        pull._next += count
        pull._moved = now
        if pull._wants is not None:
            pull.waited += now - pull._wants
            pull._wants = None
        if pull._next == len(pull.blocks):
            pull.state = State.ARRIVING
        return True

    # How it ends

    def _watch(self, now: float) -> None:
        busy = bool(self._reads or self._copies)
        for pull in self._pulls:
            if busy and pull.state is State.READING and not pull._reading + pull._copying:
                pull._moved = now
            elif self._stalled(pull, now):
                self._fail(pull, f"nothing of it moved for {now - pull._moved:.0f} s")
        for flights, places in ((self._reads, self._chunks), (self._headers, self._cells)):
            for flight in [flight for flight in flights if flight.pull.reason]:
                flights.remove(flight)
                self._given_up.append((flight, places))
        for pull in self._pulls:
            if pull.reason:
                pull._reading = pull._looking = 0

    def _stalled(self, pull: Pull, now: float) -> bool:
        heard = max(pull._moved, self._heard.get(pull.peer, 0.0))
        return now - heard > self._stall_seconds or now - pull._moved > SHARED_STALLS * self._stall_seconds

    def _finish(self, now: float) -> bool:
        over = [pull for pull in self._pulls if not pull._copying and (pull.reason or pull.state is State.VERIFIED)]
        for pull in over:
            self._pulls.remove(pull)
            self._end(pull, now, pull.reason)
        return bool(over)

    @staticmethod
    def _fail(pull: Pull, reason: str) -> None:
        pull.reason = pull.reason or reason

    @staticmethod
    def _end(pull: Pull, now: float, reason: str) -> None:
        pull.reason, pull.ended = reason, now
        # Last: another thread reads the state and then the rest.
        pull.state = State.FAILED if reason else State.DONE
