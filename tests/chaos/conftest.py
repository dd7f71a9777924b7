"""How many rounds of each fault, and what they came to: `pytest tests/chaos --rounds 20`."""

import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

# Ray decides on its token when it is first imported.
os.environ["RAY_AUTH_MODE"] = "token"

with warnings.catch_warnings():
    # Serve 2.60 declares fields in a way that pydantic 2.14 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from tests.chaos.rounds import Tally
    from tests.chaos.service import Layout, Service, running_service

CI_ROUNDS = 2


TALLIES = pytest.StashKey[dict[str, Tally]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of these tests."""
    parser.addoption("--rounds", type=int, default=CI_ROUNDS, help="rounds of each fault")
    parser.addoption("--logs", help="folder to copy the logs of all Ray processes to")


@pytest.fixture(scope="session")
def rounds(pytestconfig: pytest.Config) -> int:
    """Rounds of each fault."""
    # Without this folder on the command line, pytest reads this file after the options.
    return int(pytestconfig.getoption("--rounds", CI_ROUNDS))


@pytest.fixture(scope="session")
def tallies(pytestconfig: pytest.Config) -> dict[str, Tally]:
    """What each fault came to, printed at the end."""
    return pytestconfig.stash.setdefault(TALLIES, {})


@pytest.fixture(scope="module")
def service(request: pytest.FixtureRequest, free_port) -> Iterator[Service]:
    """One service for all faults of a module, so that what one leaves shows in the next."""
    layout: Layout = request.module.LAYOUT
    with TemporaryDirectory(prefix="pg-") as folder:
        try:
            with running_service(layout, free_port, Path(folder)) as running:
                yield running
        finally:
            if kept := request.config.getoption("--logs", None):
                into = Path(kept) / request.module.__name__.rpartition(".")[2]
                shutil.copytree(Path(folder) / "ray/session_latest/logs", into, dirs_exist_ok=True)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """The figures."""
    for name, tally in config.stash.get(TALLIES, {}).items():
        terminalreporter.write_line(f"chaos fault={name} {tally}")
