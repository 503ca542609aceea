"""Stores that came from elsewhere: odd names and numbers, links that lead out, pipes, too many."""

from __future__ import annotations

import io
import json
import os
import re
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from shaketable.harness.serving import pages
from shaketable.harness.serving import store as stores
from shaketable.harness.serving.pages import Numbers, Trends, draw_charts
from shaketable.harness.serving.server import Response, Site
from shaketable.harness.serving.store import Entry

Write = Callable[..., Path]
ODD = os.fsdecode(b"caf\xe9 <b>%2F")
"""A folder's name that is no UTF-8, and that a page and an address must not take for their own."""


def body(answer: Response) -> bytes:
    return answer.body if isinstance(answer.body, bytes) else b"".join(answer.body)


def test_a_run_whose_folder_is_no_utf_8_is_listed_and_leads_to_its_files(
    store: Path, write_run: Write
) -> None:
    write_run("quick")
    odd = write_run("quick", "20261122T111500.000Z")
    (store / ODD).mkdir()
    odd.rename(store / ODD / odd.name)
    site = Site(store)
    page = site.respond("/")
    assert (page.status, b"2 of 2 runs" in body(page)) == (200, True)
    address = quote(os.fsencode(f"{ODD}/{odd.name}"))
    assert f'href="/run/{address}"'.encode() in body(page)
    for what in ("run", "files", "zip"):
        answer = site.respond(f"/{what}/{address}")
        assert (answer.status, bool(body(answer))) == (200, True)
    links = re.findall(rb'href="(/files/[^"]*/report.html)"', body(site.respond(f"/run/{address}")))
    assert [body(site.respond(link.decode())) for link in links] == [
        b"<!DOCTYPE html><title>a report</title>"
    ]
    picked = re.findall(rb'name="a" value="([^"]*)"', body(page))
    assert address.encode() in picked
    asked = f"/compare?a={quote(address)}&b={quote(address)}"
    assert site.respond(asked).status == 200


@pytest.mark.parametrize(
    ("campaign", "run"),
    [
        ("seed = 0x" + "f" * 5000, "{}"),
        ("seed = " + "[" * 2000 + "]" * 2000, "{}"),
        ('name = "q"', '{"counts": {"ok": 1' + "0" * 4200 + ', "fail": 9' + "9" * 4200 + "}}"),
        ('name = "q"', '{"counts": {"ok": -5, "fail": true, "info": "many"}}'),
        ('name = "q"', '{"counts": ' + "[" * 20_000 + "]" * 20_000 + "}"),
        ('name = "\\uFFFE\\u0000"', '{"counts": 3}'),
    ],
)
def test_one_run_with_odd_values_hides_no_other(
    store: Path, write_run: Write, campaign: str, run: str
) -> None:
    write_run("good")
    bad = write_run("bad", campaign=campaign)
    (bad / "run.json").write_text(run)
    site = Site(store)
    page = site.respond("/")
    assert (page.status, b"2 of 2 runs" in body(page)) == (200, True)
    for what in ("run", "files"):
        assert site.respond(f"/{what}/bad/{bad.name}").status == 200
    assert site.respond("/trends?name=good").status == 200


def test_what_cannot_be_read_at_all_is_listed_as_that(
    store: Path, write_run: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run("good")
    write_run("bad")
    read = stores._read

    def fails(id_: str, folder: object) -> Entry:
        if id_.startswith("bad"):
            raise AssertionError("whatever it is")
        return read(id_, folder)

    monkeypatch.setattr(stores, "_read", fails)
    page = body(Site(store).respond("/"))
    assert b"2 of 2 runs" in page
    assert b"what it wrote of itself cannot be read" in page


def measurable(run: Path) -> Path:
    (run / "history" / "operations").mkdir(exist_ok=True)
    return run


@pytest.mark.parametrize(
    "name",
    [
        "run.json",
        "campaign.toml",
        "results.json",
        "status.jsonl",
        "drain.json",
        "history/events.parquet",
        "history/operations/part-0.parquet",
        "history/operations",
    ],
)
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_nothing_is_measured_through_links_and_no_pipe_is_waited_for(
    store: Path, write_run: Write, tmp_path: Path, name: str, kind: str
) -> None:
    good, bad = measurable(write_run("good")), measurable(write_run("bad"))
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "part-0.parquet").write_text("name = 'somebody else's'")
    path = bad / name
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
    if kind == "link":
        path.symlink_to(secret if name == "history/operations" else secret / "part-0.parquet")
    else:
        os.mkfifo(path)
    site = Site(store)
    assert site.respond("/").status == 200
    runs = [f"{run.parent.name}/{run.name}" for run in (good, bad)]
    compared = site.respond(f"/compare?a={runs[0]}&b={runs[1]}")
    assert compared.status in (404, 422), "a link for campaign.toml is no run at all"
    assert b"somebody else" not in body(compared)
    entry = Entry(runs[1], "bad", bad.name, "VALID")
    assert Trends(store).numbers(entry) == Numbers()


def test_a_history_behind_a_link_is_no_run(store: Path, write_run: Write, tmp_path: Path) -> None:
    run = write_run("bad")
    (run / "history").rename(tmp_path / "history")
    (run / "history").symlink_to(tmp_path / "history")
    site = Site(store)
    assert b"no runs in this store" in body(site.respond("/"))
    assert site.respond(f"/run/bad/{run.name}").status == 404


def test_runs_that_are_not_listed_are_counted_and_are_the_oldest(
    store: Path, write_run: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "RUNS_MAX", 3)
    # By name alone the walk would come by "zz" first, and leave the newest out.
    for number, name in enumerate(("zz", "zz", "zz", "aa", "mm")):
        write_run(name, f"2026112{number}T101500.000Z")
    page = body(Site(store).respond("/"))
    assert b"2 older runs are not listed" in page
    assert re.findall(rb"/run/(\w+)/(\d{8})", page) == [
        (b"mm", b"20261124"),
        (b"aa", b"20261123"),
        (b"zz", b"20261122"),
    ]
    monkeypatch.setattr(stores, "FOLDERS_MAX", 4)
    assert b"only 4 folders were looked into" in body(Site(store).respond("/"))


def test_a_walk_that_was_whole_tells_nothing(store: Path, write_run: Write) -> None:
    write_run("quick")
    assert b"not listed" not in body(Site(store).respond("/"))


def test_pages_of_matrices_are_linked(store: Path, write_run: Write) -> None:
    matrix = store / "matrix-m" / "20261122T101500.000Z"
    cell = write_run("matrix-m/20261122T101500.000Z/runs/kill-sim", "20261122T101501.000Z")
    (matrix / "matrix.html").write_text("<!doctype html><title>all cells</title>")
    site = Site(store)
    link = f"/files/{matrix.relative_to(store)}/matrix.html"
    assert f'href="{link}"'.encode() in body(site.respond("/"))
    assert f'href="{link}"'.encode() in body(site.respond(f"/run/{cell.relative_to(store)}"))
    assert b"all cells" in body(site.respond(link))


def test_a_zip_takes_names_that_are_no_utf_8(store: Path, write_run: Write) -> None:
    run = write_run("quick")
    for name in (b"a\xff", b"a\xfe", b"a\xef\xbf\xbd"):
        Path(run, "nodes", os.fsdecode(name)).write_text("x")
    data = body(Site(store).respond(f"/zip/quick/{run.name}"))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
    assert len(set(names)) == len(names)
    assert sum("\ufffd" in name for name in names) == 3


def test_a_run_that_never_recovered_is_not_drawn_as_one_that_did() -> None:
    entries = [Entry(f"q/{n}", "q", str(n), "VALID") for n in range(3)]
    known = {
        "q/0": Numbers(recovery_s=2.0, recoveries=3),
        "q/1": Numbers(recovery_s=float("inf"), never=2, recoveries=3),
        "q/2": Numbers(recovery_s=3.0, never=1, recoveries=3),
    }

    class Known(Trends):
        def numbers(self, entry: Entry, until_s: float = 0.0) -> Numbers:
            assert until_s > time.monotonic() - 60
            return known[entry.id]

    charts, _ = draw_charts(entries, Known(Path()))
    points = charts[2].points
    assert [point.text for point in points] == ["3 s; 1 of 3 never", "never; 2 of 3 never", "2 s"]
    assert points[1].y == pages.TOP
    assert min(points[0].y, points[2].y) > pages.TOP
    assert charts[2].lines == (), "what never came is on no line between those that did"


def test_a_foreign_run_is_measured_as_before(store: Path, write_run: Write) -> None:
    good = measurable(write_run("good"))
    (good / "run.json").write_text(json.dumps({"machine": {"busy_with_others": 10**400}}))
    answer = Site(store).respond(f"/compare?a=good/{good.name}&b=good/{good.name}")
    assert answer.status == 200
