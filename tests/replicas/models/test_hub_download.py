"""Only what serving needs comes from the hub, and every way to fail has its own sentence."""

import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from replicas.models.hub_download import HubModel
from tests.replicas.models import tiny_files as tiny

COMMIT = "c" * 40
MODEL = "someone/tiny"


class TinyHub(ThreadingHTTPServer):
    """A hub on loopback that serves the files of one folder and remembers what was fetched."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.fetched: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: TinyHub

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, *_: object) -> None:
        """Silent."""

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        if path.startswith(f"/api/models/{MODEL}"):
            self._send(self._listing(path), with_body=with_body)
        elif path.startswith(f"/{MODEL}/resolve/"):
            name = path.split("/", 5)[5]
            file = self.server.folder / name
            if file.is_file():
                if with_body:
                    self.server.fetched.append(name)
                self._send(file.read_bytes(), with_body=with_body)
            else:
                self._refuse("EntryNotFound")
        else:
            self._refuse("RepoNotFound")

    def _listing(self, path: str) -> bytes:
        names = sorted(p.relative_to(self.server.folder) for p in self.server.folder.rglob("*"))
        files = [name for name in names if (self.server.folder / name).is_file()]
        if "/tree/" in path:
            entries = [
                {
                    "type": "file",
                    "path": str(name),
                    "size": (self.server.folder / name).stat().st_size,
                    "oid": "0" * 40,
                }
                for name in files
            ]
            return json.dumps(entries).encode()
        siblings = [{"rfilename": str(name)} for name in files]
        return json.dumps(
            {"id": MODEL, "modelId": MODEL, "sha": COMMIT, "siblings": siblings, "private": False}
        ).encode()

    def _send(self, body: bytes, *, with_body: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def _refuse(self, code: str) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[TinyHub]:
    folder = tiny.write_model(tmp_path / "on-the-hub", shard_bytes=3000)
    for unneeded in ("pytorch_model.bin", "consolidated.safetensors", "README.md"):
        (folder / unneeded).write_text("large")
    server = TinyHub(folder)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def prepare(
    spec: str, tmp_path: Path, *, endpoint: str = "http://127.0.0.1:9", offline: bool = False
) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, since the hub's client reads its settings at import."""
    environment = {
        "HF_HOME": str(tmp_path / "hf"),
        "HF_ENDPOINT": endpoint,
        "HF_HUB_OFFLINE": "1" if offline else "0",
        "HF_HUB_DISABLE_XET": "1",
        "HOME": str(tmp_path),
    }
    command = [sys.executable, "-m", "replicas.models.prepare", spec, "--quiet"]
    return subprocess.run(
        [*command, "--cache-dir", str(tmp_path / "cache")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment,
    )


def test_a_hub_model_is_fetched_without_its_unneeded_files(hub: TinyHub, tmp_path: Path) -> None:
    done = prepare(MODEL, tmp_path, endpoint=hub.url)
    assert done.returncode == 0, done.stderr
    values = json.loads((Path(done.stdout.strip()) / "pagoda.json").read_text())
    assert values["name"] == MODEL
    assert "config.json" in hub.fetched
    assert "model.safetensors.index.json" in hub.fetched
    assert not {"pytorch_model.bin", "consolidated.safetensors", "README.md"} & set(hub.fetched)


def test_a_fetched_model_starts_offline(hub: TinyHub, tmp_path: Path) -> None:
    first = prepare(MODEL, tmp_path, endpoint=hub.url)
    second = prepare(MODEL, tmp_path, offline=True)
    assert second.returncode == 0, second.stderr
    assert second.stdout == first.stdout


def test_a_model_that_cannot_be_run_is_refused_before_its_weights_come(
    hub: TinyHub, tmp_path: Path
) -> None:
    (hub.folder / "config.json").write_text(json.dumps({"architectures": ["T5Model"]}))
    done = prepare(MODEL, tmp_path, endpoint=hub.url)
    assert done.returncode == 1
    assert "T5Model is not supported" in done.stderr
    assert hub.fetched == ["config.json"]


def test_an_unknown_model_is_named(hub: TinyHub, tmp_path: Path) -> None:
    done = prepare("someone/else", tmp_path, endpoint=hub.url)
    assert "error: model someone/else: no local folder and no hub model" in done.stderr


def test_offline_without_the_model_says_so(tmp_path: Path) -> None:
    done = prepare(MODEL, tmp_path, offline=True)
    assert done.returncode == 1
    assert (
        "error: model someone/tiny: not in the local cache, and the hub is offline" in done.stderr
    )


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("a/b", HubModel("a/b", None, None)),
        ("a/b@v1", HubModel("a/b", "v1", None)),
        ("a/b/q4.gguf", HubModel("a/b", None, "q4.gguf")),
        ("a/b/in/q4.gguf@v1", HubModel("a/b", "v1", "in/q4.gguf")),
        ("a", None),
        ("./a/b", None),
        ("/a/b", None),
        ("a/b/c", None),
        ("../b", None),
    ],
)
def test_hub_ids_are_told_from_paths(spec: str, expected: HubModel | None) -> None:
    assert HubModel.parse(spec) == expected
