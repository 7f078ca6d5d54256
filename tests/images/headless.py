"""A headless Service, as its clients see it: a name that stands for the addresses of the pods that are Ready."""

import ipaddress
import socket
import struct
import threading
from types import TracebackType

NAME = "jaxport-headless.jaxport.svc.cluster.local"
HEADER = struct.Struct(">6H")  # identifier, flags, then how many questions, answers, authorities and others
A_RECORD = 1
TTL_SECONDS = 5  # what a cluster's DNS says of a Service


class HeadlessService:
    """A DNS server at a free port of 127.0.0.1 that knows one name. Change `addresses` at will."""

    def __init__(self) -> None:
        self.addresses: set[str] = set()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(0.2)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._answer)

    def target(self, port: int) -> str:
        """For a gRPC client."""
        return f"dns://127.0.0.1:{self._socket.getsockname()[1]}/{NAME}:{port}"

    def __enter__(self) -> "HeadlessService":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        self._socket.close()

    def _answer(self) -> None:
        while not self._over.is_set():
            try:
                query, client = self._socket.recvfrom(2048)
            except TimeoutError:
                continue
            self._socket.sendto(answer(query, sorted(self.addresses)), client)


def answer(query: bytes, addresses: list[str]) -> bytes:
    """A DNS message (RFC 1035) with an A record for each address; none of another kind exists."""
    end = query.index(b"\0", HEADER.size) + 5
    question = query[HEADER.size : end]
    (kind,) = struct.unpack(">H", question[-4:-2])
    found = [ipaddress.IPv4Address(each).packed for each in addresses] if kind == A_RECORD else []
    (identifier,) = struct.unpack(">H", query[:2])
    head = HEADER.pack(identifier, 0x8580, 1, len(found), 0, 0)
    records = [struct.pack(">HHHIH", 0xC00C, A_RECORD, 1, TTL_SECONDS, 4) + address for address in found]
    return head + question + b"".join(records)
