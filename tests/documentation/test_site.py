"""The documentation site builds without a warning, its links lead somewhere, it names all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from chromium import chromium, needs_chromium
from lxml import html
from selenium.webdriver.support.wait import WebDriverWait

from docs.building import build, reference
from docs.building.commands import page as commands_page
from docs.building.links import rewritten
from docs.building.tables import prose, table
from shaketable.harness import discovery
from shaketable.harness.campaigns import built_in
from shaketable.harness.campaigns.campaign import KEYS
from shaketable.harness.campaigns.scenarios import SCENARIOS
from shaketable.harness.contracts.abilities import planted_bugs
from shaketable.harness.contracts.finding_kinds import FINDING_KINDS
from shaketable.harness.described.target_file import TargetTable
from shaketable.harness.terminal.commands import COMMANDS, app

PAGES_MIN = 80
WAIT_S = 60
LOADED = {"img": "src", "script": "src", "link": "href", "iframe": "src"}
"""Elements that a browser loads something for, and the attribute that says what."""
IN_THE_HEAD_ONLY = {"canonical", "next", "prev", "index", "search"}
"""Kinds of <link> that nothing is loaded for."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "docs", str(folder)],
        env={**os.environ, "PYTHONPATH": f"{build.ROOT}:{build.ROOT / 'src'}"},
        cwd=folder.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{folder / 'index.html'}\n"
    return folder


@pytest.fixture(scope="module")
def documents(built: Path) -> dict[Path, html.HtmlElement]:
    return {path: html.parse(str(path)).getroot() for path in sorted(built.rglob("*.html"))}


def references(page: Path, document: html.HtmlElement) -> Iterator[tuple[Path, str]]:
    """Yield the file and the anchor of each link of a page that stays on the site."""
    for element, _, link, _ in document.iterlinks():
        parts = urlsplit(link)
        if parts.scheme or parts.netloc or element.tag == "form":
            continue
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        yield target, unquote(parts.fragment)


def anchors(document: html.HtmlElement) -> set[str]:
    return {str(name) for name in document.xpath("//@id")} | {""}


def test_every_link_and_anchor_leads_somewhere(documents: dict[Path, html.HtmlElement]) -> None:
    assert len(documents) > PAGES_MIN
    there = {page: anchors(document) for page, document in documents.items()}
    broken = [
        f"{page.name}: {target.name}#{anchor}"
        for page, document in documents.items()
        for target, anchor in references(page, document)
        if not target.exists() or (target in there and anchor not in there[target])
    ]
    assert broken == []


def test_nothing_is_loaded_from_a_network(documents: dict[Path, html.HtmlElement]) -> None:
    for page, document in documents.items():
        for element in document.iter(*LOADED):
            if element.tag == "link" and element.get("rel") in IN_THE_HEAD_ONLY:
                continue
            link = element.get(LOADED[element.tag], "")
            assert not urlsplit(link).netloc, f"{page.name} loads {link}"
    for style in next(iter(documents)).parent.rglob("*.css"):
        assert not re.search(r"url\(\s*['\"]?https?:|@import", style.read_text(encoding="utf-8"))


def named(documents: dict[Path, html.HtmlElement], page: str) -> set[str]:
    (document,) = [
        found for path, found in documents.items() if path.match(f"reference/{page}.html")
    ]
    named = {element.text_content().strip() for element in document.xpath("//td//code")}
    return named | {str(text).strip() for text in document.xpath("//h2/text()")}


def test_the_reference_names_all_that_list_names(documents: dict[Path, html.HtmlElement]) -> None:
    for kind in discovery.PACKAGES:
        assert set(discovery.built_ins(kind)) - named(documents, kind) == set()
    assert set(SCENARIOS) - named(documents, "scenarios") == set()
    told = named(documents, "campaigns")
    assert {*built_in.names(built_in.CAMPAIGNS), *built_in.names(built_in.MATRICES)} <= told
    bugs = planted_bugs(
        discovery.built_in("targets", name) for name in discovery.built_ins("targets")
    )
    assert {bug.name for bug in bugs} - named(documents, "planted-bugs") == set()
    assert set(FINDING_KINDS) - named(documents, "findings") == set()


def test_the_reference_names_every_command_option_and_key(
    documents: dict[Path, html.HtmlElement],
) -> None:
    options = {
        name
        for command in COMMANDS
        for argument in app[command.name].assemble_argument_collection()
        if argument.show
        for name in argument.names
    }
    told = named(documents, "commands")
    assert {command.name for command in COMMANDS} - told == set()
    assert options - told == set()
    assert set(KEYS) - named(documents, "campaign-toml") == set()
    assert set(TargetTable.__struct_fields__) - named(documents, "shaketable-toml") == set()


@pytest.mark.filterwarnings("default")  # Sphinx' extensions use what Sphinx will take away
def test_a_link_that_leads_nowhere_fails_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """On two pages, since the whole site takes half a minute."""

    def gathered(source: Path) -> None:
        source.mkdir(parents=True)
        (source / "index.md").write_text(
            "# One\n\n[other](other.md#gone)\n\n```{toctree}\nother\n```\n"
        )
        (source / "other.md").write_text("# Other\n\n## There\n")

    monkeypatch.setattr(build, "gather", gathered)
    assert build.build(tmp_path / "site") != 0
    assert "'gone'" in capfd.readouterr().err


@pytest.mark.browser
@needs_chromium
def test_it_is_read_and_searched_from_a_disk(built: Path, tmp_path: Path) -> None:
    with chromium(tmp_path / "profile") as browser:
        for width in (1280, 390):
            for page in ("index", "docs/reference/commands", "docs/reference/shaketable-toml"):
                browser.open(f"{built.as_uri()}/{page}.html", width)
                assert browser.overflow_px() <= 0, (page, width)
                assert browser.complaints() == []
        browser.open(f"{built.as_uri()}/search.html?q=linearizable")
        found = WebDriverWait(browser.driver, WAIT_S).until(
            lambda page: page.find_elements("css selector", "#search-results li a")
        )
        assert len(found) > 1


# ---- the parts, which are pure ---------------------------------------------------------------


PLACES = {
    "README.md": "index.md",
    "docs/a.md": "docs/a.md",
    "docs/adr/0001-x.md": "docs/adr/0001-x.md",
}


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("README.md", "[a](docs/a.md#b)", "[a](docs/a.md#b)"),
        ("docs/a.md", "[r](../README.md)", "[r](../index.md)"),
        ("docs/a.md", "[`c.py`](../src/c.py) x", "`c.py` x"),
        ("docs/a.md", "[w](https://x.org/a.md)", "[w](https://x.org/a.md)"),
        ("docs/a.md", "see `docs/adr/0001`.", "see [docs/adr/0001.md](adr/0001-x.md)."),
        ("docs/adr/0001-x.md", "(docs/a.md)", "(docs/a.md)"),
        ("docs/adr/0001-x.md", "in docs/a.md", "in [docs/a.md](../a.md)"),
        ("README.md", "![p](docs/p.png)", "![p](docs/p.png)"),
        ("README.md", "```\n[a](nowhere.md)\n```", "```\n[a](nowhere.md)\n```"),
    ],
)  # fmt: skip
def test_links_are_those_of_the_site(page: str, text: str, expected: str) -> None:
    assert rewritten(text, page, PLACES) == expected + "\n"


def test_text_of_the_code_is_shown_as_it_is() -> None:
    assert prose("a <b> *c* `d*` e_f") == "a &lt;b> \\*c\\* `d*` e\\_f"
    assert table(("a", "b", "c"), [("1", "", "x|y")]) == "| a | c |\n| --- | --- |\n| 1 | x\\|y |\n"


def test_every_argument_and_option_is_explained() -> None:
    tables = [part for part in commands_page().split("\n### ") if "| name |" in part]
    assert len(tables) > 40
    for part in tables:
        assert "| name | what |" in part, part
        rows = [row.split(" | ") for row in part.splitlines() if row.startswith("| `")]
        assert all(len(row[1].strip("| ")) > 3 for row in rows), part


def test_no_page_says_what_a_checkout_calls_the_program() -> None:
    """Pages made of the code: the program is installed where they are read."""
    assert "./shaketable " not in commands_page().replace("the program is `./shaketable`", "")
    assert all(text.startswith("# ") for text in reference.pages().values())
