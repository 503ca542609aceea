"""A campaign whose harness is killed in the middle of a fault, and what is left before and after.

Who belongs to a trial is told by a variable of its own in the environment, and not by the run's
mark: so a heal is not judged by what it goes by itself.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from shaketable.harness import run_markers
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.runtime import ledger

TOKEN: Final = "KILLED_HARNESS_TRIAL"
SPARK: Final = "check"
"""Stands for the time after all faults: Spark is at work."""
NODE: Final = b"shaketable.system.node"
JVM: Final = b"org.apache.spark.deploy.SparkSubmit"
NAMESPACES: Final = ("net", "mnt", "user", "pid", "ipc", "uts")
BEGIN_TIMEOUT_S: Final = 90.0
HOLD_S: Final = 0.3
"""How long a fault is in force before the harness is killed."""
SETTLE_S: Final = 1.0
POLL_S: Final = 0.02
POLL_AT_ONCE_S: Final = 0.0005
ESCAPING: Final = '''
"""Nodes that do not die with the harness: they take back that the kernel ends them then."""

import sys
from dataclasses import replace

from shaketable.harness.targets.dledger import DLedgerTarget

CODE = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Escaping(DLedgerTarget):
    """A group whose nodes outlive the harness."""

    name = "escaping"

    def _launch(self, layout, member):
        launch = super()._launch(layout, member)
        return replace(launch, argv=(sys.executable, "-I", "-S", "-c", CODE, *launch.argv))


PLUGIN = Escaping()
'''


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is on the machine, as far as a campaign could leave something of it.

    Attributes:
        processes: those of the trial that live: pid and program.
        namespaces: those in which they are, and this process is not.
        mounts: those of the machine, except where tests beside this one keep temporary files.
        rules, interfaces, preload: of the machine, whoever's.
        scratch: what stands in the trial's folder for temporary files.
    """

    processes: Mapping[int, str]
    namespaces: frozenset[str]
    mounts: frozenset[str]
    rules: str
    interfaces: frozenset[str]
    preload: str
    scratch: tuple[str, ...]


@dataclass(slots=True)
class Trial:
    """How one trial went.

    Attributes:
        fault, world, variant: what was done.
        before: processes, namespaces while the fault was in force.
        survived: processes that lived a while after the harness was killed.
        is_half: the fault was still being applied when the harness was killed.
        healed: what `heal` said that it did.
        left: what was there afterwards and had not been before, in words; must be ().
        problem: why there was no trial.
    """

    fault: str
    world: str
    variant: str
    before: tuple[int, int] = (0, 0)
    survived: int = 0
    is_half: bool = False
    healed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    problem: str = ""
    codes: list[int] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether there was a trial, and nothing is left of it."""
        return not self.problem and not self.left and self.codes == [0, 0]


def try_one(fault: str, world: str, variant: str, parent: Path) -> Trial:
    """Start a campaign with that fault, kill its harness while it is in force, heal, and compare.

    In variant "harness" the harness alone is killed; in "unguarded" all else that is no node is
    killed with it, and the nodes have been told not to die with it; "applying" is that at the
    moment in which the fault is being applied, as far as it can be met.
    """
    trial = Trial(fault, world, variant)
    folder = Path(tempfile.mkdtemp(prefix="killed-", dir=parent)).resolve()
    token = secrets.token_hex(8)
    environment = _environment(folder, token)
    try:
        first = look(token, folder)
        with _campaign(trial, folder, environment) as harness:
            _strike(trial, folder, token, harness)
        if trial.problem:
            return trial
        done = _heal(folder, environment)
        trial.healed = tuple(line.strip() for line in done.stdout.splitlines()[1:])
        trial.left = _compare(first, look(token, folder))
        trial.left += tuple(
            f"fault {fault.fault} is open"
            for fault in ledger.open_faults(_run(folder).faults_jsonl)
        )
        trial.left += _orders_in_force(folder)
        again = _heal(folder, environment)
        trial.codes = [done.returncode, again.returncode]
        if "nothing is left" not in again.stdout:
            trial.left += (f"healed twice: {again.stdout.strip()}",)
        return trial
    finally:
        _end_all(token)
        shutil.rmtree(folder, ignore_errors=True)


def look(token: str, folder: Path) -> Machine:
    """Look at the machine."""
    own = _namespaces("self")
    found = dict(_processes(token))
    spaces = {space for pid in found for space in _namespaces(str(pid))} - own
    return Machine(
        processes=found,
        namespaces=frozenset(spaces),
        mounts=frozenset(mounts_of(folder, Path("/proc/self/mountinfo").read_text())),
        rules=_rules(),
        interfaces=frozenset(path.name for path in Path("/sys/class/net").iterdir()),
        preload=_text(Path("/etc/ld.so.preload")),
        scratch=tuple(sorted(path.name for path in (folder / "tmp").iterdir())),
    )


def mounts_of(folder: Path, mountinfo: str) -> Iterator[str]:
    """What is mounted, but for what other tests have mounted in their own temporary folders."""
    shared = Path(tempfile.gettempdir()).resolve()
    for line in mountinfo.splitlines():
        where = Path(re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), line.split()[4]))
        if where.is_relative_to(folder) or not where.is_relative_to(shared):
            yield line.split(" ", 1)[1]


def _compare(first: Machine, last: Machine) -> tuple[str, ...]:
    """Say what is there now and was not before."""
    left = [f"process {pid} ({name})" for pid, name in last.processes.items()]
    left += [f"namespace {space}" for space in sorted(last.namespaces)]
    left += [f"mount {mount}" for mount in sorted(last.mounts - first.mounts)]
    left += [f"interface {name}" for name in sorted(last.interfaces - first.interfaces)]
    left += [f"scratch {name}" for name in last.scratch]
    if last.rules != first.rules:
        left.append("the packet filter's rules have changed")
    if last.preload != first.preload:
        left.append("/etc/ld.so.preload has changed")
    return tuple(left)


def _orders_in_force(folder: Path) -> tuple[str, ...]:
    """What nodes are still told about their clocks and disks."""
    found = []
    for path in sorted((folder / "store").glob("quick/*Z/nodes/*/**/control.json")):
        orders = json.loads(path.read_text())
        if any(orders[kind] for kind in ("clocks", "disk_faults", "trips")):
            found.append(f"orders in {path.relative_to(folder)}")
    return tuple(found)


def _strike(trial: Trial, folder: Path, token: str, harness: subprocess.Popen[bytes]) -> None:
    """Wait until the fault is in force, look, kill."""
    deadline = time.monotonic() + BEGIN_TIMEOUT_S
    is_at_once = trial.variant == "applying" and trial.fault != SPARK
    while not _has_begun(trial.fault, folder, token, is_at_once=is_at_once):
        if harness.poll() is not None or time.monotonic() > deadline:
            said = _text(folder / "out").strip().splitlines()
            trial.problem = f"the fault did not begin: {said[-1] if said else 'nothing was said'}"
            return
        time.sleep(POLL_AT_ONCE_S if is_at_once else POLL_S)
    if is_at_once:
        os.killpg(harness.pid, signal.SIGKILL)
        trial.is_half = any(
            not one.is_applied for one in ledger.open_faults(_run(folder).faults_jsonl)
        )
    else:
        time.sleep(HOLD_S)
    here = look(token, folder)
    trial.before = len(here.processes), len(here.namespaces)
    if trial.variant == "harness":
        harness.kill()
    elif not is_at_once:
        os.killpg(harness.pid, signal.SIGKILL)
    if trial.variant != "harness":
        for pid in here.processes:
            if not any(kept in _command(pid) for kept in (NODE, JVM)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    harness.wait()
    time.sleep(SETTLE_S)
    trial.survived = len(look(token, folder).processes)


def _has_begun(fault: str, folder: Path, token: str, *, is_at_once: bool) -> bool:
    if fault == SPARK:
        return any(JVM in _command(pid) for pid, _ in _processes(token))
    runs = sorted((folder / "store").glob("quick/*Z/faults.jsonl"))
    return any(one.is_applied or is_at_once for run in runs for one in ledger.open_faults(run))


@contextmanager
def _campaign(
    trial: Trial, folder: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a campaign in which that fault holds for long."""

    is_spark = trial.fault == SPARK
    asked = {
        "--store": str(folder / "store"),
        "--world": trial.world,
        "--target": "escaping" if trial.variant != "harness" and not is_spark else "dledger",
        "--faults": "none" if is_spark else trial.fault,
        "--time-limit": "3" if is_spark else "60",
        "--steady": "1",
        "--nemesis-interval": "0.2",
        "--fault-duration-min": "40",
        "--fault-duration-max": "45",
        "--rate": "200",
    }
    if is_spark:
        asked |= {"--fault-duration-min": "1", "--fault-duration-max": "2"}
    words = [word for pair in asked.items() for word in pair]
    with (folder / "out").open("wb") as out:
        harness = subprocess.Popen(
            [sys.executable, "-P", "-m", "shaketable", "run", *words],
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            env=environment, start_new_session=True,
        )  # fmt: skip
    try:
        yield harness
    finally:
        if harness.poll() is None:
            harness.kill()
        harness.wait()


def _heal(folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-P", "-m", "shaketable", "heal", str(folder / "store")]
    own = {name: value for name, value in environment.items() if name != TOKEN}
    return subprocess.run(
        words, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )


def _environment(folder: Path, token: str) -> dict[str, str]:
    """Where temporary files go, and where the target is found whose nodes escape."""
    (folder / "tmp").mkdir(exist_ok=True)
    plugins = folder / "plugins"
    info = plugins / "escaping-1.0.dist-info"
    info.mkdir(parents=True)
    (plugins / "escaping_target.py").write_text(ESCAPING)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: escaping\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[shaketable.targets]\nescaping = escaping_target:PLUGIN\n"
    )
    path = os.pathsep.join([str(plugins), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    return {
        **os.environ,
        TOKEN: token,
        "TMPDIR": str(folder / "tmp"),
        "PYTHONPATH": path.rstrip(os.pathsep),
    }


def _run(folder: Path) -> RunFolder:
    return RunFolder((folder / "store" / "latest").resolve())


def _processes(token: str) -> Iterator[tuple[int, str]]:
    """The processes that were started with that token and live: pid and program."""
    wanted = f"{TOKEN}={token}".encode()
    for pid in run_markers.pids():
        try:
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted in entries and run_markers.identify(pid) is not None:
            yield pid, _text(Path(f"/proc/{pid}/comm")).strip()


def _end_all(token: str) -> None:
    """End what a trial, or a failed heal, has left."""
    for pid, _ in _processes(token):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _namespaces(pid: str) -> set[str]:
    found = set()
    for kind in NAMESPACES:
        with suppress(OSError):
            found.add(str(Path(f"/proc/{pid}/ns/{kind}").readlink()))
    return found


def _rules() -> str:
    """The packet filter's rules, as far as there is a program that lists them."""
    said = []
    for words in (["nft", "list", "ruleset"], ["iptables-save"]):
        program = shutil.which(words[0])
        if program is not None:
            done = subprocess.run(
                [program, *words[1:]], capture_output=True, text=True, check=False
            )
            said += [line for line in done.stdout.splitlines() if not line.startswith("#")]
    return "\n".join(said)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def show(trial: Trial) -> str:
    """One line of the table."""
    if trial.problem:
        came = f"no trial: {trial.problem}"
    elif trial.is_clean:
        came = "clean, killed half way" if trial.is_half else "clean"
    else:
        came = f"LEFT: {'; '.join(trial.left)} {trial.codes}"
    processes, spaces = trial.before
    return (
        f"{trial.fault:<16}{trial.world:<9}{trial.variant:<11}{processes:>9}{spaces:>7}"
        f"{trial.survived:>10}{len(trial.healed):>8}  {came}"
    )


HEADING: Final = (
    f"{'fault':<16}{'world':<9}{'killed':<11}{'processes':>9}{'spaces':>7}"
    f"{'survived':>10}{'undone':>8}  after heal"
)


def worst(trials: Sequence[Trial]) -> int:
    """The exit code for these trials: 0 if all are clean."""
    return 0 if trials and all(trial.is_clean for trial in trials) else 1
