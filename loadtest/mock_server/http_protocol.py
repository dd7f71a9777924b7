"""Reads HTTP/1.1 requests and writes answers with as little work per token as Python allows."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import cast

import httptools

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)


class HttpProtocol(asyncio.Protocol):
    """One client connection; calls `handle(connection, method, path, body)` per request.

    `on_lost` may be set by whoever is answering, to hear of a client that went away.
    """

    def __init__(self, handle: Callable[["HttpProtocol", str, str, bytes], None]) -> None:
        self._handle = handle
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._keep_alive = True
        self.on_lost: Callable[[], None] | None = None
        self.transport: asyncio.Transport | None = None

    @property
    def request_id(self) -> str:
        """The client's own name for the request, or an empty string."""
        return self._headers.get(b"x-request-id", b"").decode("latin-1")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's.
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self.on_lost is not None:
            self.on_lost()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()

    def on_message_begin(self) -> None:
        self._path, self._headers, self._body = b"", {}, []

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._keep_alive = self._parser.should_keep_alive()
        method = self._parser.get_method().decode("latin-1")
        self._handle(self, method, self._path.decode("latin-1"), b"".join(self._body))

    def respond(self, status: int, body: bytes, *, retry_after_s: int | None = None) -> None:
        """Answer whole, with a JSON body."""
        retry = b"" if retry_after_s is None else b"retry-after: %d\r\n" % retry_after_s
        head = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n"
        phrase = HTTPStatus(status).phrase.encode("latin-1")
        self._write(head % (status, phrase, retry, len(body)) + body)
        self._finish()

    def start_stream(self, first: bytes) -> None:
        """Send the head of an event stream and its first events in one write."""
        self._write(STREAM_HEAD + b"%x\r\n%b\r\n" % (len(first), first))

    def write_events(self, events: bytes) -> None:
        """Send events as one HTTP chunk."""
        self._write(b"%x\r\n%b\r\n" % (len(events), events))

    def end_stream(self, last: bytes) -> None:
        """Send the last events and end the response."""
        self._write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last))
        self._finish()

    def close(self) -> None:
        """Cut the connection, in the middle of an answer too."""
        if self.transport is not None:
            self.transport.abort()

    def _write(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)

    def _finish(self) -> None:
        self.on_lost = None
        if not self._keep_alive and self.transport is not None:
            self.transport.close()
