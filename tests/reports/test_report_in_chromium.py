"""The report as a browser shows it, from the file, with nothing else in reach."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import (
    LOAD_TIMEOUT_S,
    Scheme,
    complaints,
    driven,
    load,
    needs_chromium,
    requests_elsewhere,
)
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from shaketable import reports

pytestmark = [pytest.mark.browser, needs_chromium]

CANVASES = """
const found = [];
const walk = root => {
  for (const element of root.querySelectorAll("*")) {
    if (element.tagName === "CANVAS") found.push(element);
    if (element.shadowRoot) walk(element.shadowRoot);
  }
};
walk(document);
return found.filter(canvas => {
  if (canvas.width < 200 || canvas.height < 80) return false;
  // Of a copy: the plot's own canvas is not made to be read again and again.
  const copy = Object.assign(document.createElement("canvas"),
    { width: canvas.width, height: canvas.height });
  const context = copy.getContext("2d", { willReadFrequently: true });
  context.drawImage(canvas, 0, 0);
  const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
  const colours = new Set();
  for (let n = 0; n < pixels.length; n += 4) {
    if (pixels[n + 3]) colours.add(pixels[n] << 16 | pixels[n + 1] << 8 | pixels[n + 2]);
  }
  return colours.size >= 4;
}).length;
"""
"""Counts the canvases of a plot's size that show at least four colours."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with driven(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


def show(
    browser: webdriver.Chrome, folder: Path, width: int = 1280, scheme: Scheme = "light"
) -> None:
    """Write the report of a folder, forget old log entries, load the page."""
    reports.write(folder)
    load(browser, (folder / "report.html").as_uri(), width, scheme=scheme)


def wait_for_plots(browser: webdriver.Chrome, count: int) -> None:
    WebDriverWait(browser, LOAD_TIMEOUT_S).until(
        lambda driver: driver.execute_script(CANVASES) >= count, "the plots were not drawn"
    )


@pytest.mark.parametrize(
    ("kind", "verdict", "plots"),
    [
        ("clean_run", "✓ VALID", 7),
        ("invalid_run", "✗ INVALID", 6),
        ("interrupted_run", "? UNKNOWN", 7),
        ("empty_run", "? UNKNOWN", 0),
    ],
)
def test_the_page_stands_alone(
    browser: webdriver.Chrome, kind: str, verdict: str, plots: int, request: pytest.FixtureRequest
) -> None:
    sample = request.getfixturevalue(kind)
    show(browser, getattr(sample, "folder", sample))
    wait_for_plots(browser, plots)
    shown = browser.find_element(By.ID, "verdict")
    assert shown.is_displayed()
    assert shown.text == verdict
    assert browser.find_element(By.ID, "why").is_displayed()
    assert "./shaketable run" in browser.find_element(By.ID, "command").text
    assert complaints(browser) == []
    assert requests_elsewhere(browser) == []


@pytest.mark.parametrize("kind", ["invalid_run", "interrupted_run", "hostile_run", "empty_run"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_itself_never_scrolls_sideways(
    browser: webdriver.Chrome, kind: str, width: int, request: pytest.FixtureRequest
) -> None:
    sample = request.getfixturevalue(kind)
    show(browser, getattr(sample, "folder", sample), width)
    wait_for_plots(browser, 0 if kind == "empty_run" else 2)
    for details in browser.find_elements(By.TAG_NAME, "details"):
        browser.execute_script("arguments[0].open = true", details)
    measured = browser.execute_script("return document.documentElement.scrollWidth")
    assert measured <= width


PLOTTED = """
const plot = Bokeh.documents.flatMap(each => each.roots())
  .find(root => root.y_range.factors?.includes("violations"));
if (plot === undefined) return null;
const view = Bokeh.index.get_by_id(plot.id);
const marks = plot.renderers.find(each => "page" in each.data_source.data);
const {x, row, page} = marks.data_source.data;
const box = view.el.getBoundingClientRect();
return [
  Math.round(box.left + view.frame.x_scale.compute(x[0])),
  Math.round(box.top + view.frame.y_scale.compute(row[0])),
  page[0],
];
"""
"""Returns where the first diamond is in the window, and its page."""


def test_a_click_on_a_diamond_opens_the_page_of_its_violation(
    browser: webdriver.Chrome, invalid_run: Any
) -> None:
    show(browser, invalid_run.folder)
    wait_for_plots(browser, 2)
    browser.execute_script("document.querySelector('.plots').scrollIntoView()")
    x, y, page = WebDriverWait(browser, LOAD_TIMEOUT_S).until(
        lambda driver: driver.execute_script(PLOTTED)
    )
    click = ActionBuilder(browser)
    click.pointer_action.move_to_location(x, y).click()
    click.perform()
    WebDriverWait(browser, LOAD_TIMEOUT_S).until(lambda driver: driver.current_url.endswith(page))


def test_hostile_text_does_nothing(browser: webdriver.Chrome, hostile_run: Any) -> None:
    show(browser, hostile_run.folder)
    wait_for_plots(browser, 4)
    plot = browser.find_element(By.CSS_SELECTOR, ".plots")
    browser.execute_script("arguments[0].scrollIntoView()", plot)
    for down in (-20, 0, 20):  # over the bars, so that hover boxes show the texts
        ActionChains(browser).move_to_element_with_offset(plot, 0, down).perform()
    assert browser.execute_script("return window.hostile === undefined")
    assert complaints(browser) == []


def test_the_keyboard_reaches_the_evidence_and_the_command(
    browser: webdriver.Chrome, invalid_run: Any
) -> None:
    show(browser, invalid_run.folder)
    button = browser.find_element(By.CSS_SELECTOR, "button[data-copy=command]")
    said = button.text
    button.send_keys(Keys.ENTER)
    WebDriverWait(browser, LOAD_TIMEOUT_S).until(lambda _: button.text != said)
    selected = browser.execute_script("return String(getSelection())")
    assert button.text == "Copied" or "./shaketable run" in selected
    more = browser.find_element(By.CSS_SELECTOR, ".group details.more > summary")
    more.send_keys(Keys.ENTER)
    others = more.find_element(By.XPATH, "..").find_elements(By.CSS_SELECTOR, "tbody tr")
    assert others
    assert others[-1].is_displayed()
    folded = browser.find_elements(By.CSS_SELECTOR, ".group details:not([open]) > summary")[0]
    folded.send_keys(Keys.ENTER)
    picture = folded.find_element(By.XPATH, "..").find_element(By.CSS_SELECTOR, "svg.spacetime")
    assert picture.is_displayed()
    assert picture.find_elements(By.CSS_SELECTOR, "rect.bar.marked")


def rows_of_the_table(browser: webdriver.Chrome) -> list[list[str]]:
    rows: list[list[str]] = browser.execute_script(
        "return [...document.querySelectorAll('#operations-table tbody tr')]"
        ".map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return rows


def search(browser: webdriver.Chrome, words: str) -> str:
    """Put words into the search at once; return what it says when it has looked for them."""
    browser.execute_script(
        "document.getElementById('found').textContent = '';"
        "const field = document.getElementById('search');"
        "field.value = arguments[0]; field.dispatchEvent(new Event('input'));",
        words,
    )
    found = browser.find_element(By.ID, "found")
    WebDriverWait(browser, LOAD_TIMEOUT_S).until(lambda _: found.text)
    return found.text


def hits(said: str) -> int:
    return int(said.split(maxsplit=1)[0].replace(",", ""))


def test_the_operations_are_searched(browser: webdriver.Chrome, clean_run: Any) -> None:
    show(browser, clean_run.folder)
    whole = clean_run.operations
    assert hits(browser.find_element(By.ID, "found").text) == len(whole)
    unknown = [row for row in whole if row["outcome"] == "info"]
    assert hits(search(browser, "outcome:info")) == len(unknown) > 0
    put = next(row for row in whole if row["f"] == "append" and row["outcome"] == "ok")
    said = search(browser, f"f:append key:{put['key']} offset:{put['offset']} node:n1")
    assert hits(said) == 1
    assert rows_of_the_table(browser)[0][0] == str(put["op"])
    late = [row for row in whole if row["call_ns"] > 12_500_000_000]
    assert hits(search(browser, "t>12.5")) == len(late)
    slow = [
        row for row in late
        if row["return_ns"] is not None and row["return_ns"] - row["call_ns"] >= 100_000_000
    ]  # fmt: skip
    assert hits(search(browser, "t>12.5 took>=100")) == len(slow)
    assert hits(search(browser, "timed out")) == len(unknown)
    assert hits(search(browser, '"timed out after 1.0 s"')) == len(unknown)
    assert hits(search(browser, "-outcome:ok -outcome:info")) == len(
        [row for row in whole if row["outcome"] == "fail"]
    )
    assert hits(search(browser, "process:3")) == len([row for row in whole if row["process"] == 3])
    assert "there is no field colour" in search(browser, "colour:red")
    assert "is compared with a number" in search(browser, "t>noon")
    assert rows_of_the_table(browser) == []
    assert complaints(browser) == []


def test_the_operations_are_reached_by_keys(browser: webdriver.Chrome, clean_run: Any) -> None:
    show(browser, clean_run.folder)
    browser.find_element(By.TAG_NAME, "body").send_keys("/")
    field = browser.switch_to.active_element
    assert field.get_attribute("id") == "search"
    field.send_keys(Keys.ARROW_DOWN)

    def current() -> str:
        return str(browser.switch_to.active_element.get_attribute("aria-rowindex"))

    assert current() == "2"  # the head is the first row
    for key, row in (
        (Keys.ARROW_DOWN, "3"), (Keys.PAGE_DOWN, "53"), (Keys.ARROW_UP, "52"),
        (Keys.ARROW_UP, "51"), (Keys.PAGE_UP, "2"), (Keys.ARROW_UP, "2"),
    ):  # fmt: skip
        browser.switch_to.active_element.send_keys(key)
        assert current() == row
    browser.switch_to.active_element.send_keys(Keys.END)
    assert current() == str(len(clean_run.operations) + 1)
    assert "rows" in browser.find_element(By.ID, "found").text
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert browser.switch_to.active_element.get_attribute("id") == "search"
    field.send_keys("f:read/")  # a slash in the search is a slash
    assert field.get_attribute("value") == "f:read/"


def test_an_operation_can_be_pointed_to(browser: webdriver.Chrome, invalid_run: Any) -> None:
    show(browser, invalid_run.folder)
    op = invalid_run.lost[0]["op"]
    browser.get((invalid_run.folder / "report.html").as_uri() + f"#op={op}")
    assert [row[0] for row in rows_of_the_table(browser)] == [str(op)]
    marked = browser.find_elements(By.CSS_SELECTOR, "#operations-table tr.marked")
    assert len(marked) == 1, "operations that findings name stand out"


def test_slowest_operations_come_first_where_asked(
    browser: webdriver.Chrome, clean_run: Any
) -> None:
    show(browser, clean_run.folder)
    browser.find_element(By.CSS_SELECTOR, "#order option[value=took]").click()
    took = [float(row[2]) for row in rows_of_the_table(browser)]
    assert took == sorted(took, reverse=True)
    assert took[0] > 300


def test_the_time_axis_is_moved_by_buttons_and_a_fault_is_shown(
    browser: webdriver.Chrome, clean_run: Any
) -> None:
    show(browser, clean_run.folder)
    wait_for_plots(browser, 7)
    WebDriverWait(browser, LOAD_TIMEOUT_S).until(
        lambda _: browser.find_element(By.CSS_SELECTOR, ".axis").is_displayed()
    )
    time = browser.find_element(By.ID, "shown-time")
    whole = time.text
    browser.find_element(By.CSS_SELECTOR, "button[data-axis=in]").send_keys(Keys.ENTER)
    assert time.text != whole
    browser.find_element(By.CSS_SELECTOR, "button[data-axis=all]").send_keys(Keys.ENTER)
    assert time.text == whole
    browser.find_element(By.CSS_SELECTOR, "#fault-2 button").send_keys(Keys.ENTER)
    assert time.text == "18.00 s to 24.00 s"  # the pause was from 20 s to 22 s
    browser.execute_script("document.dispatchEvent(new CustomEvent('fault-chosen', {detail: 1}))")
    told = browser.find_element(By.ID, "chosen-fault")
    assert told.is_displayed()
    assert "18,220 bytes held on 4 links" in told.text
    assert complaints(browser) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_in_dark(
    browser: webdriver.Chrome, clean_run: Any, scheme: Scheme
) -> None:
    show(browser, clean_run.folder, scheme=scheme)
    paper, ink = browser.execute_script(
        "const body = getComputedStyle(document.body);"
        "return [body.backgroundColor, body.color].map(c => c.match(/\\d+/g).map(Number))"
    )
    assert (sum(paper) > sum(ink)) == (scheme == "light")
    for selector in ("#search", "#operations-table th", "button[data-axis=in]"):
        element = browser.find_element(By.CSS_SELECTOR, selector)
        shown = browser.execute_script(
            "return getComputedStyle(arguments[0]).color.match(/\\d+/g).map(Number)", element
        )
        assert abs(sum(shown) - sum(paper)) > 200, selector
