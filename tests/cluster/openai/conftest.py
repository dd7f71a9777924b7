"""A real gateway on a real port, with a scripted cluster behind it and a tokenizer of bytes."""

import asyncio
import contextlib
import dataclasses
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx
import openai
import pytest
import uvicorn
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from cluster.config import GatewayConfig
from cluster.dispatch.dispatcher import ClusterHealth
from cluster.dispatch.scripted_dispatcher import Script, ScriptedDispatcher
from cluster.gateway.http_app import GatewayServices, build_http_app
from cluster.text.chat_template import ChatTemplate
from cluster.text.tokenizer import TextTokenizer
from replicas.models.prepared_model import PreparedModel
from replicas.request import EngineRequest

END_ID = 256
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def _byte_characters() -> list[str]:
    """The character that byte-level BPE writes for each byte, by GPT-2's rule."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    table = {byte: chr(byte) for byte in shown}
    table |= {byte: chr(256 + place) for place, byte in enumerate(hidden)}
    return [table[byte] for byte in range(256)]


def byte_tokenizer() -> TextTokenizer:
    """Token id b is byte b; 256 is the end token."""
    vocab = {character: byte for byte, character in enumerate(_byte_characters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return TextTokenizer(tokenizer, vocab_size=257)


MODEL = PreparedModel(
    folder="unused",
    name="tiny/model",
    weights_dir="unused",
    fingerprint="ab" * 32,
    architecture="LlamaForCausalLM",
    vocab_size=257,
    max_model_len=256,
    eos_token_ids=(END_ID,),
    bos_token_id=None,
    add_bos=False,
    special_tokens={},
)


def _says(*texts: str, **changes: object) -> Script:
    script = Script(tuple(tuple(text.encode()) for text in texts), stop_token_id=END_ID)
    return dataclasses.replace(script, **changes)


@dataclass
class Gateway:
    """A running gateway and the cluster it thinks it has."""

    url: str
    dispatcher: ScriptedDispatcher
    http: httpx.Client

    def client(self, **options: object) -> openai.OpenAI:
        return openai.OpenAI(
            **{
                "base_url": f"{self.url}/v1",
                "api_key": "none",
                "max_retries": 0,
                "http_client": self.http,
            }
            | options
        )

    def post(self, path: str, **body: object) -> httpx.Response:
        return self.http.post(path, json=body)

    def complete(self, **body: object) -> httpx.Response:
        return self.post("/v1/completions", **{"prompt": "Say", "max_tokens": 200} | body)

    def chat(self, **body: object) -> httpx.Response:
        return self.post(
            "/v1/chat/completions", **{"messages": [{"role": "user", "content": "Hi"}]} | body
        )

    def is_idle_within(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self.dispatcher.num_open and time.monotonic() < deadline:
            time.sleep(0.002)
        return self.dispatcher.num_open == 0


class _ThreadServer(uvicorn.Server):
    """Stops as soon as it is told to; uvicorn itself looks ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_ready = threading.Event()

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self.is_ready.set()
        await self._stopping.wait()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)


@contextlib.contextmanager
def running_server(app: object) -> Iterator[str]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = _ThreadServer(
            uvicorn.Config(
                app,
                loop="uvloop",
                http="httptools",
                log_level="warning",
                timeout_graceful_shutdown=2,
            )
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        assert server.is_ready.wait(10)
        try:
            host, port = listener.getsockname()
            yield f"http://{host}:{port}"
        finally:
            server.stop()
            thread.join(timeout=10)
            assert not thread.is_alive()


@pytest.fixture
def says() -> Callable[..., Script]:
    """Makes a script whose choices say the given texts, a token a byte."""
    return _says


@pytest.fixture
def prompt_text() -> Callable[[Gateway], str]:
    """Reads the prompt of a gateway's last request back as text."""
    return lambda gateway: bytes(gateway.dispatcher.requests[-1].prompt_token_ids).decode()


@pytest.fixture
def tokenizer() -> Iterator[TextTokenizer]:
    """Token id b is byte b; 256 is the end token."""
    made = byte_tokenizer()
    yield made
    made.close()


@contextlib.contextmanager
def _gateways() -> Iterator[Callable[..., Gateway]]:
    with contextlib.ExitStack() as stack:

        def start(
            *scripts: Script,
            health: ClusterHealth | None = None,
            template: str = TEMPLATE,
            max_model_len: int = 256,
            num_blocks: int = 64,
            **config: object,
        ) -> Gateway:
            """The scripts are played in turn, the last one again and again."""
            queue = list(scripts or (_says("Hello"),))

            def script_for(request: EngineRequest) -> Script:
                return queue.pop(0) if len(queue) > 1 else queue[0]

            dispatcher = ScriptedDispatcher(script_for, health=health)
            tokenizer = byte_tokenizer()
            stack.callback(tokenizer.close)
            services = GatewayServices(
                model=MODEL,
                config=GatewayConfig(**config),
                tokenizer=tokenizer,
                template=ChatTemplate({"default": template}, special_tokens={}),
                dispatcher=dispatcher,
                max_model_len=max_model_len,
                block_size=16,
                num_blocks=num_blocks,
                version="1.2.3",
                clock=lambda: 1_700_000_000.5,
            )
            url = stack.enter_context(running_server(build_http_app(services)))
            # Loading the machine's certificates would take longer than most tests.
            http = stack.enter_context(httpx.Client(base_url=url, timeout=20, verify=False))
            gateway = Gateway(url, dispatcher, http)
            stack.callback(_assert_idle, gateway)
            return gateway

        yield start


def _assert_idle(gateway: Gateway) -> None:
    assert gateway.is_idle_within(2.0), f"{gateway.dispatcher.num_open} feeds left open"


@pytest.fixture
def start_gateway() -> Iterator[Callable[..., Gateway]]:
    """Starts gateways; at the end no feed may be open on any of them."""
    with _gateways() as start:
        yield start


@pytest.fixture(scope="module")
def shared_gateway() -> Iterator[Gateway]:
    """One gateway for all tests of a file that leave nothing behind on it."""
    with _gateways() as start:
        yield start()


@pytest.fixture
def gateway(start_gateway: Callable[..., Gateway]) -> Gateway:
    """A gateway whose model says Hello."""
    return start_gateway()
