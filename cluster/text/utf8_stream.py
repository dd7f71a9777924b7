"""Turns bytes into text as they come, holding back a character until its last byte is there."""

import codecs

REPLACEMENT = "\ufffd"


class ReplacingUtf8:
    """UTF-8 in which each broken sequence becomes one U+FFFD, as byte-level decoders have it."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, piece: bytes) -> str:
        """Text that is certain after `piece`."""
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """What an unfinished character leaves at the end of the text."""
        return self._decoder.decode(b"", final=True)


class SpelledUtf8:
    """Characters spelled in single-byte tokens, as SentencePiece models do for rare ones.

    Their decoders replace every byte of a run of byte tokens if any part of the run is broken.
    Here a whole character goes out at once, since a run may be long (a line of emoji), and from
    the first broken byte on each byte of the run becomes U+FFFD.
    """

    def __init__(self) -> None:
        self._pending = b""
        self._is_broken = False

    def push_byte(self, byte: bytes) -> str:
        """The next byte of a run."""
        if self._is_broken:
            return REPLACEMENT
        self._pending += byte
        try:
            text = self._pending.decode()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data":
                return ""
            self._is_broken = True
            return self._replace_pending()
        self._pending = b""
        return text

    def end_run(self) -> str:
        """A token that is no byte, or the end of the text: what is pending will not complete."""
        self._is_broken = False
        return self._replace_pending()

    def _replace_pending(self) -> str:
        count, self._pending = len(self._pending), b""
        return REPLACEMENT * count
