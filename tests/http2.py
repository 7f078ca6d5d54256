"""A gRPC client of frames, for what no well-behaved client sends."""

import socket
import struct
import time

import h2.config
import h2.connection
import h2.events
import h2.exceptions


def message(payload: bytes, compressed: bool = False) -> bytes:
    """A gRPC length-prefixed message."""
    return struct.pack(">BI", compressed, len(payload)) + payload


class RawClient:
    """One HTTP/2 connection to host:port. Use as a context manager."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=10)
        self.http2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.events: list[h2.events.Event] = []
        self.http2.initiate_connection()
        self.flush()

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def flush(self) -> None:
        self.socket.settimeout(10)
        self.socket.sendall(self.http2.data_to_send())

    def begin(self, path: str, *headers: tuple[str, str], authority: str | None = "localhost") -> int:
        """Sends the headers of a call, right or wrong; its stream."""
        self.http2.config.validate_outbound_headers = False
        stream = self.http2.get_next_available_stream_id()
        self.http2.send_headers(
            stream,
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", path),
                *([] if authority is None else [(":authority", authority)]),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                *headers,
            ],
        )
        self.flush()
        return stream

    def read(self, seconds: float = 0.05) -> bool:
        """Takes in what comes within `seconds`; False once the server has closed."""
        self.socket.settimeout(seconds)
        try:
            data = self.socket.recv(65536)
        except (TimeoutError, BlockingIOError):
            return True
        except ConnectionError:
            return False
        try:
            self.events += self.http2.receive_data(data)
            self.flush()
        except (h2.exceptions.ProtocolError, ConnectionError):  # it closes while we still speak
            return False
        return bool(data)

    def send(self, stream: int, data: bytes, end: bool, seconds: float = 10) -> int:
        """Sends as much of `data` as the server takes; the bytes sent. Stops when the call has ended."""
        sent, until = 0, time.monotonic() + seconds
        while sent < len(data) and time.monotonic() < until and not self.ended(stream):
            try:
                window = self.http2.local_flow_control_window(stream)
                size = min(window, self.http2.max_outbound_frame_size, len(data) - sent)
                if size:
                    self.http2.send_data(stream, data[sent : sent + size], end and sent + size == len(data))
                    self.flush()
                    sent += size
            except (h2.exceptions.StreamClosedError, h2.exceptions.ProtocolError, ConnectionError):
                break
            if not self.read(0 if size else 0.02):
                break
        return sent

    def ended(self, stream: int) -> bool:
        return any(
            isinstance(event, h2.events.StreamEnded | h2.events.StreamReset) and event.stream_id == stream
            for event in self.events
        )

    def status(self, stream: int, seconds: float = 10) -> int | None:
        """The grpc-status of a call; None when it was reset or nothing came."""
        until = time.monotonic() + seconds
        while not self.ended(stream) and time.monotonic() < until and self.read():
            pass
        status = self.headers(stream).get("grpc-status")
        return None if status is None else int(status)

    def headers(self, stream: int) -> dict[str, str]:
        """The headers and trailers that have come for a call."""
        return {
            name.decode(): value.decode()
            for event in self.events
            if isinstance(event, h2.events.TrailersReceived | h2.events.ResponseReceived)
            and event.stream_id == stream
            for name, value in event.headers or ()
        }
