"""What an HTTP port must bound: connections, requests in flight, and the time a peer may take over its bytes."""

import contextlib
import io
import select
import socket
import threading
import time
from http.client import LineTooLong

from serve_grpc.transport import Drained


class TimedReader(io.RawIOBase):
    """Bytes of a socket, at most so many and until a time: a peer that sends a byte now and then gets no further."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._left = 0
        self._end = 0.0

    def allow(self, count: int, seconds: float) -> None:
        """From now on so many bytes, within so many seconds."""
        self._left = count
        self._end = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Raises TimeoutError and LineTooLong, which http.server answers or ends the connection for."""
        remaining = self._end - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("the peer took too long")
        if self._left <= 0:
            raise LineTooLong("request head")
        self._sock.settimeout(remaining)
        count = self._sock.recv_into(memoryview(buffer)[: self._left])
        self._left -= count
        return count


class Connections:
    """The open connections. When there are too many the one that was idle or slow for longest makes room.

    A connection whose request is in flight is never closed; `Places` bounds those.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._since: dict[socket.socket, float] = {}
        self._kept: set[socket.socket] = set()  # in flight, or already told to end

    def make_room(self) -> None:
        """Lets the one go that was idle or slow for longest: the process has no descriptor left."""
        with self._lock:
            self._let_oldest_go()

    def _let_oldest_go(self) -> None:
        idle = [each for each in self._since if each not in self._kept]
        if idle:
            oldest = min(idle, key=self._since.__getitem__)
            self._kept.add(oldest)
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread ends by itself

    def opened(self, sock: socket.socket) -> bool:
        """Whether there is room for one more, which may have been made."""
        with self._lock:
            if len(self._since) >= self._most:
                self._let_oldest_go()
            # Those told to end may take a moment, hence twice.
            if len(self._since) >= 2 * self._most:
                return False
            self._since[sock] = time.monotonic()
            return True

    def closed(self, sock: socket.socket) -> None:
        with self._lock:
            self._since.pop(sock, None)
            self._kept.discard(sock)

    def idle(self, sock: socket.socket) -> None:
        """It waits for a request, from now."""
        with self._lock:
            if sock in self._since:
                self._since[sock] = time.monotonic()

    def in_flight(self, sock: socket.socket, is_so: bool) -> None:
        with self._lock:
            (self._kept.add if is_so else self._kept.discard)(sock)


class Places:
    """Requests that may be in flight together, by number and by the bytes of their bodies."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self.most = most
        self._most_bytes = most_bytes
        self._changed = threading.Condition()
        self._accepted = self._open = self._bytes = 0
        self._draining = False

    @property
    def draining(self) -> bool:
        """Whether the server stops and takes no more."""
        return self._draining

    def take(self, size: int) -> bool:
        """Whether there is a place; it must be given back once the answer is written."""
        with self._changed:
            crowded = self._open >= self.most or (self._open and self._bytes + size > self._most_bytes)
            if crowded or self._draining:
                return False
            self._accepted += 1
            self._open += 1
            self._bytes += size
            return True

    def give_back(self, size: int) -> None:
        with self._changed:
            self._open -= 1
            self._bytes -= size
            self._changed.notify_all()

    def refuse(self) -> None:
        """No more requests from now on."""
        self._draining = True

    def drain(self, timeout: float) -> Drained:
        """Waits up to `timeout` seconds until those in flight are answered."""
        with self._changed:
            self._changed.wait_for(lambda: not self._open, timeout)
            return Drained(self._accepted, self._open)


def has_gone(sock: socket.socket) -> bool:
    """Whether the peer has closed its side. One that has sent more, a next request, has not."""
    try:
        looking = select.poll()  # select() knows no descriptor past 1023
        looking.register(sock, select.POLLIN)
        if not looking.poll(0):
            return False
        return not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except (OSError, ValueError):  # reset, or closed here
        return True


def close_gently(sock: socket.socket, seconds: float, most: int) -> None:
    """Lets the peer read an answer that came before it had sent everything: closing at once would reset it."""
    end = time.monotonic() + seconds
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
        while most > 0 and (remaining := end - time.monotonic()) > 0:
            sock.settimeout(remaining)
            count = len(sock.recv(65536))
            if not count:
                return
            most -= count
