"""The page in a real browser: a chat, the batch lanes that move, the blocks, and a lost connection.

Screenshots go to results/page, to be looked at.
"""

import base64
import re
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.cluster.live_gateway import live_gateway

sync_api = pytest.importorskip("playwright.sync_api", reason="needs the playwright package")
expect = sync_api.expect

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SCREENSHOTS = Path(__file__).parents[2] / "results" / "page"
WIDE, PHONE = (1280, 900), (390, 844)
KEY = "open-sesame"
SLOW_MS = 30_000

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"needs Chromium at {CHROMIUM}"),
]


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser):
    """Opens a page of a size and theme; no page may have said a word of an error at the end."""
    contexts, faults = [], []

    def open_one(url, size=WIDE, *, dark=False, expected_faults=(), **options):
        theme = "dark" if dark else "light"
        width, height = size
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=theme, **options
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(SLOW_MS)
        page.on("pageerror", lambda error: faults.append(str(error)))

        def on_console(message):
            is_expected = any(text in message.text for text in expected_faults)
            if message.type == "error" and not is_expected:
                faults.append(message.text)

        page.on("console", on_console)
        page.goto(url)
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert faults == []


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    with live_gateway(tmp_path_factory.mktemp("page")) as running:
        yield running


@pytest.fixture
def busy(gateway) -> Iterator[None]:
    """Twelve clients keep the cluster busy."""
    stopping = threading.Event()

    def client(number: int) -> None:
        with httpx.Client(base_url=gateway.url, timeout=60, verify=False) as http:
            turn = 0
            while not stopping.is_set():
                turn += 1
                text = f"Client {number} asks again and again. " * (1 + (number + turn) % 4)
                http.post(
                    "/v1/chat/completions",
                    json={
                        "model": "tiny",
                        "messages": [{"role": "user", "content": text}],
                        "max_tokens": 20 + 23 * ((number + turn) % 5),
                    },
                )

    threads = [threading.Thread(target=client, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    yield
    stopping.set()
    for thread in threads:
        thread.join()


def live(page):
    expect(page.locator("#link[data-state=live]")).to_be_visible(timeout=SLOW_MS)
    expect(page.locator(".replica").first).to_be_attached(timeout=SLOW_MS)
    return page


def say(page, text):
    page.fill("#prompt", text)
    expect(page.locator("#send")).to_be_enabled(timeout=SLOW_MS)
    page.press("#prompt", "Enter")


def pixels(page, selector, index=0):
    """The picture of a canvas, as PNG bytes."""
    url = page.locator(selector).nth(index).evaluate("canvas => canvas.toDataURL()")
    return base64.b64decode(url.partition(",")[2])


def num_coloured(page, selector, name):
    """Pixels of a canvas that have a colour of the style sheet, over all replicas."""
    return page.evaluate(
        """([selector, name]) => {
          const probe = document.createElement("i");
          probe.style.color = `var(--${name})`;
          document.body.append(probe);
          const [r, g, b] = getComputedStyle(probe).color.match(/\\d+/g).map(Number);
          probe.remove();
          let found = 0;
          for (const canvas of document.querySelectorAll(selector)) {
            const { width, height } = canvas;
            if (!width || !height) continue;
            const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
            for (let at = 0; at < data.length; at += 4) {
              found += data[at] === r && data[at + 1] === g && data[at + 2] === b;
            }
          }
          return found;
        }""",
        [selector, name],
    )


def num_decoding(page):
    """Neighbouring requests have two shades of one colour."""
    return sum(num_coloured(page, ".timeline", name) for name in ("decode", "decode-2"))


def until(holds, timeout_s=20.0):
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.1)


def save(page, name):
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png")


def fits(page):
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_message_is_answered_token_by_token(gateway, open_page):
    page = live(open_page(gateway.url))
    say(page, "Hello, who are you?")
    answer = page.locator(".message.assistant .text")
    lengths = set()

    def is_long():
        lengths.add(len(answer.inner_text()))
        return len(lengths) > 3

    until(is_long)
    expect(page.locator("#send")).to_have_text("Stop")
    page.click("#send")
    expect(page.locator(".message.assistant .meta")).to_contain_text("stopped")
    expect(page.locator("#send")).to_have_text("Send")
    until(lambda: page.locator("#sum-running").inner_text() == "0")


def test_the_batch_lanes_move_and_show_prefill_and_decode(gateway, open_page, busy):
    page = live(open_page(gateway.url))
    until(lambda: num_decoding(page) > 500)
    until(lambda: num_coloured(page, ".timeline", "prefill") > 20)
    first = pixels(page, ".timeline")
    page.wait_for_timeout(300)
    assert pixels(page, ".timeline") != first


def test_the_block_map_shows_blocks_in_use_and_then_cached(gateway, open_page):
    page = live(open_page(gateway.url))
    say(page, "Use some blocks, please, and then give them back.")
    until(lambda: num_coloured(page, ".map", "held") > 50)
    page.keyboard.press("Escape")
    until(lambda: num_coloured(page, ".map", "held") == 0)
    assert num_coloured(page, ".map", "cached") > 50


def test_figures_of_the_cluster_move_under_load(gateway, open_page, busy):
    page = live(open_page(gateway.url))
    until(lambda: re.match(r"[1-9]", page.locator("#sum-rate").inner_text()))
    until(lambda: "ms" in page.locator("#ttft").inner_text())
    until(lambda: "ms" in page.locator("#tpot").inner_text())
    assert page.locator(".replica").count() == 2


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("name", "size"), [("1280", WIDE), ("390", PHONE)])
def test_it_fits_the_screen_idle_and_under_load(gateway, open_page, request, theme, name, size):
    page = live(open_page(gateway.url, size, dark=theme == "dark"))
    page.wait_for_timeout(500)
    save(page, f"{name}-{theme}-idle")
    assert fits(page)
    request.getfixturevalue("busy")
    say(page, "What does my bar look like among the others?")
    page.wait_for_timeout(5000)
    save(page, f"{name}-{theme}-load")
    assert fits(page)
    if size is PHONE:
        page.click("#tab-cluster")
        page.wait_for_timeout(500)
        save(page, f"{name}-{theme}-load-cluster")
        assert fits(page)


def test_the_tabs_of_a_phone_are_worked_with_the_keyboard(gateway, open_page):
    page = live(open_page(gateway.url, PHONE))
    expect(page.locator("#cluster")).to_be_hidden()
    page.focus("#tab-chat")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#cluster")).to_be_visible()
    expect(page.locator("#tab-cluster")).to_be_focused()
    expect(page.locator("#chat")).to_be_hidden()


def test_who_wants_little_motion_gets_a_still_picture_between_updates(gateway, open_page, busy):
    page = live(open_page(gateway.url, reduced_motion="reduce"))
    until(lambda: num_decoding(page) > 500)
    drawn = page.evaluate(
        """() => new Promise((resolve) => {
          const canvas = document.querySelector(".timeline");
          let [pictures, frames, last] = [0, 0, ""];
          const look = () => {
            const now = canvas.toDataURL();
            pictures += now !== last;
            last = now;
            frames += 1;
            if (frames < 60) requestAnimationFrame(look);
            else resolve({ pictures, frames });
          };
          look();
        })"""
    )
    assert drawn["pictures"] < drawn["frames"] / 2


def test_a_lost_core_is_told_among_the_events(gateway, open_page):
    page = live(open_page(gateway.url))
    gateway.cores["replica-0"][-1].crash()
    expect(page.locator("#events [data-kind=restart]").first).to_be_visible(timeout=SLOW_MS)


def test_the_page_asks_for_a_key_and_takes_it(tmp_path, open_page):
    with live_gateway(tmp_path, num_replicas=1, api_keys=(KEY,)) as guarded:
        page = open_page(guarded.url, expected_faults=("401", "ERR_"))
        expect(page.locator("#key-row")).to_be_visible()
        expect(page.locator("#link")).to_contain_text("Key needed")
        save(page, "1280-light-key")
        page.fill("#api-key", "wrong")
        page.press("#api-key", "Enter")
        expect(page.locator("#key-note")).to_contain_text("does not know")
        page.fill("#api-key", KEY)
        page.press("#api-key", "Enter")
        live(page)
        expect(page.locator("#key-row")).to_be_hidden()
        say(page, "Hello")
        expect(page.locator(".message.assistant .meta")).to_contain_text("tokens", timeout=SLOW_MS)
        assert page.evaluate("Object.values(localStorage).length") == 0
        page.reload()
        live(page)


def test_a_lost_connection_is_said_clearly_and_comes_back(tmp_path, open_page):
    faults = ("ERR_", "Failed to load")
    with live_gateway(tmp_path, num_replicas=1) as first:
        page = live(open_page(first.url, expected_faults=faults))
    expect(page.locator("#lost")).to_be_visible(timeout=SLOW_MS)
    expect(page.locator("#link")).to_contain_text("Connection lost")
    save(page, "1280-light-lost")
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    with live_gateway(tmp_path, num_replicas=1, port=first.port):
        live(page)
        expect(page.locator("#lost")).to_be_hidden()


def test_what_a_model_writes_is_text_and_not_markup(gateway, open_page):
    page = live(open_page(gateway.url))
    drawn = page.evaluate(
        """async () => {
          const { markdown } = await import("./page/markdown.js");
          const box = document.createElement("div");
          const text = "<img src=x onerror=alert(1)> **bold** `<b>`\\n"
            + "- one\\n- two\\n```js\\n<i>\\n```";
          box.append(...markdown(text));
          return { html: box.innerHTML, images: box.querySelectorAll("img, i, b").length };
        }"""
    )
    assert drawn["images"] == 0
    assert drawn["html"] == (
        "<p>&lt;img src=x onerror=alert(1)&gt; <strong>bold</strong> <code>&lt;b&gt;</code></p>"
        "<ul><li>one</li><li>two</li></ul><pre><code>&lt;i&gt;</code></pre>"
    )


def test_the_demo_model_answers_on_the_page_of_the_real_service(base_url, open_page):
    page = live(open_page(base_url))
    page.click(".settings summary")
    page.fill("#temperature", "0")
    page.fill("#max-tokens", "48")
    say(page, "Name three primary colors.")
    until(lambda: num_decoding(page) > 20)
    expect(page.locator(".message.assistant .text")).to_contain_text(
        re.compile("red", re.IGNORECASE), timeout=SLOW_MS
    )
    save(page, "1280-light-real")
