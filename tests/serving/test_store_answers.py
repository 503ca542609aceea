"""What a store answers to a browser, and that nothing hostile in it does harm."""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import pytest

from shaketable.harness import run_markers
from shaketable.harness.history.run_folder import RunFolder, link_latest
from shaketable.harness.history.segments import Event, SegmentWriter
from shaketable.harness.serving.pages import chart
from shaketable.harness.serving.server import Response, Site, zipped
from shaketable.harness.serving.store import Entry

Write = Callable[..., Path]
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'"


class _Seen(HTMLParser):
    """Collects what a browser would act on."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "action")]
        self.handlers += [name for name, _ in attrs if name.startswith("on") or name == "style"]


def seen(answer: Response) -> _Seen:
    parser = _Seen()
    parser.feed(text(answer))
    return parser


def text(answer: Response) -> str:
    body = answer.body if isinstance(answer.body, bytes) else b"".join(answer.body)
    return body.decode()


def close(answer: Response) -> None:
    if not isinstance(answer.body, bytes):
        getattr(answer.body, "close")()  # noqa: B009 - pieces and zips both have it


def test_runs_are_listed_newest_first_searched_and_filtered(store: Path, write_run: Write) -> None:
    write_run(time="20261122T101500.000Z")
    write_run(time="20261122T111500.000Z", valid=False, why="3 acknowledged appends are lost")
    write_run("nightly", "20261121T000000.000Z", valid="unknown")
    write_run("nightly", "20261120T000000.000Z", valid=None)
    cell = store / "matrix-all" / "20261122T000000.000Z" / "runs"
    os.renames(
        write_run("kill-sim", "20261122T000001.000Z"), cell / "kill-sim" / "20261122T000001.000Z"
    )
    site = Site(store)
    shown = text(site.respond("/"))
    assert shown.index("2026-11-22 11:15:00") < shown.index("2026-11-22 10:15:00")
    assert "5 of 5 runs" in shown
    assert "3 acknowledged appends are lost" in shown
    assert "NOT JUDGED" in shown
    for query, count in (
        ("q=appends+LOST", 1),
        ("state=INVALID", 1),
        ("name=nightly", 2),
        ("name=nightly&state=UNKNOWN", 1),
        ("q=kill-sim", 1),
        ("q=nothing-like-that", 0),
        ("page=99", 5),
        ("page=0", 5),
        ("page=00000003", 5),
        (f"page={'9' * 5000}", 5),
        ("page=-1&state=", 5),
    ):
        assert f"{count} of 5 runs" in text(site.respond(f"/?{query}")), query


def test_the_headline_is_what_was_found_the_gravest_first(store: Path, write_run: Write) -> None:
    folder = write_run(valid=False, why="11 stale-read")
    found = [{"kind": "lost-append", "message": "one"}]
    checkers = {
        "log": {"valid": False, "summary": "11 stale-read", "counts": {"stale-read": 11},
                "findings": [{"kind": "stale-read", "message": "m"}]},
        "stats": {"valid": "unknown", "summary": "not this"},
        "durability": {"valid": False, "summary": "1 lost-append", "findings": found},
    }  # fmt: skip
    results = folder / "results.json"
    results.write_text(json.dumps({"valid": False, "checkers": checkers}))
    page = text(Site(store).respond("/"))
    assert "1 acknowledged append is lost; 11 reads missed what was there already" in page
    results.write_text(json.dumps({"valid": False, "why": "as stated", "checkers": checkers}))
    assert "as stated" in text(Site(store).respond("/"))


def test_many_runs_are_shown_page_by_page(store: Path, write_run: Write) -> None:
    for number in range(101):
        write_run(time=f"20261122T101500.{number:03d}Z")
    site = Site(store)
    assert text(site.respond("/")).count('<td class="time">') == 100
    assert 'href="/?page=2"' in text(site.respond("/"))
    assert text(site.respond("/?page=2")).count('<td class="time">') == 1


def test_a_run_leads_to_its_report_its_files_and_its_zip(store: Path, write_run: Write) -> None:
    folder = write_run()
    link_latest(RunFolder(folder))
    site = Site(store)
    id_ = "quick/20261122T101500.000Z"
    page = seen(site.respond(f"/run/{id_}"))
    assert {f"/files/{id_}/report.html", f"/files/{id_}", f"/zip/{id_}"} <= set(page.links)
    for link in page.links:
        if link.startswith("/"):
            answer = site.respond(link)
            assert answer.status == 200, link
            close(answer)
    assert site.respond("/run/latest").status == 200
    assert "node.log" in text(site.respond(f"/files/{id_}/nodes/n0"))
    results = site.respond(f"/files/{id_}/results.json")
    assert results.kind.startswith("text/plain")
    assert '"valid": true' in text(results)


def test_a_zip_holds_the_files_and_not_what_links_lead_to(store: Path, write_run: Write) -> None:
    folder = write_run()
    secret = store.parent / "secret"
    secret.write_text("secret")
    (folder / "link").symlink_to(secret)
    (folder / "linked").symlink_to(store.parent, target_is_directory=True)
    os.mkfifo(folder / "pipe")
    (folder / "large").write_bytes(os.urandom(600_000))
    (folder / ".half.tmp").write_text("half")
    pieces = list(Site(store).respond("/zip/quick/20261122T101500.000Z").body)
    assert len(pieces) > 2
    with zipfile.ZipFile(io.BytesIO(b"".join(pieces))) as archive:
        assert archive.testzip() is None
        assert {name.partition("/")[2] for name in archive.namelist()} == {
            "campaign.toml", "large", "nodes/n0/node.log", "report.html", "results.json", "run.json"
        }  # fmt: skip
        assert archive.read("20261122T101500.000Z/large") == (folder / "large").read_bytes()


def test_a_zip_is_bounded_and_says_what_it_lacks(
    store: Path, write_run: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run()
    (folder / "large").write_bytes(b"x" * 5000)
    monkeypatch.setattr("shaketable.harness.serving.server.ZIP_BYTES_MAX", 4000)
    with zipfile.ZipFile(io.BytesIO(b"".join(zipped(folder)))) as archive:
        assert "large: 5,000 bytes" in archive.read("20261122T101500.000Z/LEFT-OUT.txt").decode()
        assert "20261122T101500.000Z/campaign.toml" in archive.namelist()


@pytest.mark.parametrize(
    "named",
    [
        "../secret", "..%2fsecret", "%2e%2e/secret", "quick/../../secret", "/secret", "%2fsecret",
        "quick/20261122T101500.000Z/../../../secret", "quick/20261122T101500.000Z/link",
        "quick/20261122T101500.000Z/linked/secret", "quick/20261122T101500.000Z/pipe",
        "quick/20261122T101500.000Z/.hidden", ".hidden", "quick%00", "quick\\..\\..\\secret",
        "quick/20261122T101500.000Z/%ff", "a/" * 40, "x" * 5000, "%00", "outside", "loop",
    ],
)  # fmt: skip
def test_nothing_outside_the_store_is_shown(store: Path, write_run: Write, named: str) -> None:
    folder = write_run()
    secret = store.parent / "secret"
    secret.write_text("the secret")
    (folder / "link").symlink_to(secret)
    (folder / "linked").symlink_to(store.parent, target_is_directory=True)
    (store / "outside").symlink_to(store.parent, target_is_directory=True)
    (store / "loop").symlink_to(store / "loop")
    (folder / ".hidden").write_text("the secret")
    (store / ".hidden").mkdir()
    os.mkfifo(folder / "pipe")
    site = Site(store)
    for what in ("files", "run", "zip", "live"):
        answer = site.respond(f"/{what}/{named}")
        assert answer.status == 404, what
        assert "the secret" not in text(answer)
    compared = site.respond(f"/compare?a={named}&b=quick/20261122T101500.000Z")
    assert compared.status == 404


@pytest.mark.parametrize(
    "target", ["", "*", "//evil/", "http://evil/", "/?" + "a=1&" * 50, "/nope"]
)
def test_what_is_no_page_is_not_there(store: Path, target: str) -> None:
    assert Site(store).respond(target).status == 404


def test_hostile_names_and_values_are_text(store: Path, write_run: Write) -> None:
    name = HOSTILE.replace("/", "")
    campaign = "\n".join(
        f"{key} = {json.dumps(HOSTILE)}"
        for key in ("name", "target", "workload", "world", "seed", "mutant")
    )
    for hour in (10, 11):
        folder = write_run(
            name, f"20261122T{hour}1500.000Z", valid=False, why=HOSTILE, campaign=campaign
        )
    (folder / f"{name}.html").write_text(HOSTILE)
    site = Site(store)
    id_ = quote(f"{name}/{folder.name}")
    for target in ("/", f"/?q={quote(HOSTILE)}", f"/run/{id_}", f"/files/{id_}", "/trends",
                   f"/trends?name={quote(HOSTILE)}"):  # fmt: skip
        answer = site.respond(target)
        page = seen(answer)
        assert answer.status == 200
        assert "img" not in page.tags
        assert "script" not in page.tags
        assert page.handlers == []
        assert "unsafe" not in answer.policy
    as_file = site.respond(f"/files/{id_}/{quote(name)}.html")
    close(as_file)
    assert as_file.kind.startswith("text/plain")
    assert as_file.policy.startswith("sandbox;")
    archive = site.respond(f"/zip/{id_}")
    close(archive)
    disposition = dict(archive.headers)["Content-Disposition"]
    assert set("<>'\r\n") & set(disposition) == set()


def test_a_report_is_shown_in_a_sandbox_and_nowhere_else_as_html(
    store: Path, write_run: Write
) -> None:
    folder = write_run(report=HOSTILE)
    (folder / "nodes" / "n0" / "report.html").write_text(HOSTILE)
    site = Site(store)
    report = site.respond("/files/quick/20261122T101500.000Z/report.html")
    close(report)
    assert report.kind.startswith("text/html")
    assert report.policy.startswith("sandbox allow-scripts")
    assert "allow-same-origin" not in report.policy
    assert "connect-src" not in report.policy
    assert "default-src 'none'" in report.policy
    headers = dict(report.all_headers)
    assert headers["X-Content-Type-Options"] == "nosniff"
    deeper = site.respond("/files/quick/20261122T101500.000Z/nodes/n0/report.html")
    close(deeper)
    assert deeper.kind.startswith("text/plain")


def test_damaged_runs_are_listed_and_do_not_hide_the_others(store: Path, write_run: Write) -> None:
    write_run()
    broken = write_run(time="20261122T121500.000Z")
    (broken / "results.json").write_bytes(b"\xff\xfe{")
    (broken / "campaign.toml").write_bytes(b"\xff= [")
    nested = write_run(time="20261122T131500.000Z")
    (nested / "results.json").write_text("[" * 100_000)
    (nested / "run.json").write_text('{"counts": [1]}')
    site = Site(store)
    assert "3 of 3 runs" in text(site.respond("/"))
    for run in (broken, nested):
        assert site.respond(f"/run/quick/{run.name}").status == 200
    assert site.respond("/trends?name=quick").status == 200


def test_a_run_in_progress_is_followed(store: Path, write_run: Write) -> None:
    folder = RunFolder(write_run(valid=None, report=None))
    with folder.status_jsonl.open("w") as file:
        file.write('{"time_ns": 1200000000, "node": "n0", "role": "leader", "term": 3}\n')
    folder.samples_jsonl.write_text(
        '{"time_ns":8500000000,"node":"n0","committed_index":4711}\n{"time_ns":"x","node":"n7"}\n'
    )
    folder.faults_jsonl.write_text(
        '{"event":"applying","fault":0,"name":"kill","plan":{"victims":["n0"]},"at_ns":2500000000}\n'
        '{"event":"applied","fault":0,"undo":{},"at_ns":2600000000}\n{"event":"und'
    )
    folder.log.write_text("2026 INFO x event=phase at_s=1 phase=chaos\nlast line <b>\n")
    site = Site(store)
    id_ = "quick/20261122T101500.000Z"
    writer = SegmentWriter(folder.segment("worker-0"))
    with run_markers.working_in(folder.path):
        assert "RUNNING" in text(site.respond("/"))
        writer.write(
            event
            for n in range(10)
            for event in (
                Event(n * 10**9, 1, "invoke", "append"),
                Event(n * 10**9 + 5, 1, "info" if n == 9 else "ok", "append"),
            )
        )
        page = text(site.respond(f"/run/{id_}"))
        assert "In progress: chaos, 9 s" in page
        assert "9 ok,0 fail,1 info" in re.sub(r"\s*,\s*", ",", page)
        cells = re.findall(r"<td[^>]*>([^<]*)</td>", page.partition("<h3>Nodes")[2])
        # What is known of a role and of a position is of different times: each has its own.
        assert cells[:6] == ["n0", "leader", "3", "1.2 s", "4711", "8.5 s"]
        assert "2.5 s" in page
        assert "<td>on</td>" in page
        assert "last line &lt;b&gt;" in page
        writer.write([Event(11 * 10**9, 1, "ok", "append")])
        assert "10 ok" in text(site.respond(f"/live/{id_}"))
    writer.close()
    assert "NOT JUDGED" in text(site.respond("/"))
    assert 'data-state="ended"' in text(site.respond(f"/live/{id_}"))


def test_a_verdict_whose_reasons_cannot_be_read_is_shown(store: Path, write_run: Write) -> None:
    run = write_run(time="20261122T101500.000Z", valid=False)
    finding = {"kind": "of-a-plug-in", "message": "", "key": 7}
    checkers = {"own": {"valid": False, "findings": [finding]}}
    (run / "results.json").write_text(json.dumps({"valid": False, "checkers": checkers}))
    listed = text(Site(store).respond("/"))
    assert listed.count("NOT JUDGED") == text(Site(store.parent / "none").respond("/")).count(
        "NOT JUDGED"
    ), "only as a choice of the filter"


def test_a_chart_leaves_a_gap_where_a_run_says_nothing() -> None:
    entry = Entry("quick/1", "quick", "20261122T101500.000Z", "VALID")
    drawn = chart("throughput", "/s", [(entry, v, "") for v in (100.0, 180.0, None, 50.0, 60.0)])
    assert len(drawn.points) == 4
    assert len(drawn.lines) == 2
    assert [tick for _, tick in drawn.ticks] == ["0", "100", "200"]
    heights = [point.y for point in drawn.points]
    assert heights[1] < heights[0] < heights[3] < heights[2]
    assert chart("nothing", "ms", [(entry, None, "")]).points == ()
    assert len(chart("one", "ms", [(entry, 0.0, "")]).points) == 1


def test_what_takes_long_is_left_for_the_next_time_or_the_command_line(
    store: Path, write_run: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    for minute in (10, 11):
        operations = write_run(time=f"20261122T10{minute}00.000Z") / "history" / "operations"
        operations.mkdir()
    site = Site(store)
    with monkeypatch.context() as patched:
        patched.setattr("shaketable.harness.serving.pages.MEASURING_S", -1.0)
        assert "2 of these runs are not measured yet" in text(site.respond("/trends"))
    assert "not measured yet" not in text(site.respond("/trends"))
    runs = "a=quick/20261122T101000.000Z&b=quick/20261122T101100.000Z"
    assert site.respond(f"/compare?{runs}").status == 200
    (operations / "part-0.parquet").write_bytes(b"PAR1" * 100)
    monkeypatch.setattr("shaketable.harness.serving.pages.OPERATIONS_BYTES_MAX", 100)
    assert site.respond(f"/compare?{runs}").status == 413


def test_an_empty_store_says_how_to_begin(store: Path) -> None:
    assert "./shaketable run" in text(Site(store).respond("/"))
    assert "No judged run" in text(Site(store).respond("/trends"))
