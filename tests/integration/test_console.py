"""
The console in a real browser: headless Chromium, driven by Selenium, with the programs that the system has.

The page in a browser: its content, its updates, and that a key's text is never run.
``PURGATORY_SCREENSHOTS=folder`` keeps pictures of it, light and dark.
"""

import os
import shutil
import threading
import time
import weakref
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from purgatory import DelayedOperationPurgatory
from purgatory import _feed_records as feeds
from purgatory.console import _app, serve
from purgatory.feeds import MemoryFeed
from purgatory.journal import label
from tests.support import Waiting
from timer import SystemTimer, SystemTimerReaper

PATIENCE_S = 60
MANY = 100_000
HOSTILE = [
    "<script>document.title = 'owned'</script>",
    "<img src=x onerror=\"document.title = 'owned'\">",
    '"><svg onload="document.title=\'owned\'">',
    "javascript:document.title='owned'",
]
PROGRAMS = {name: shutil.which(name) for name in ("chromium", "chromedriver")}

if not all(PROGRAMS.values()) and os.environ.get("CI") != "true":
    pytest.skip("chromium and its driver are not installed: run `make programs`", allow_module_level=True)


def eventually(condition):
    """Wait until ``condition()`` holds. False if it never does. Not too often: the browser answers each time."""
    give_up = time.monotonic() + PATIENCE_S
    while not (held := condition()) and time.monotonic() < give_up:
        time.sleep(0.1)
    return held


class Page:
    """The console as it stands in the browser."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, url):
        self.driver.get(url)

    def text(self, selector):
        """The text there, or an empty one."""
        found = self.driver.find_elements(By.CSS_SELECTOR, selector)
        return found[0].text if found else ""

    def texts(self, selector):
        return self.run("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def shows(self, selector, text):
        return eventually(lambda: text in self.text(selector))

    def ink(self, selector):
        """How many pixels of a canvas are painted, read from a copy: Chromium warns of a page's canvas read often."""
        return self.run(
            "const shown = document.querySelector(arguments[0]);"
            "const c = new OffscreenCanvas(shown.width, shown.height);"
            "const copy = c.getContext('2d', {willReadFrequently: true});"
            "copy.drawImage(shown, 0, 0);"
            "const d = copy.getImageData(0, 0, c.width, c.height).data;"
            "let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n",
            selector,
        )


@pytest.fixture(scope="module")
def driver():
    options = webdriver.ChromeOptions()
    options.binary_location = PROGRAMS["chromium"]
    for argument in (
        "headless=new",
        "no-sandbox",
        "disable-gpu",
        "disable-dev-shm-usage",
        "disable-background-networking",
        "disable-component-update",
        "disable-extensions",
        "disable-sync",
        "no-first-run",
        "window-size=1480,1600",
    ):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(PROGRAMS["chromedriver"]))
    yield made
    made.quit()


@pytest.fixture
def page(driver):
    """The browser. In the end it must have had nothing to complain about."""
    driver.get_log("browser")
    yield Page(driver)
    # A stream ends with its server. An icon is asked for beside a page of plain text, such as a refusal.
    ours = ("/events", "/favicon.ico")
    complaints = [e for e in driver.get_log("browser") if not any(part in e["message"] for part in ours)]
    driver.get("about:blank")
    assert [] == complaints


@pytest.fixture
def console():
    with serve(0) as server:
        yield server


@pytest.fixture
def fetch():
    with DelayedOperationPurgatory("fetch", max_parked=200_000) as purgatory:
        yield purgatory


def park(purgatory, keys, delay_ms=60_000):
    operations = [Waiting(delay_ms) for _ in keys]
    for operation, key in zip(operations, keys, strict=True):
        purgatory.try_complete_else_watch(operation, [key])
    return operations


def test_counts_change_live(page, console, fetch):
    """Parked operations appear on the page without reloading, and go when they are answered."""
    page.open(console.url)
    assert page.shows("#live", "live")
    assert eventually(lambda: page.text("#t-parked") == "0")

    operations = park(fetch, [f"orders-{number % 3}" for number in range(42)])
    assert eventually(lambda: page.text("#t-parked") == "42")
    assert page.shows("#cards", "fetch")
    assert page.shows("#parked-now", "under 3 keys")

    for operation in operations[:40]:
        operation.ready = True
    for number in range(3):
        fetch.check_and_complete(f"orders-{number}")
    assert eventually(lambda: page.text("#t-parked") == "2")
    assert eventually(lambda: "40" in page.texts("#totals dd"))
    assert eventually(lambda: page.ink("#chart-parked") > 1000)


def test_feeds_have_a_line_each(page, console, fetch, monkeypatch):
    """Whether the process follows a feed shows live. Without a feed there is no table, and a feed's name is text."""
    monkeypatch.setattr(feeds, "_feeds", weakref.WeakSet())  # those of other tests wait for the garbage collector
    park(fetch, ["k"])
    page.open(console.url)
    assert eventually(lambda: page.text("#t-parked") == "1")
    assert "" == page.text("#feeds-panel")

    feed = MemoryFeed(HOSTILE[0])
    with feed.follow(fetch, lambda event: [event.key]) as following:
        following.applied(following.publish("key", b"1"))
        assert page.shows("#feeds tbody", "following")
        assert page.shows("#feeds tbody", str(following.position))
        assert page.shows("#feeds tbody", HOSTILE[0])
        feed.disconnect(away=True)
        assert page.shows("#feeds tbody", "not following")
        feed.restore()
    assert page.shows("#feeds tbody", "publishes only")
    assert "owned" not in page.driver.title


def test_streams_that_end_are_not_seen(page, console, fetch, monkeypatch):
    """Each stream of events ends after a while. The page connects again, stays live and misses no point."""
    monkeypatch.setattr(_app, "_STREAM_S", 0.6)
    streams = []
    monkeypatch.setattr(
        _app._Console, "_stream", lambda *call, made=_app._Console._stream: streams.append(0) or made(*call)
    )
    page.open(console.url)
    assert page.shows("#live", "live")
    page.run(  # on a busy machine it may take more than the page's 2 s to connect again
        "const later = setTimeout;"
        "window.setTimeout = (call, ms, ...given) => later(call, given[0] === false ? 10 * ms : ms, ...given);"
        "window.seen = [];"
        "new MutationObserver(() => seen.push(document.getElementById('live').className))"
        ".observe(document.getElementById('live'), {attributes: true})"
    )
    assert eventually(lambda: len(streams) > 3)
    park(fetch, ["k"] * 7)
    assert eventually(lambda: page.text("#t-parked") == "7")
    assert {"live on"} == set(page.run("return window.seen"))


def test_a_lost_connection_is_shown(page, fetch):
    """When the server is gone, the page says so."""
    with serve(0) as server:
        page.open(server.url)
        assert page.shows("#live", "live")
    assert page.shows("#live", "connection lost")


def test_purgatories_come_and_go(page, console):
    """Without a purgatory the page says so. One that is made appears, and disappears when it is shut down."""
    page.open(console.url)
    assert page.shows("#empty", "This process has no purgatory yet")
    with DelayedOperationPurgatory("passing"):
        assert page.shows("#cards", "passing")
        assert page.text("#empty") == ""
    assert page.shows("#empty", "This process has no purgatory yet")


def test_wheel_turns(page, console, fetch):
    """The wheel is drawn level by level, its buckets lit where tasks wait, and its hand moves on by itself."""
    park(fetch, ["k"] * 5, 30_000)
    page.open(console.url)
    assert eventually(lambda: page.ink("#wheel") > 5000)
    first = page.run("return {...document.getElementById('wheel').dataset}")

    def moved():
        now = page.run("return {...document.getElementById('wheel').dataset}")
        return float(now["tick"]) > float(first["tick"]) + 500 and int(now["frames"]) > int(first["frames"]) + 3

    assert eventually(moved)
    levels = page.texts("#levels tr")
    assert len(levels) == len(fetch.timer.statistics().buckets)
    assert "1 ms per bucket" in levels[-1]
    assert page.shows("#health", "alive")


def test_drawer_shows_who_waits_under_a_key(page, console, fetch):
    """A click on a key lists the operations under it, with type, age, time left and checks, and keeps them current."""
    park(fetch, ["orders-3"] * 4)
    page.open(console.url)
    assert eventually(lambda: page.texts("#hottest .key") == ["orders-3"])
    page.driver.find_element(By.CSS_SELECTOR, "#hottest .key").click()

    assert page.shows("#drawer-more", "4 waiting in fetch")
    row = page.texts("#operations tbody tr:first-child td")
    assert "Waiting" == row[0]
    assert "2" == row[3]
    park(fetch, ["orders-3"])
    assert page.shows("#drawer-more", "5 waiting in fetch")
    page.driver.find_element(By.ID, "drawer-close").click()
    assert page.text("#drawer") == ""


def test_hostile_key_is_text(page, console, fetch):
    """A key that is markup or script is shown as the text it is: nothing runs, nothing is added to the page."""
    park(fetch, HOSTILE)
    page.open(console.url)

    shown = {label(key) for key in HOSTILE}

    assert eventually(lambda: shown == set(page.texts("#hottest .key")))
    assert eventually(lambda: shown == set(page.texts("#oldest .key")))
    for index in range(len(HOSTILE)):
        page.driver.find_elements(By.CSS_SELECTOR, "#hottest .key")[index].click()
        assert eventually(lambda: page.text("#drawer-key") in shown)
        page.driver.find_element(By.ID, "drawer-close").click()
    assert f"purgatory, process {os.getpid()}" == page.driver.title
    assert 0 == page.run("return document.querySelectorAll('main img, main script, main svg, aside img').length")


def test_stalled_reaper_is_seen(page, console):
    """A hook that blocks the executor shows on the page, in red, until it lets go."""
    go = threading.Event()
    with DelayedOperationPurgatory("blocked") as purgatory:
        operation = Waiting(complete=lambda _: go.wait(3 * PATIENCE_S))
        purgatory.try_complete_else_watch(operation, ["k"])
        operation.extend(10)  # with so short a delay from the beginning, it might expire on this thread
        page.open(console.url)
        try:
            assert page.shows("#t-reaper", "behind")
            assert page.run("return document.getElementById('t-reaper').classList.contains('bad')")
        finally:
            go.set()
        assert page.shows("#t-reaper", "on time")


def test_many_operations_are_sampled(page, console, fetch):
    """With 100,000 operations parked under as many keys the count is exact, and the page says that keys are sampled."""
    park(fetch, range(MANY))
    page.open(console.url)

    assert eventually(lambda: page.text("#t-parked") == f"{MANY:,}")
    assert page.shows("#sampled", "of 100,000 keys")
    cpu_s, began = time.process_time(), time.monotonic()
    time.sleep(2)
    busy = (time.process_time() - cpu_s) / (time.monotonic() - began)
    assert busy < 0.25, "watching takes more than a quarter of a core"
    for operation in fetch.operations():
        operation.cancel()


def test_token_is_asked_for(page, fetch):
    """Without the token there is no page. With it in the address once, the page works and the address is clean."""
    with serve(0, token="s3cret") as server:
        page.open(server.url)
        assert page.shows("body", "a token is needed")
        page.driver.get_log("browser")  # which rightly reports the 401
        page.open(f"{server.url}?token=s3cret")
        assert page.shows("#live", "live")
        assert "s3cret" not in page.driver.current_url


def test_page_is_legible_in_both_dresses(page, console, fetch):
    """Light and dark are two dresses of one page: nothing sticks out, and text stands off its ground."""
    with (
        SystemTimerReaper("reaper", SystemTimer("shared")) as timer,
        DelayedOperationPurgatory("produce", timer=timer, max_parked=500) as produce,
    ):
        park(produce, [f"orders-{number % 17}" for number in range(350)], 150_000)
        park(fetch, [f"client-{number * number % 41}" for number in range(900)], 150_000)
        page.open(console.url)
        grounds = set()
        for theme in ("light", "dark"):
            page.run("localStorage.setItem('theme', arguments[0])", theme)
            page.driver.refresh()
            assert eventually(lambda: page.text("#t-parked") == "1,250")
            grounds.add(page.run("return getComputedStyle(document.body).backgroundColor"))
            assert page.run("return document.documentElement.scrollWidth <= window.innerWidth")
            assert page.run(CONTRAST) >= 4.5
            keep(page.driver, f"console-{theme}.png")
        assert 2 == len(grounds)


# The least contrast, by WCAG's formula, between a text of the page and the panel it stands on.
CONTRAST = """
const numbers = (css) => css.match(/[\\d.]+/g).map(Number);
const linear = (c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
const light = (css) => numbers(css).slice(0, 3).map((c) => linear(c / 255))
  .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
const ground = (e) => {
  const color = getComputedStyle(e).backgroundColor;
  return numbers(color)[3] === 0 ? ground(e.parentElement) : color;
};
const contrast = (e) => {
  const [less, more] = [light(getComputedStyle(e).color), light(ground(e))].sort((a, b) => a - b);
  return (more + 0.05) / (less + 0.05);
};
const texts = [...document.querySelectorAll("h1, h2, p, dt, dd, td, th, button, li, b")];
return Math.min(...texts.filter((e) => e.offsetParent && e.textContent.trim()).map(contrast));
"""


def keep(driver, name):
    folder = os.environ.get("PURGATORY_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        driver.save_screenshot(str(Path(folder) / name))


def test_long_keys_are_shortened_in_the_middle_at_the_width_of_a_telephone(page, console, fetch):
    """Both ends of a long key are seen, ``title`` has all of it, and nothing sticks out of the page or its cell.

    The table of feeds is wider. It scrolls in its panel, and the feed's name is seen.
    """

    class DelayedProduceWithAnExtraordinarilyLongName(Waiting):
        pass

    keys = [f"tenant-4711/orders/eu-central-1/a-topic-of-some-length/partition-{number:04}" for number in range(3)]
    for key in keys:
        fetch.try_complete_else_watch(DelayedProduceWithAnExtraordinarilyLongName(), [key])  # a tile shows the type
    feed = MemoryFeed("orders")
    metrics = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        page.open(console.url)
        assert eventually(lambda: set(keys) == set(page.texts("#oldest .key")) == set(page.texts("#hottest .key")))
        found = page.run("""
            const clear = (a, b) => a.right <= b.left + 1;
            return [...document.querySelectorAll(".key")].map((key) => {
                const [head, tail] = [...key.children].map((span) => span.getBoundingClientRect());
                const cells = [...key.closest("tr").cells].map((cell) => cell.getBoundingClientRect());
                const shown = cells.filter((cell) => cell.width);
                return [key.title, key.lastElementChild.textContent,
                    key.firstElementChild.scrollWidth > head.width, tail.right <= cells[0].right + 1,
                    shown.every((cell, place) => !place || clear(shown[place - 1], cell))];
            });
        """)
        assert set(keys) == {title for title, *_ in found}
        assert {(title[-12:], True, True, True) for title in keys} == {tuple(rest) for _, *rest in found}
        assert eventually(lambda: feed.name in page.text("#feeds tbody"))
        assert 60 < page.run("return document.querySelector('#feeds tbody td').getBoundingClientRect().width")
        assert 390 >= page.run("return document.documentElement.scrollWidth")
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
