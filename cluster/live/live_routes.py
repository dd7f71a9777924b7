"""The page at `/` and the stream behind it at `/live`.

The page's files are the same for every installation and name neither model nor cluster, so they
are open even where a key is asked for: a browser that opens an address cannot send one. What the
page shows comes from guarded routes, which it calls with the key.
"""

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from cluster.live.live_feed import LiveFeed, LiveWatcher, TooManyWatchers
from cluster.openai.api_error import unavailable

KEEP_ALIVE_S = 10.0
RETRY_AFTER_S = 5.0

_INDEX = "index.html"
_MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# The page loads nothing from elsewhere and runs no script but its own, whatever a model writes.
_CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file of the page, as it is sent; etag changes with its content."""

    content: bytes
    media_type: str
    etag: str


def load_page() -> dict[str, PageFile]:
    """Every file of the page by its URL path."""
    loaded: dict[str, PageFile] = {}
    for entry in files("cluster.page").iterdir():
        media_type = _MEDIA_TYPES.get(entry.name.rpartition(".")[2])
        if media_type is None:
            continue
        content = entry.read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
        path = "/" if entry.name == _INDEX else f"/page/{entry.name}"
        loaded[path] = PageFile(content, media_type, etag)
    return loaded


def page_router(page: Mapping[str, PageFile], feed: LiveFeed | None) -> APIRouter:
    """Routes of the page's files, and of the feed where there is a cluster to watch."""
    router = APIRouter(redirect_slashes=False)

    async def file(request: Request) -> Response:
        return _answer(page[request.scope["route"].path], request)

    async def live() -> Response:
        assert feed is not None
        return _watch(feed)

    for path in page:
        router.add_api_route(path, file, methods=["GET", "HEAD"], include_in_schema=False)
    if feed is not None:
        router.add_api_route("/live", live, methods=["GET"], include_in_schema=False)
    return router


class LiveAnswer(Response):
    """Sends updates as server-sent events until the client leaves."""

    def __init__(self, watcher: LiveWatcher) -> None:
        super().__init__()
        self._watcher = watcher

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; the watcher is closed whichever way this ends."""
        work = asyncio.create_task(self._send(send))
        left = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            await asyncio.wait([work, left], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._watcher.close()
            left.cancel()
            work.cancel()
            await asyncio.gather(work, left, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while (frame := await self._next_frame()) is not None:
            await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _next_frame(self) -> bytes | None:
        """The next update, or a sign that the stream lives; None when it has ended."""
        try:
            async with asyncio.timeout(KEEP_ALIVE_S):
                update = await self._watcher.next_update()
        except TimeoutError:
            return b": no news\n\n"
        return None if update is None else b"data: " + update + b"\n\n"


def _watch(feed: LiveFeed) -> Response:
    try:
        return LiveAnswer(feed.watch())
    except TooManyWatchers:
        raise unavailable(
            "Too many watch at this gateway.", code="too_many_watchers", retry_after_s=RETRY_AFTER_S
        ) from None


def _answer(file: PageFile, request: Request) -> Response:
    # Asked anew each time, so that a page never runs with the scripts of another version.
    headers = {
        "ETag": file.etag,
        "Cache-Control": "no-cache",
        "Content-Security-Policy": _CONTENT_POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }
    known = request.headers.get("if-none-match", "").split(",")
    if file.etag in {tag.strip().removeprefix("W/") for tag in known}:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
