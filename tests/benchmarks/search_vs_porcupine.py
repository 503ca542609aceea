"""Times the linearizability search and porcupine on the same histories, one thread each.

Run: python tests/benchmarks/search_vs_porcupine.py [--rows TEXT ...] [--histories FOLDER]

Each row is judged in two processes: one of ours, warmed by small histories, and one of porcupine
(a Go module, built here; GOMAXPROCS=1). The times are processor time of the check alone: ours is
the search (for queues and texts the special case that the product takes), and beside it the
encoding of the OPERATIONS table, for which porcupine has its operations in hand. Our memory is the
peak above the warmed, idle process with the history not yet read; porcupine's is the whole process.
Porcupine is ended after 40 s or at 7 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import synthetic_histories as made  # noqa: E402

from shaketable.harness.history.foreign.read import read_history  # noqa: E402

SECONDS_MAX = 40
BYTES_MAX = 7_000_000_000
OUR_BYTES_MAX = 1 << 30
IMPOSSIBLE = 99
SPECIAL = frozenset(("fifo-queue", "kv", "stack"))
"""Models whose rows are judged as the product does it, by their special case. The registers' rows
are there to measure the search."""


@dataclass(frozen=True)
class Row:
    """One line of the table: a name, a model, and how to get the histories."""

    name: str
    model: str
    histories: Callable[[], list[pa.Table]]


def rows(folder: Path | None) -> Iterator[Row]:
    """All rows: recorded histories, if there are any, then synthetic ones."""
    if folder is not None:
        logs = sorted((folder / "etcd").glob("*.log"))
        yield Row(
            f"etcd, {len(logs)} logs",
            "cas-register",
            lambda: [read_history(p).operations for p in logs],
        )
        for path in sorted((folder / "kv").glob("*.txt")):
            yield Row(f"kv {path.stem}", "kv", lambda path=path: [read_history(path).operations])
    for count in (1000, 10_000, 100_000):
        for unknown in (0.0, 0.02):
            for clients in (5, 10, 20, 50):
                for kind in ("valid", "impossible", "in domain"):
                    name = f"register {count // 1000}k {clients} clients {unknown:.0%} {kind}"
                    yield Row(name, "cas-register", _register(count, clients, unknown, kind))
    yield Row(
        "register 1000k 20 clients 0% valid", "cas-register", _register(1_000_000, 20, 0.0, "valid")
    )
    for count in (1000, 10_000, 100_000):
        for clients in (5, 10, 20):
            for model, make in (
                ("mutex", made.mutex),
                ("fifo-queue", made.fifo_queue),
                ("stack", made.stack),
                ("kv", made.kv),
            ):
                for unknown in (0.0, 0.02):
                    yield Row(
                        f"{model} {count // 1000}k {clients} clients {unknown:.0%} valid",
                        model,
                        lambda make=make, c=count, n=clients, u=unknown: [
                            made.as_table(make(c + n, c, n, u))
                        ],
                    )  # fmt: skip


def _register(count: int, clients: int, unknown: float, kind: str) -> Callable[[], list[pa.Table]]:
    def make() -> list[pa.Table]:
        operations = made.cas_register(count + clients, count, clients, unknown)
        if kind == "impossible":
            made.spoil(operations, 0.99, IMPOSSIBLE)
        elif kind == "in domain":
            made.spoil(operations, 0.9, None)
        return [made.as_table(operations)]

    return make


# ---- what porcupine reads


def as_text(table: pa.Table) -> str:
    """Return a history as porcupine/main.go reads it."""
    lines = []
    for o in table.to_pylist():
        if o["outcome"] == "fail":
            continue
        extra = json.loads(o["extra"] or "{}")
        given, got = extra.get("input", o["input"]), extra.get("output", o["output"])
        if o["f"] in ("get", "put", "append"):
            given, got = f"{o['key']},{given or ''}", got or ""
        elif o["f"] == "cas":
            given = f"{o['expected']},{given}"
        end = o["return_ns"] if o["outcome"] == "ok" else None
        fields = (o["process"], o["f"], given, got, o["call_ns"], end)
        lines.append("\t".join("-" if field is None else str(field) for field in fields) + "\n")
    return "".join(lines)


def build_porcupine(folder: Path) -> Path | None:
    """Build the Go driver; None where Go is not at hand."""
    if shutil.which("go") is None:
        return None
    binary = folder / "porcupine"
    subprocess.run(["go", "build", "-o", str(binary), "."], cwd=HERE / "porcupine", check=True)
    return binary


def run_porcupine(binary: Path, model: str, files: list[Path]) -> tuple[str, float | None, int]:
    """Return its verdicts in short, the seconds (None if it was ended), and the peak bytes."""
    command = [str(binary), model, str(SECONDS_MAX), *map(str, files)]
    environment = {**os.environ, "GOMAXPROCS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        peak, begin = 0, time.monotonic()
        while child.poll() is None:
            peak = max(peak, _resident(child.pid, "VmHWM"))
            if (
                _resident(child.pid, "VmRSS") > BYTES_MAX
                or time.monotonic() - begin > 3 * SECONDS_MAX
            ):
                child.kill()
                child.wait()
                return "no answer", None, peak
            time.sleep(0.01)
        assert child.stdout is not None
        answers = [line.split() for line in child.stdout]
    seconds = sum(float(answer[1]) for answer in answers)
    verdicts = [{"Ok": "valid", "Illegal": "invalid"}.get(a[0], "no answer") for a in answers]
    return _short(verdicts), seconds if "no answer" not in verdicts else None, peak


def _resident(pid: int, field: str) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    return next((int(x.split()[1]) * 1024 for x in status.splitlines() if x.startswith(field)), 0)


def _short(verdicts: list[str]) -> str:
    if len(verdicts) == 1:
        return verdicts[0]
    return ", ".join(f"{verdicts.count(v)} {v}" for v in sorted(set(verdicts)))


# ---- our side, in a process of its own


def judge(model_name: str, files: list[str], repeat: int) -> None:
    """Judge files and print what came out, as JSON. Runs in a fresh process."""
    from shaketable.checkers.linearizability.deciding import decide_without_search  # noqa: PLC0415
    from shaketable.checkers.search.budget import Limits  # noqa: PLC0415
    from shaketable.checkers.search.driver import search  # noqa: PLC0415

    model = _model(model_name)

    def check(table: pa.Table) -> tuple[list[str], float, float]:
        verdicts, encoding, searching = [], 0.0, 0.0
        whole = time.monotonic()
        parts = [table]
        if model_name == "kv":
            keys = table["key"].unique()
            parts = [table.filter(pa.compute.equal(table["key"], key)) for key in keys]
        for part in parts:
            begin = time.process_time()
            problem = model.encode(part, model.initial(None))
            middle = time.process_time()
            limits = Limits(lambda: time.monotonic() - whole > SECONDS_MAX, OUR_BYTES_MAX)
            found = None
            if model_name in SPECIAL:
                found = decide_without_search(model_name, problem, part, limits)
            if found is None:
                found = search(problem, is_over=limits.is_over, memory_bytes_max=OUR_BYTES_MAX)
            encoding += middle - begin
            searching += time.process_time() - middle
            verdicts.append(found.outcome.name.lower())
        worst = max(verdicts, key=["valid", "unknown", "invalid"].index)
        return worst, encoding, searching

    for table in _warm_up(model_name):
        check(table)
    idle = _resident(os.getpid(), "VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    tables = [pq.read_table(file) for file in files]
    best = None
    for _ in range(repeat):
        results = [check(table) for table in tables]
        encoding, searching = sum(r[1] for r in results), sum(r[2] for r in results)
        if best is None or searching < best[1]:
            best = (encoding, searching)
    peak = _resident(os.getpid(), "VmHWM") - idle
    print(json.dumps([_short([r[0] for r in results]), *best, peak]))  # noqa: T201


def _model(name: str) -> object:
    from shaketable.checkers.linearizability.model_choice import model_named  # noqa: PLC0415

    return model_named(name)


def _warm_up(model: str) -> Iterator[pa.Table]:
    """Small histories that reach every kernel: valid ones, wrong ones, long stalls."""
    make = {
        "cas-register": made.cas_register,
        "mutex": made.mutex,
        "fifo-queue": made.fifo_queue,
        "stack": made.stack,
    }
    for clients, unknown in ((5, 0.0), (20, 0.05)):
        operations = make.get(model, made.kv)(1, 3000, clients, unknown)
        yield made.as_table(operations)
        if model == "cas-register":
            made.spoil(operations, 0.5, IMPOSSIBLE)
            yield made.as_table(operations)
            operations = made.cas_register(1, 1000, clients, unknown)
            made.spoil(operations, 0.5, None)
            yield made.as_table(operations)
    if model == "cas-register":  # large enough for the search to stall and to put moves off
        yield made.as_table(made.cas_register(100_020, 100_000, 20, 0.0))


def run_ours(model: str, files: list[Path], repeat: int) -> tuple[str, float, float, int]:
    """Return our verdicts in short, seconds of encoding and of searching, and bytes."""
    command = [
        sys.executable,
        __file__,
        "--judge",
        model,
        "--repeat",
        str(repeat),
        *map(str, files),
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    verdict, encoding, searching, peak = json.loads(done.stdout.splitlines()[-1])
    return verdict, encoding, searching, peak


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rows", nargs="*", default=[], help="parts of names; all must be in it")
    parser.add_argument("--histories", type=Path, help="folder with recorded etcd/ and kv/")
    parser.add_argument("--only-ours", action="store_true")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--judge", help=argparse.SUPPRESS)
    parser.add_argument("files", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.judge:
        judge(options.judge, options.files, options.repeat)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        binary = None if options.only_ours else build_porcupine(folder)
        head = (
            "row",
            "search ms",
            "encode ms",
            "MB",
            "verdict",
            "porcupine ms",
            "MB",
            "verdict",
            "times",
        )
        print("{:42s}{:>10s}{:>10s}{:>7s} {:10s}{:>13s}{:>8s} {:10s}{:>7s}".format(*head))  # noqa: T201
        for row in rows(options.histories):
            if all(part in row.name for part in options.rows):
                _print_row(row, folder, binary, options.repeat)


def _print_row(row: Row, folder: Path, binary: Path | None, repeat: int) -> None:
    tables, texts = [], []
    for n, table in enumerate(row.histories()):
        tables.append(folder / f"{n}.parquet")
        texts.append(folder / f"{n}.txt")
        pq.write_table(table, tables[-1])
        texts[-1].write_text(as_text(table) if binary else "", encoding="utf-8")
    verdict, encoding, searching, peak = run_ours(row.model, tables, repeat)
    line = f"{row.name:42s}{searching * 1e3:10.2f}{encoding * 1e3:10.2f}"
    line += f"{peak / 1e6:7.0f} {verdict:10s}"
    if binary:
        theirs, seconds, their_peak = run_porcupine(binary, row.model, texts)
        times = f"{seconds / max(searching, 1e-9):7.1f}" if seconds is not None else "      -"
        shown = f"{seconds * 1e3:13.1f}" if seconds is not None else f"{'-':>13s}"
        line += f"{shown}{their_peak / 1e6:8.0f} {theirs:10s}{times}"
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
