"""The store's pages as a browser shows them; what is hostile in a store finds nothing to act on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chromium import driven, needs_chromium
from selenium import webdriver
from selenium.webdriver.support.wait import WebDriverWait

from shaketable.harness import run_markers
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.history.segments import Event, SegmentWriter
from shaketable.harness.serving.server import StoreServer

WAIT_S = 60

pytestmark = [pytest.mark.browser, needs_chromium]

THIEF = """<!DOCTYPE html><title>waiting</title><script>
fetch("/").then(r => r.text()).then(t => { document.title = "stolen " + t.length; })
  .catch(() => { document.title = "refused, origin " + self.origin; });
</script>"""
HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>'


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[webdriver.Chrome]:
    with driven(tmp_path / "profile") as driver:
        yield driver


def test_the_search_box_is_one_line(
    browser: webdriver.Chrome, store: Path, write_run: Callable[..., Path]
) -> None:
    """A report gives such a box its width by what is its height in the store's form."""
    write_run()
    with StoreServer(store, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            for width in (1280, 390):
                browser.set_window_size(width, 900)
                browser.get(server.address)
                box = browser.find_element("css selector", "input[type=search]")
                button = browser.find_element("css selector", "form.filters button")
                assert box.size["height"] < 2 * button.size["height"]
        finally:
            server.shutdown()
            thread.join()


def test_pages_are_quiet_and_a_hostile_report_reads_no_other_page(
    browser: webdriver.Chrome, store: Path, write_run: Callable[..., Path]
) -> None:
    write_run(valid=False, why=HOSTILE, report=THIEF)
    live = RunFolder(write_run("nightly", "20261122T120000.000Z", valid=None, report=None))
    live.log.write_text(f"event=phase at_s=1 phase=chaos\n{HOSTILE}\n")
    writer = SegmentWriter(live.segment("worker-0"))
    writer.write([Event(10**9, 0, "ok", "append")])
    with StoreServer(store, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            at, id_ = server.address.rstrip("/"), "quick/20261122T101500.000Z"
            for path in ("/", f"/run/{id_}", f"/files/{id_}", "/trends?name=quick",
                         f"/compare?a={id_}&b={id_}"):  # fmt: skip
                browser.get(at + path)
                assert len(browser.title) > 1, path
                assert browser.get_log("browser") == [], path
            with run_markers.working_in(live.path):
                browser.get(f"{at}/run/nightly/20261122T120000.000Z")
                assert "1 ok" in browser.find_element("id", "live").text
                writer.write([Event(2 * 10**9, 0, "ok", "append")])
                WebDriverWait(browser, WAIT_S).until(
                    lambda shown: "2 ok" in shown.find_element("id", "live").text
                )
                assert browser.get_log("browser") == []
            browser.get(f"{at}/files/{id_}/report.html")
            WebDriverWait(browser, WAIT_S).until(lambda shown: shown.title != "waiting")
            assert browser.title == "refused, origin null"
        finally:
            server.shutdown()
            thread.join()
    writer.close()
