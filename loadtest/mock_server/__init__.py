"""A server with known delays, so that a load driver can be tested against the truth."""

from loadtest.mock_server.profile import MockProfile
from loadtest.mock_server.server import MockServer

__all__ = ["MockProfile", "MockServer"]
