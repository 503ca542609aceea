"""What is installed is whole and what was pinned, or is not there: with registries in folders."""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import stat
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest

from shaketable.harness import installing
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.installing import (
    CACHE_VARIABLE,
    LOCK,
    DebianFile,
    DebianPackage,
    GoModule,
    MavenArtifact,
    Package,
    PypiPackage,
    cache_folder,
    install,
    is_installed,
    why_missing,
)

SUM = f"h1:{'a' * 43}="


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package in a folder that pip takes for its only index."""
    registry = tmp_path / "registry"
    registry.mkdir()
    file = registry / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("tiny.py", "VALUE = 7\n")
        about = "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
        archive.writestr("tiny-1.0.dist-info/METADATA", about)
        archive.writestr(
            "tiny-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr("tiny-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(registry))
    return file


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the only tools that are found, beside the shell's own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def of_wheel(file: Path) -> PypiPackage:
    return PypiPackage(package="tiny", sha256=(hashlib.sha256(file.read_bytes()).hexdigest(),))


def silent(_line: str) -> None:
    """Show nothing."""


def nothing_is_left(cache: Path) -> bool:
    return sorted(path.name for path in cache.iterdir()) == [".lock"]


def test_a_package_of_pypi_is_installed_once(
    cache: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    folder = install(cache, "tiny", "1.0", of_wheel(wheel), told.append)
    assert (folder / "tiny.py").read_text() == "VALUE = 7\n"
    assert told == ["pip: installing tiny 1.0"]
    assert sorted(path.name for path in cache.iterdir()) == [".lock", "tiny"]

    def never(*_arguments: object) -> str:
        raise AssertionError("it is installed already")

    monkeypatch.setattr(installing, "run", never)
    assert install(cache, "tiny", "1.0", of_wheel(wheel), never) == folder


def test_a_file_without_the_pinned_checksum_is_refused(cache: Path, wheel: Path) -> None:
    with pytest.raises(HarnessError, match=r"(?i)pip install failed: .*hash"):
        install(cache, "tiny", "1.0", PypiPackage(package="tiny", sha256=("0" * 64,)), silent)
    assert nothing_is_left(cache)


def test_what_builds_a_package_is_pinned_and_does_not_stay(cache: Path, wheel: Path) -> None:
    """Here a wheel is said to need a builder, which is this wheel too."""
    pinned = of_wheel(wheel)
    built = PypiPackage(
        package="tiny", sha256=pinned.sha256, build=f"tiny==1.0 --hash=sha256:{pinned.sha256[0]}"
    )
    told: list[str] = []
    folder = install(cache, "tiny", "1.0", built, told.append)
    assert told == ["pip: installing what builds it (tiny==1.0)", "pip: installing tiny 1.0"]
    assert sorted(path.name for path in folder.iterdir()) == ["tiny-1.0.dist-info", "tiny.py"]


@pytest.mark.parametrize(
    ("package", "line"),
    [
        (GoModule(module="example.org/tiny", sum=SUM), "needs go, and there is none: install Go"),
        (
            DebianPackage(package="tiny", revision="1", sha256={}),
            "needs apt-get, and there is none",
        ),
        (MavenArtifact(artifact="org:tiny", sha256="0" * 64), "needs mvn, and there is none: inst"),
    ],
)
def test_a_missing_tool_is_one_line(
    cache: Path, bin_folder: Path, package: Package, line: str
) -> None:
    with pytest.raises(HarnessError, match=line):
        install(cache, "tiny", "1.0", package, silent)
    assert not cache.exists()


def debian_package(folder: Path, name: str = "tiny") -> Path:
    root = folder / f"root-{name}"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN" / "control").write_text(
        f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: t <t@example.org>\n"
        f"Description: {name}\n"
    )
    (root / "usr" / "bin").mkdir(parents=True)
    (root / "usr" / "bin" / name).write_text("#!/bin/sh\n")
    file = folder / f"{name}_1_all.deb"
    subprocess.run(["dpkg-deb", "--build", root, file], check=True, capture_output=True)
    return file


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "known after an update"])
def test_a_package_of_debian_is_unpacked(
    cache: Path, tmp_path: Path, bin_folder: Path, is_known: bool
) -> None:
    """apt is a script; one that knows no package until its lists were updated asks for that."""
    os.environ["PATH"] += ":/usr/bin:/bin"
    file = debian_package(tmp_path)
    until = "" if is_known else f'[ -e {tmp_path}/updated ] || {{ echo "E: none" >&2; exit 100; }}'
    tool(
        bin_folder,
        "apt-get",
        f'case "$*" in *update) touch {tmp_path}/updated; exit;; esac\n{until}\ncp {file} .',
    )
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    architecture = subprocess.run(
        ["dpkg", "--print-architecture"], capture_output=True, text=True, check=True
    ).stdout.strip()
    package = DebianPackage(package="tiny", revision="1", sha256={architecture: digest})
    folder = install(cache, "tiny", "1", package, silent)
    assert (folder / "usr" / "bin" / "tiny").is_file()
    assert (tmp_path / "updated").exists() is not is_known
    other = DebianPackage(package="tiny", revision="1", sha256={architecture: "0" * 64})
    with pytest.raises(HarnessError, match=f"is not what was pinned: its SHA-256 is {digest}"):
        install(cache, "other", "1", other, silent)
    unknown = DebianPackage(package="tiny", revision="1", sha256={"z80": "0" * 64})
    with pytest.raises(HarnessError, match=rf"no checksum is known for {architecture} \(for: z80"):
        install(cache, "unknown", "1", unknown, silent)
    assert sorted(path.name for path in cache.iterdir()) == [".lock", "tiny"]


def test_what_a_package_of_debian_depends_on_is_unpacked_beside_it(
    cache: Path, tmp_path: Path, bin_folder: Path
) -> None:
    """And is refused with it if it is not what was pinned."""
    os.environ["PATH"] += ":/usr/bin:/bin"
    tiny, base = debian_package(tmp_path), debian_package(tmp_path, "tiny-base")
    wanted = 'test "$*" = "download tiny=1 tiny-base=1" || exit 1'
    tool(bin_folder, "apt-get", f"{wanted}\ncp {tiny} {base} .")
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in (tiny, base)]

    def package(of_base: str) -> DebianPackage:
        base = DebianFile(package="tiny-base", revision="1", sha256={"all": of_base})
        return DebianPackage(
            package="tiny", revision="1", sha256={"all": digests[0]}, depends=(base,)
        )

    told: list[str] = []
    folder = install(cache, "tiny", "1", package(digests[1]), told.append)
    assert sorted(path.name for path in (folder / "usr/bin").iterdir()) == ["tiny", "tiny-base"]
    assert told == [
        "apt: downloading tiny=1 and 1 that it depends on",
        "dpkg-deb: unpacking tiny_1_all.deb",
        "dpkg-deb: unpacking tiny-base_1_all.deb",
    ]
    with pytest.raises(HarnessError, match=r"tiny-base_1_all\.deb is not what was pinned"):
        install(cache, "other", "1", package("0" * 64), silent)
    assert not is_installed(cache, "other", "1")


def test_a_module_of_go_has_the_pinned_checksum(cache: Path, bin_folder: Path) -> None:
    tool(
        bin_folder,
        "go",
        f'case $1 in mod) echo \'{{"Sum": "{SUM}"}}\'; exit;; esac\n'
        "mkdir -p $GOBIN; echo built > $GOBIN/tiny",
    )
    folder = install(cache, "tiny", "1.0", GoModule(module="example.org/tiny", sum=SUM), silent)
    assert (folder / "usr/sbin/tiny").read_text() == "built\n"
    other = GoModule(module="example.org/tiny", sum=f"h1:{'b' * 43}=")
    with pytest.raises(HarnessError, match=r"example.org/tiny@v2\.0 is not what was pinned"):
        install(cache, "tiny", "2.0", other, silent)
    assert not is_installed(cache, "tiny", "2.0")


def test_a_program_that_go_does_not_build_is_called_from_one_of_ours(
    cache: Path, bin_folder: Path
) -> None:
    os.environ["PATH"] += ":/usr/bin:/bin"
    tool(
        bin_folder,
        "go",
        f'case $1:$2 in mod:download) echo \'{{"Sum": "{SUM}"}}\';;\n'
        'build:*) cat main.go > "$3";; esac',
    )
    module = GoModule(module="example.org/tiny", sum=SUM, main="tinymain", program="usr/bin/tiny")
    source = (install(cache, "tiny", "1.0", module, silent) / "usr/bin/tiny").read_text()
    assert 'program "example.org/tiny/tinymain"' in source
    assert "program.Main(os.Args)" in source


def test_a_second_installation_says_that_it_waits_for_the_first(
    cache: Path, bin_folder: Path
) -> None:
    cache.mkdir()
    told: list[str] = []
    with (cache / LOCK).open("w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)

        def tell(line: str) -> None:
            told.append(line)
            if "waiting" in line:
                fcntl.flock(first, fcntl.LOCK_UN)

        tool(bin_folder, "go", f'echo \'{{"Sum": "{SUM}"}}\'')
        install(cache, "tiny", "1.0", GoModule(module="example.org/tiny", sum=SUM), tell)
    assert told[0] == "waiting for another installation into this cache"


MVN = """
for argument in "$@"; do case $argument in -DoutputDirectory=*) to=${argument#*=};; esac; done
wanted='<groupId>org</groupId><artifactId>tiny</artifactId><version>1.0</version>'
grep -q "$wanted" pom.xml || exit 1
mkdir $to; printf a > $to/B.jar; printf b > $to/a.jar
"""


def test_jars_of_maven_have_the_pinned_checksum_together(
    cache: Path, tmp_path: Path, bin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(bin_folder, "mvn", MVN)
    tool(bin_folder, "java", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    other = MavenArtifact(artifact="org:tiny", sha256="0" * 64)
    with pytest.raises(
        HarnessError, match=r"org:tiny:1\.0 and what it depends on are not what was"
    ):
        install(cache, "tiny", "1.0", other, silent)
    assert nothing_is_left(cache)
    jars = tmp_path / "jars"
    jars.mkdir()
    (jars / "B.jar").write_text("a")
    (jars / "a.jar").write_text("b")
    said = subprocess.run(
        "LC_ALL=C; sha256sum *.jar | sha256sum", shell=True, cwd=jars, capture_output=True,
        text=True, check=True, env={"PATH": "/usr/bin:/bin"},
    ).stdout  # fmt: skip
    package = MavenArtifact(artifact="org:tiny", sha256=said.split()[0])
    folder = install(cache, "tiny", "1.0", package, silent)
    assert sorted(path.name for path in (folder / "jars").iterdir()) == ["B.jar", "a.jar"]


def test_what_runs_beside_an_artifact_is_fetched_with_it(
    cache: Path, bin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = "<groupId>org.log</groupId><artifactId>simple</artifactId><version>2.0</version>"
    tool(bin_folder, "mvn", f"grep -q '{beside}' pom.xml || exit 1\n{MVN}")
    tool(bin_folder, "java", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    alone = MavenArtifact(artifact="org:tiny", sha256="0" * 64)
    with pytest.raises(HarnessError, match="mvn -B failed"):
        install(cache, "tiny", "1.0", alone, silent)
    both = MavenArtifact(artifact="org:tiny", sha256="0" * 64, further=("org.log:simple:2.0",))
    with pytest.raises(HarnessError, match="are not what was pinned"):
        install(cache, "tiny", "1.0", both, silent)


def test_java_is_that_of_java_home(
    tmp_path: Path, bin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(bin_folder, "java", "")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert f"none in {tmp_path}/home/bin (JAVA_HOME)" in str(why_missing("java", "tiny"))
    monkeypatch.delenv("JAVA_HOME")
    assert why_missing("java", "tiny") is None


INTERRUPTED = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
from shaketable.harness.installing import GoModule, install
install(Path(sys.argv[1]), "tiny", "1.0", GoModule(module="m", sum=sys.argv[2]), lambda _: None)
"""


def test_an_interrupted_installation_leaves_nothing(
    cache: Path, tmp_path: Path, bin_folder: Path
) -> None:
    os.mkfifo(tmp_path / "building")
    tool(
        bin_folder,
        "go",
        f'case $1 in mod) echo \'{{"Sum": "{SUM}"}}\'; exit;; esac\n'
        f"mkdir -p $GOBIN; echo half > $GOBIN/tiny; echo $$ > {tmp_path}/building; exec sleep 300",
    )
    argv = [sys.executable, "-P", "-c", INTERRUPTED, str(cache), SUM]
    with subprocess.Popen(argv, stderr=subprocess.PIPE) as process:
        go = int((tmp_path / "building").read_text())
        assert list(cache.glob(".partial-*/installed/usr/sbin/tiny"))
        process.send_signal(signal.SIGINT)
        process.communicate()
    with suppress(ProcessLookupError):
        os.kill(go, 0)
        os.kill(go, signal.SIGKILL)
        pytest.fail("the tool outlived the installation")
    assert process.returncode
    assert nothing_is_left(cache)


def test_what_a_killed_installation_left_is_deleted_by_the_next(cache: Path, wheel: Path) -> None:
    (cache / ".partial-left" / "installed").mkdir(parents=True)
    assert not is_installed(cache, "tiny", "1.0")
    install(cache, "tiny", "1.0", of_wheel(wheel), silent)
    assert sorted(path.name for path in cache.iterdir()) == [".lock", "tiny"]


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path, wheel: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HarnessError, match=r"cannot install into .*--cache, or with SHAKETABLE"):
        install(tmp_path / "file" / "cache", "tiny", "1.0", of_wheel(wheel), silent)


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({CACHE_VARIABLE: "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/shaketable"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/c"}, "/c/.cache/shaketable"),
        ({"HOME": "/c"}, "/c/.cache/shaketable"),
    ],
)
def test_where_the_cache_is(environ: dict[str, str], folder: str) -> None:
    assert cache_folder(environ) == Path(folder)
