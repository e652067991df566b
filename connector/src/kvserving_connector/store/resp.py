"""One connection to a Valkey or Redis server: RESP2, a deadline on every call, bodies received in place.

Client libraries receive a body in a buffer of theirs, copy it to a bytes object and leave the copy to the caller's
buffer to the caller, and their timeouts hold per read, so that a server that trickles never times out.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable, Sequence

from kvserving_connector.store.address import Address, Credentials
from kvserving_connector.store.client import Part, Reason, StoreFault, remaining
from kvserving_connector.store.outage import STALL_SECONDS

_TIMEVAL = struct.Struct("@ll")
_BUFFER_BYTES = 16384
_MAX_LINE = 8192
_MAX_ITEMS = 1_000_000
_MAX_DEPTH = 8

_REASONS = {
    "OOM": Reason.FULL,
    "READONLY": Reason.READ_ONLY,
    "NOAUTH": Reason.DENIED,
    "WRONGPASS": Reason.DENIED,
    "NOPERM": Reason.DENIED,
    "LOADING": Reason.UNAVAILABLE,
    "BUSY": Reason.UNAVAILABLE,
    "CLUSTERDOWN": Reason.UNAVAILABLE,
    "MASTERDOWN": Reason.UNAVAILABLE,
    "TRYAGAIN": Reason.UNAVAILABLE,
    "ASK": Reason.UNAVAILABLE,
    "MISCONF": Reason.READ_ONLY,
    "NOREPLICAS": Reason.READ_ONLY,
    "WRONGTYPE": Reason.FORMAT,
}
_OF_KEY = frozenset({"ASK", "MOVED", "TRYAGAIN", "CROSSSLOT", "WRONGTYPE"})
_UNSERVED_SLOT = "Hash slot not served"


class ServerError(StoreFault):
    """An error that the server answered; the connection is still good. ``code`` is the first word of the answer."""

    def __init__(self, message: str) -> None:
        self.code, _, self.rest = message.partition(" ")
        super().__init__(_REASONS.get(self.code, Reason.PROTOCOL), self.code)

    @property
    def of_key(self) -> bool:
        """Whether it is about the key that was asked for, so that it says nothing of other keys."""
        return self.code in _OF_KEY or (self.code == "CLUSTERDOWN" and self.rest.startswith(_UNSERVED_SLOT))


class Connection:
    """A connection, for one thread at a time. After any StoreFault but ServerError it is unusable."""

    def __init__(self, address: Address, credentials: Credentials, deadline: float) -> None:
        """Connect and authenticate. Raises StoreFault: UNREACHABLE, TIMEOUT, DENIED."""
        self._buffer = bytearray(_BUFFER_BYTES)
        self._start = self._end = 0
        # The line before the last body and the length it told: objects of a store are all as long.
        self._usual = bytearray()
        self._usual_length = 0
        self._limits: dict[int, int] = {}
        try:
            self._socket = _connect(address, credentials, min(remaining(deadline), STALL_SECONDS))
        except TimeoutError:
            raise StoreFault(Reason.TIMEOUT, f"connecting to {address}") from None
        except ssl.SSLCertVerificationError as error:
            raise StoreFault(Reason.DENIED, f"certificate of {address}: {error.verify_message}") from None
        except OSError as error:
            raise StoreFault(Reason.UNREACHABLE, f"{address}: {error.strerror or type(error).__name__}") from None
        except (ValueError, OverflowError):
            # What the resolver's encoding refuses: an empty label, one longer than 63 characters, a port beyond 65535.
            raise StoreFault(Reason.UNREACHABLE, f"{address}: no host name or port that can be connected to") from None
        # A plain socket blocks in the kernel, with the kernel's timeouts: one call and one wait for the interpreter's
        # lock for a whole body. TLS reads through a library, whose timeouts are Python's.
        self._plain = not isinstance(self._socket, ssl.SSLSocket)
        if self._plain:
            self._socket.settimeout(None)
        try:
            self._authenticate(credentials, deadline)
        except BaseException:
            self.close()
            raise

    def _authenticate(self, credentials: Credentials, deadline: float) -> None:
        try:
            password = credentials.password()
        except OSError as error:
            raise StoreFault(Reason.DENIED, f"the password file cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise StoreFault(Reason.DENIED, "the password file is not UTF-8 text") from None
        if not password:
            return
        try:
            words = [word.encode() for word in (credentials.username, password) if word]
        except UnicodeEncodeError:
            raise StoreFault(Reason.DENIED, "the user or the password is not UTF-8 text") from None
        self.send(encode(b"AUTH", *words), deadline)
        try:
            self.reply(deadline)
        except ServerError:
            # Whatever the words of the refusal: "ERR AUTH called without any password configured" counts as well.
            raise StoreFault(Reason.DENIED, "the server refuses the user or the password") from None

    def fileno(self) -> int:
        """Return the descriptor, to wait until an answer begins; only right after ``send``, with nothing buffered."""
        return self._socket.fileno()

    def send(self, parts: Sequence[Part], deadline: float) -> None:
        """Send all parts. Raises StoreFault."""
        try:
            for part in parts:
                view = memoryview(part)
                while view:
                    self._limit(socket.SO_SNDTIMEO, deadline)
                    view = view[self._socket.send(view) :]
        except (TimeoutError, BlockingIOError):
            raise StoreFault(Reason.TIMEOUT, "sending") from None
        except OSError as error:
            raise _lost(error) from None

    def reply(self, deadline: float) -> int | bytes | str | list[object] | None:
        """Receive one reply. Raises ServerError for an error that the server answers, StoreFault otherwise.

        An error inside an array is returned as a ServerError in the list.
        """
        value = self._value(deadline)
        if isinstance(value, ServerError):
            raise value
        return value  # type: ignore[return-value]

    def bulk_into(self, into: memoryview, deadline: float) -> int | None:
        """Receive one bulk string in ``into`` and return its length; None when the server has no such key.

        Raises StoreFault LENGTH when it is longer than ``into``; the connection is then unusable.
        """
        begun = self._begin_usual(into, deadline) if self._start == self._end else 0
        if begun:
            return self._finish(into, self._usual_length, begun, deadline)
        line = self._line(deadline)
        if line[:1] != b"$":
            if line[:1] == b"-":
                raise ServerError(line[1:].decode("utf-8", "replace"))
            raise StoreFault(Reason.PROTOCOL, "no bulk string where one is due")
        length = _number(line[1:])
        if length == -1:
            return None
        if not 0 <= length <= len(into):
            raise StoreFault(Reason.LENGTH, "an object longer than a chunk")
        have = self._take(into[: length + 2 if len(into) >= length + 2 else length])
        if self._plain and length:
            self._usual, self._usual_length = bytearray(line + b"\r\n"), length
        return self._finish(into, length, have, deadline)

    def _begin_usual(self, into: memoryview, deadline: float) -> int:
        """Receive the line and the start of a body in one call, each in its place, if the line is the last body's.

        Returns the number of bytes in ``into``. With 0 what came is in the buffer, to be read as any reply.
        """
        usual = self._usual
        if not usual or len(into) < self._usual_length + 2:
            return 0
        line = bytearray(len(usual))
        body = into[: self._usual_length + 2]
        number = self._receive_parts([line, body], deadline)
        if line == usual and number > len(usual):
            return number - len(usual)
        came = b"".join((line[:number], body[: max(0, number - len(line))]))
        if len(came) > len(self._buffer):
            self._buffer = bytearray(came)
        else:
            self._buffer[: len(came)] = came
        self._start, self._end = 0, len(came)
        return 0

    def _finish(self, into: memoryview, length: int, have: int, deadline: float) -> int:
        """Receive the rest of a body of which ``into`` has the start, and its end; return its length."""
        wanted = length + 2
        roomy = len(into) >= wanted
        while have < (wanted if roomy else length):
            have += self._receive(into[have : wanted if roomy else length], deadline, whole=True)
        if (bytes(into[length:wanted]) if roomy else self._exactly(2, deadline)) != b"\r\n":
            raise StoreFault(Reason.PROTOCOL, "a bulk string without its end")
        return length

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._socket.close()

    def _value(self, deadline: float, depth: int = 0) -> object:
        line = self._line(deadline)
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest.decode("utf-8", "replace")
        if kind == b"-":
            return ServerError(rest.decode("utf-8", "replace"))
        if kind == b":":
            return _number(rest)
        if kind == b"$":
            length = _number(rest)
            if length == -1:
                return None
            if not 0 <= length <= _BUFFER_BYTES:
                raise StoreFault(Reason.PROTOCOL, "a reply longer than any that is asked for")
            body = self._exactly(length + 2, deadline)
            return body[:-2]
        if kind == b"*":
            number = _number(rest)
            if not -1 <= number <= _MAX_ITEMS:
                raise StoreFault(Reason.PROTOCOL, "an array longer than any that is asked for")
            if depth == _MAX_DEPTH:
                raise StoreFault(Reason.PROTOCOL, "arrays in arrays beyond any that are asked for")
            return [self._value(deadline, depth + 1) for _ in range(number)] if number >= 0 else None
        raise StoreFault(Reason.PROTOCOL, "a reply of an unknown kind")

    def _line(self, deadline: float) -> bytes:
        searched = self._start
        while (at := self._buffer.find(b"\r\n", searched, self._end)) < 0:
            if self._end - self._start > _MAX_LINE:
                raise StoreFault(Reason.PROTOCOL, "a line without end")
            self._compact()
            searched = max(self._start, self._end - 1)
            self._end += self._receive(memoryview(self._buffer)[self._end :], deadline)
        line = bytes(self._buffer[self._start : at])
        self._start = at + 2
        return line

    def _exactly(self, number: int, deadline: float) -> bytes:
        body = bytearray(number)
        view = memoryview(body)
        have = self._take(view)
        while have < number:
            have += self._receive(view[have:], deadline)
        return bytes(body)

    def _take(self, into: memoryview) -> int:
        """Move buffered bytes to ``into``."""
        number = min(len(into), self._end - self._start)
        into[:number] = memoryview(self._buffer)[self._start : self._start + number]
        self._start += number
        return number

    def _compact(self) -> None:
        if self._start:
            self._buffer[: self._end - self._start] = self._buffer[self._start : self._end]
            self._start, self._end = 0, self._end - self._start

    def _receive(self, into: memoryview, deadline: float, *, whole: bool = False) -> int:
        """Receive some bytes, or ``whole``: all of them unless the server stalls or the connection ends."""
        flags = socket.MSG_WAITALL if whole and self._plain else 0
        return self._received(lambda: self._socket.recv_into(into, 0, flags), deadline)

    def _receive_parts(self, parts: Sequence[bytearray | memoryview], deadline: float) -> int:
        """Receive some bytes, the first part before the second. Not for TLS."""
        return self._received(lambda: self._socket.recvmsg_into(parts)[0], deadline)

    def _received(self, call: Callable[[], int], deadline: float) -> int:
        try:
            self._limit(socket.SO_RCVTIMEO, deadline)
            number = call()
        except (TimeoutError, BlockingIOError):
            raise StoreFault(Reason.TIMEOUT, "receiving") from None
        except OSError as error:
            raise _lost(error) from None
        if number == 0:
            raise StoreFault(Reason.UNREACHABLE, "the server closed the connection")
        return number

    def _limit(self, option: int, deadline: float) -> None:
        seconds = min(remaining(deadline), STALL_SECONDS)
        if self._plain:
            # Zero would mean no limit.
            micros = max(1, int(seconds * 1e6))
            if self._limits.get(option) == micros:
                return
            self._limits[option] = micros
            self._socket.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(micros // 1_000_000, micros % 1_000_000))
        else:
            self._socket.settimeout(seconds)


def encode(*words: Part) -> list[Part]:
    """Return a command as parts to send: short words joined, long ones as they are, never copied."""
    parts: list[Part] = []
    text = bytearray(b"*%d\r\n" % len(words))
    for word in words:
        text += b"$%d\r\n" % len(word)
        if len(word) <= 512:
            text += word
        else:
            parts += [bytes(text), word]
            text.clear()
        text += b"\r\n"
    return [*parts, bytes(text)]


def encode_object(words: Sequence[bytes], body: Sequence[Part]) -> list[Part]:
    """Return a command whose last word is ``body``, in parts that are not copied."""
    text = bytearray(b"*%d\r\n" % (len(words) + 1))
    for word in words:
        text += b"$%d\r\n%b\r\n" % (len(word), word)
    text += b"$%d\r\n" % sum(len(part) for part in body)
    return [bytes(text), *body, b"\r\n"]


def _connect(address: Address, credentials: Credentials, seconds: float) -> socket.socket:
    plain = socket.create_connection((address.host, address.port), timeout=seconds)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not address.tls:
            return plain
        return _tls(credentials).wrap_socket(plain, server_hostname=address.host)
    except BaseException:
        plain.close()
        raise


def _tls(credentials: Credentials) -> ssl.SSLContext:
    # Comments around a certificate may be in any script, which the library does not take from a text.
    authority = credentials.ca.encode("ascii", "replace").decode("ascii")
    try:
        return ssl.create_default_context(cafile=credentials.ca_file or None, cadata=authority or None)
    except (OSError, ValueError) as error:
        why = (getattr(error, "reason", None) or getattr(error, "strerror", None)) or "no certificate in PEM"
        raise StoreFault(Reason.DENIED, f"the certificate authority cannot be read: {why}") from None


def _number(text: bytes) -> int:
    try:
        return int(text)
    except ValueError:
        raise StoreFault(Reason.PROTOCOL, "no number where one is due") from None


def _lost(error: OSError) -> StoreFault:
    return StoreFault(Reason.UNREACHABLE, error.strerror or type(error).__name__)
