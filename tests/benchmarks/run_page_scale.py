"""The page of a run with a million operations: how large it is, how long it takes to make and open.

Makes a run's folder of operations that go through the recorder and the export, as a run's do, or
takes a stored one (which it does not change); renders; opens the page in headless Chromium; says
whether every operation that a finding names is in the page. Exit code 1: over a limit.

    python -m tests.benchmarks.run_page_scale --operations 1000000
    python -m tests.benchmarks.run_page_scale --run store/latest
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from shaketable.harness.history.export import export
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.history.segments import Recorder
from shaketable.reports.run_page import html
from shaketable.reports.run_page.chosen_operations import choose
from shaketable.reports.run_page.view import build_view
from tests.support.chromium import driven

PAGE_BYTES_MAX = 5_000_000
OPEN_S_MAX = 2.0
OPENED_TIMES = 3
S = 1_000_000_000
CLIENTS, QUEUES, NODES = 20, 8, 5
FAULT_EVERY_S, FAULT_S = 20, 8
FAULTS = ("kill", "pause", "partition", "clock", "disk-slow", "delay", "loss", "power")
OPENED = """
const [page] = performance.getEntriesByType("navigation");
const paint = performance.getEntriesByName("first-contentful-paint")[0];
return {load: page.loadEventEnd / 1000, paint: paint ? paint.startTime / 1000 : null,
        interactive: page.domInteractive / 1000, plots: window.plotsDrawn || null,
        rows: document.querySelectorAll("#operations-table tbody tr").length};
"""
WHEN_DRAWN = """
const wait = () => {
  const wanted = document.querySelectorAll("figure.plot").length;
  const drawn = window.Bokeh ? Bokeh.documents.filter((one) => one.is_idle).length : 0;
  if (wanted && drawn === wanted) window.plotsDrawn = performance.now() / 1000;
  else setTimeout(wait, 5);
};
wait();
"""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Clock:
    """A clock that is set by what is recorded."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def record(folder: RunFolder, operations: int) -> int:
    """Record so many operations and their faults; return how long they took, in ns."""
    rng, clock = Random(11), Clock()
    folder.segments.mkdir(parents=True)
    recorder = Recorder(folder.segment("worker-0"), 0, clock)
    nemesis = Recorder(folder.segment("nemesis"), 0, clock)
    ends = dict.fromkeys(range(QUEUES), 0)
    process = list(range(CLIENTS))
    step_ns, fault = 500_000, 0
    for value in range(operations):
        clock.now_ns = value * step_ns
        due_ns = (fault // 2 * FAULT_EVERY_S + fault % 2 * FAULT_S + 5) * S
        if clock.now_ns >= due_ns:
            tell_fault(nemesis, fault)
            fault += 1
        is_shaken, client = fault % 2 == 1, rng.randrange(CLIENTS)
        queue = rng.randrange(QUEUES)
        key, f = f"shaketable/{queue}", "append" if rng.random() < 0.6 else "read"
        offset = None if f == "append" else rng.randrange(ends[queue] + 1)
        recorder.invoke(process[client], f, key, value=value if f == "append" else None,
                        offset=offset)  # fmt: skip
        clock.now_ns += round(rng.lognormvariate(-0.5, 0.6) * step_ns)
        node = f"n{rng.randrange(NODES)}"
        if is_shaken and rng.random() < 0.01:
            error = f"timed out after {rng.randrange(1000, 1100)} ms: no answer from {node}"
            recorder.complete(process[client], "info", f, key, error=error, node=node)
            process[client] += CLIENTS
        elif is_shaken and rng.random() < 0.02:
            error = f"not the leader; {node} is"
            recorder.complete(process[client], "fail", f, key, error=error, node=node)
        elif f == "append":
            recorder.complete(process[client], "ok", f, key, offset=ends[queue], node=node)
            ends[queue] += 1
        else:
            recorder.complete(process[client], "ok", f, key, output=value, node=node)
    segments = {"worker-0.seg": recorder.close(), "nemesis.seg": nemesis.close()}
    facts = {"status": "complete", "name": "page-scale", "seed": "11", "segments": segments,
             "nodes": [f"n{node}" for node in range(NODES)], "target": "dledger",
             "phases": [{"name": "steady", "start_ns": 0, "stop_ns": 5 * S},
                        {"name": "chaos", "start_ns": 5 * S, "stop_ns": clock.now_ns}]}  # fmt: skip
    folder.run_json.write_text(json.dumps(facts))
    folder.campaign_toml.write_text('name = "page-scale"\nseed = "11"\n')
    return clock.now_ns


def tell_fault(nemesis: Recorder, event: int) -> None:
    """Record the start or the stop of a fault."""
    number, name = event // 2, FAULTS[event // 2 % len(FAULTS)]
    value = {"fault": number, "plan": {"victims": ["n0"]}, "description": f"{name} n0"}
    if event % 2:
        value |= {
            "phase": "stop",
            "took_effect": True,
            "evidence": "12 calls were slowed",
            "measures": {},
        }
    else:
        value |= {"phase": "start"}
    nemesis.nemesis(name, value)


def tell_nodes(folder: RunFolder, end_ns: int) -> None:
    """Write what polling and sampling nodes would have."""
    with folder.status_jsonl.open("w") as status, folder.samples_jsonl.open("w") as samples:
        for number, time_ns in enumerate(range(0, end_ns, S // 2)):
            for node in range(NODES):
                sample = {"time_ns": time_ns, "node": f"n{node}", "committed_index": number * 600,
                          "end_index": number * 600 + node, "wall_offset_ms": node * 0.1,
                          "monotonic_offset_ms": 0.1, "doubt_ms": 0.3}  # fmt: skip
                samples.write(json.dumps(sample) + "\n")
                if number % (2 * FAULT_EVERY_S) == 0:
                    term = number // (2 * FAULT_EVERY_S) + 1
                    role = "leader" if node == term % NODES else "follower"
                    told = {"time_ns": time_ns, "node": f"n{node}", "role": role, "term": term}
                    status.write(json.dumps(told) + "\n")


def tell_findings(folder: RunFolder, operations: int) -> None:
    """Write verdicts with as many findings as are kept, each naming operations."""
    rng = Random(5)
    findings = [
        {"kind": "lost-append", "message": f"the append of {n} is lost", "key": "shaketable/0",
         "offset": n, "operations": [2 * rng.randrange(operations) for _ in range(3)],
         "details": {"fault": n % 9}}
        for n in range(200)
    ]  # fmt: skip
    checkers = {
        name: {"valid": False, "summary": "200 appends are lost", "findings": findings,
               "findings_total": 200, "observed": [], "counts": {"lost-append": 200}, "data": {}}
        for name in ("durability", "linearizable-log")
    }  # fmt: skip
    folder.results_json.write_text(json.dumps({"valid": False, "seed": "11", "checkers": checkers}))


def make(path: Path, operations: int) -> None:
    """Make the folder of a run that never was."""
    folder = RunFolder(path)
    began = time.perf_counter()
    end_ns = record(folder, operations)
    tell_nodes(folder, end_ns)
    tell_findings(folder, operations)
    recorded = time.perf_counter()
    export(folder)
    exported = time.perf_counter()
    say(f"recorded in {recorded - began:.1f} s, exported in {exported - recorded:.1f} s")


def opened(page: Path, profile: Path) -> dict[str, float]:
    """Open the page; return when, in s since the browser began, it was there."""
    with driven(profile) as driver:
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WHEN_DRAWN})
        driver.get(page.as_uri())
        for _ in range(600):
            found: dict[str, float] = driver.execute_script(OPENED)
            if found["plots"] is not None and found["paint"] is not None:
                return found
            time.sleep(0.1)
    raise SystemExit("the plots were not drawn within a minute")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--run", type=Path, help="a stored run instead")
    parser.add_argument("--keep", type=Path, help="where to leave the folder and the page")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        place = asked.keep or Path(scratch)
        folder = asked.run or place / "run"
        if asked.run is None and not (folder / "history" / "operations").exists():
            make(folder, asked.operations)
        began = time.perf_counter()
        view = build_view(folder)
        viewed = time.perf_counter()
        text = html.render(view)
        rendered = time.perf_counter()
        page = place / "page.html"
        page.write_text(text, encoding="utf-8")
        size = page.stat().st_size
        say(f"operations {view.operations.num_rows:,}, faults {len(view.faults)}")
        say(f"read in {viewed - began:.1f} s, rendered in {rendered - viewed:.1f} s")
        say(f"page {size / 1e6:.2f} MB (at most {PAGE_BYTES_MAX / 1e6:.0f})")
        chosen = choose(view.operations, view.named)
        inside = set(chosen.rows["op"].to_pylist())
        lacking = len(set(view.named) - inside) - chosen.missing
        say(f"table {chosen.rows.num_rows:,} operations, cut by limits: {chosen.cut or 'nothing'}")
        say(f"findings name {len(view.named):,}, of these {lacking} are not in the table")
        times = [opened(page, Path(scratch) / f"profile-{n}") for n in range(OPENED_TIMES)]
        for found in times:
            say(f"opened: first paint {found['paint']:.2f} s, loaded {found['load']:.2f} s "
                f"(rows {found['rows']:.0f}), the last plot {found['plots']:.2f} s")  # fmt: skip
        quickest = min(max(found["load"], found["paint"]) for found in times)
        say(f"it can be read and searched after {quickest:.2f} s (at most {OPEN_S_MAX:.0f})")
        if size > PAGE_BYTES_MAX or quickest > OPEN_S_MAX or lacking:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
