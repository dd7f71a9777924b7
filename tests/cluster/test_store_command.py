"""`pagoda store`: what it prints, for one model or all, and how it finds an embedded store."""

import dataclasses

import pytest

from cluster import cli
from cluster.launch.embedded_store import EmbeddedStore
from cluster.launch.store_address import leave_store_url, store_urls_of_runs
from kvstore.block_hash import child_hash
from kvstore.block_store import BlockLayout, StoredBlock
from kvstore.config import StoreConfig
from kvstore.redis_block_store import open_redis_block_store

LAYOUT = BlockLayout("f00d" * 16, "float32", 1, 4, 1, 2)
OTHER = dataclasses.replace(LAYOUT, fingerprint="beef" * 16)


def put(url: str, layout: BlockLayout, *, num_blocks: int) -> None:
    store = open_redis_block_store(StoreConfig(redis_url=url), layout=layout)
    parent = bytes(32)
    half = bytes(layout.half_bytes)
    for number in range(num_blocks):
        tokens = (number,) * layout.block_size
        name = child_hash(parent, tokens)
        report = store.put_many([StoredBlock(name, parent, tokens, half, half)])
        assert report.is_complete
        parent = name
    store.close()


@pytest.fixture
def server(tmp_path):
    with EmbeddedStore(memory_bytes=8 << 20, folder=tmp_path) as store:
        store.start()
        put(store.url, LAYOUT, num_blocks=3)
        put(store.url, OTHER, num_blocks=2)
        yield store


@pytest.fixture
def one_run(server, tmp_path, monkeypatch):
    """The server is that of a service which runs here, and no other service does."""
    folder = tmp_path / "pagoda-run"
    folder.mkdir(mode=0o700)
    leave_store_url(folder, server.url)
    monkeypatch.delenv("REDIS_URL", raising=False)
    monkeypatch.setattr(
        "cluster.commands.store.store_urls_of_runs", lambda: store_urls_of_runs([tmp_path])
    )
    return folder


@pytest.mark.redis
def test_it_shows_verifies_and_empties_one_model_or_all(server, capsys):
    at = ["--redis-url", server.url]
    assert cli.main(["store", "show", *at]) == 0
    assert "5 blocks" in capsys.readouterr().out
    assert cli.main(["store", "verify", *at]) == 0
    assert "5 blocks whole" in capsys.readouterr().out
    assert cli.main(["store", "empty", "--fingerprint", "beef", *at]) == 0
    assert "2 blocks removed" in capsys.readouterr().out
    assert cli.main(["store", "empty", *at]) == 0
    assert "3 blocks removed" in capsys.readouterr().out


@pytest.mark.redis
def test_an_unknown_model_is_refused(server, capsys):
    arguments = ["store", "empty", "--fingerprint", "abc", "--redis-url", server.url]
    assert cli.main(arguments) == 2
    assert "--fingerprint='abc': 0 models" in capsys.readouterr().err


@pytest.mark.redis
def test_the_embedded_store_of_a_running_service_is_found(one_run, capsys):
    assert cli.main(["store", "show"]) == 0
    assert "5 blocks" in capsys.readouterr().out
    assert (one_run / "store-url").stat().st_mode & 0o077 == 0


def test_without_a_service_or_a_url_it_says_what_it_needs(monkeypatch, capsys, tmp_path):
    monkeypatch.delenv("REDIS_URL", raising=False)
    monkeypatch.setattr("cluster.commands.store.store_urls_of_runs", list)
    assert cli.main(["store", "show"]) == 2
    assert "expected --redis-url or REDIS_URL" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_one_line_and_exit_code_1(capsys):
    assert cli.main(["store", "show", "--redis-url", "redis://127.0.0.1:1/0"]) == 1
    error = capsys.readouterr().err
    assert error.count("pagoda: error:") == 1
