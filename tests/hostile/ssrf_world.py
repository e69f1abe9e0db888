"""What lies around a fetcher under attack: a name server, public web servers, and a canary on every other address.

    python -m tests.hostile.ssrf_world FETCHER|REST

runs in a network namespace whose routing table makes it every address (REST), or beside the fetcher (FETCHER). Prints
``ready``, then a line for each connection: address, port and path.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

from tests.hostile.ssrf_cases import REBINDING, ZONE

PORTS = (80, 443, 6379, 8000)
A, AAAA = 1, 28


class Canary(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle(self) -> None:
        self.tell("connected")
        super().handle()

    def tell(self, what: str) -> None:
        address, port = self.request.getsockname()[:2]
        print(address, port, what, flush=True)

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.tell(self.path)
        if self.path == "/robots.txt":
            self.answer(404, b"", close=self.headers["Host"] == "rebind.example")
        elif self.path.startswith("/redir?to="):
            self.answer(302, b"", location=unquote(self.path.partition("to=")[2]))
        elif self.path == "/loop":
            self.answer(302, b"", location="/loop")
        elif self.path == "/again":
            self.answer(302, b"", location="http://flip.example/again", close=True)
        else:
            self.answer(200, b"reached " + self.request.getsockname()[0].encode())

    def answer(self, status: int, body: bytes, *, location: str = "", close: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        if location:
            self.send_header("Location", location)
        if close:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, family: socket.AddressFamily, port: int) -> None:
        self.address_family = family
        super().__init__(("::" if family == socket.AF_INET6 else "0.0.0.0", port), Canary, bind_and_activate=False)
        if family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        self.server_bind()
        self.server_activate()


class Names:
    """Answers A and AAAA out of the zone, with no time to live."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 53))
        self._asked: Counter[tuple[str, int]] = Counter()

    def serve(self) -> None:
        while True:
            question, sender = self._socket.recvfrom(2048)
            self._socket.sendto(self._reply(question), sender)

    def _reply(self, question: bytes) -> bytes:
        labels, at = [], 12
        while size := question[at]:
            labels.append(question[at + 1 : at + 1 + size].decode())
            at += 1 + size
        kind = struct.unpack_from("!H", question, at + 1)[0]
        name = ".".join(labels).lower()
        answers = [ipaddress.ip_address(text) for text in self._answers(name, kind)]
        packed = [address.packed for address in answers if (address.version == 6) == (kind == AAAA)]
        known = name in ZONE or name in REBINDING
        head = struct.pack(
            "!HHHHHH", *struct.unpack_from("!H", question), 0x8580 | (0 if known else 3), 1, len(packed), 0, 0
        )
        records = b"".join(struct.pack("!HHHIH", 0xC00C, kind, 1, 0, len(data)) + data for data in packed)
        return head + question[12 : at + 5] + records

    def _answers(self, name: str, kind: int) -> tuple[str, ...]:
        if name in ZONE:
            return ZONE[name]
        turns = REBINDING.get(name, ((),))
        turn = min(self._asked[name, kind], len(turns) - 1)
        self._asked[name, kind] += 1
        return turns[turn]


def main(part: str) -> None:
    for port in PORTS:
        for family in (socket.AF_INET, socket.AF_INET6):
            threading.Thread(target=Server(family, port).serve_forever, daemon=True).start()
    if part == "FETCHER":
        threading.Thread(target=Names().serve, daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
