"""Cuts a server-sent event stream into its data payloads, cheaply."""


class EventSplitter:
    """Takes bytes as they come and returns the `data:` payloads that are complete.

    Comments (keep-alives) and other fields are dropped; both kinds of line ends are understood.
    """

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def push(self, data: bytes) -> list[bytes]:
        """The payloads completed by `data`, in order."""
        if self._rest:
            data = self._rest + data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        end = data.rfind(b"\n\n")
        if end < 0:
            self._rest = data
            return []
        self._rest = data[end + 2 :]
        payloads = []
        for event in data[:end].split(b"\n\n"):
            if event.startswith(b"data: ") and b"\n" not in event:
                payloads.append(event[6:])
            elif payload := _slow_payload(event):
                payloads.append(payload)
        return payloads


def _slow_payload(event: bytes) -> bytes:
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line[:5] == b"data:"]
    return b"\n".join(lines)
