"""What pip brings: one package, the same from a checkout and from a source distribution.

It is unpacked and run where somebody has packages of their own called as our folders are.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from distributions import ROOT, built, keep_compiled_kernels

FOLDERS = ("system", "harness", "checkers", "workloads", "reports")
RUN = ("--world=sim", "--workload=queue", "--faults=kill", "--time-limit=10", "--engine=local")
"""Whatever such a run judges is decided without most of the kernels, which are not compiled yet."""
COMPILES_S = 580
"""As long as a busy machine may take to compile what the checkout has not compiled yet."""
HISTORY = """\
{"process": 0, "type": "invoke", "f": "write", "value": 1}
{"process": 0, "type": "ok", "f": "write", "value": 1}
{"process": 0, "type": "invoke", "f": "read", "value": null}
{"process": 0, "type": "ok", "f": "read", "value": 2}
"""


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    keep_compiled_kernels(site)
    return site


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A folder with packages that end whoever imports them."""
    for name in FOLDERS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise SystemExit('our own {name}')")
    (tmp_path / "h.jsonl").write_text(HISTORY)
    return tmp_path


def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as packed:
        return sorted(packed.namelist())


def test_one_new_name_at_the_top(wheel: Path) -> None:
    tops = {name.partition("/")[0] for name in names(wheel)}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"shaketable"}
    assert {name.split("/")[1] for name in names(wheel) if name.count("/") > 1} >= set(FOLDERS)
    assert not [name for name in names(wheel) if "/samples/" in name]
    assert "shaketable/py.typed" in names(wheel)  # type checkers read our annotations
    assert [name for name in names(wheel) if name.endswith("/licenses/LICENSE")]


def test_an_index_and_pip_take_them(wheel: Path, tmp_path: Path) -> None:
    """`twine check` renders the page of the index; the other looks for what is there by mistake."""
    packed = built("sdist", ROOT, tmp_path)
    for command in (
        ["twine", "check", "--strict", str(wheel), str(packed)],
        ["check_wheel_contents", str(wheel)],
    ):
        done = subprocess.run(
            [sys.executable, "-m", *command], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_built_from_the_source_distribution_is_the_same(
    wheel: Path, tmp_path: Path
) -> None:
    packed = built("sdist", ROOT, tmp_path / "sdist")
    with tarfile.open(packed) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # since Python 3.11.4
        archive.extractall(tmp_path / "unpacked")
    (project,) = (tmp_path / "unpacked").iterdir()
    assert names(built("wheel", project, tmp_path / "again")) == names(wheel)


@pytest.mark.timeout(COMPILES_S + 20)
@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [
        (("simulate", "--seeds", "2", "--time-limit", "10"), 0),
        (("run", *RUN), 0),
        (("check", "h.jsonl"), 1),
        (("list",), 0),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_it_runs_beside_packages_of_the_same_names(
    arguments: tuple[str, ...], exit_code: int, installed: Path, theirs: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shaketable", *arguments],
        cwd=theirs,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
        timeout=COMPILES_S,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == exit_code, done.stdout + done.stderr
    assert "our own" not in done.stdout + done.stderr
