"""CRC-32 over every byte that is stored, by the fastest means at hand.

The polynomial is zlib's in both cases, so a value that one replica wrote with the one is checked by
another with the other. With isal it costs 0.02 CPU seconds per GB, with zlib 0.23.
"""

from collections.abc import Callable

from kvstore.block_store import Buffer

crc32: Callable[[Buffer, int], int]
try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = ["crc32"]
