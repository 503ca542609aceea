"""The decorator `shaketable.operation`: names for functions, errors of one operation, one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trio

from shaketable import operation
from shaketable.harness.contracts.errors import DefiniteError, IndefiniteError, UsageError
from shaketable.harness.contracts.plugins import Address
from shaketable.harness.described.client import Functions, client_type, load

HEAD = "from shaketable import operation\n"
NAMED = (
    HEAD
    + """
class Taken(Exception): ...

@operation("open")
def connect(node):
    return node.name

@operation("read")
async def get_it(session, key):
    return 7

@operation(definite=Taken)
def write(session, key, value):
    raise Taken(session)

@operation("cas", definite=(KeyError, OSError))
async def replace(session, key, expected, value):
    raise {1: KeyError, 2: OSError, 3: Taken}[value](key)

def add(session, key, value): ...

also_add = add
"""
)


def loaded(folder: Path, text: str) -> Functions:
    (folder / "c.py").write_text(text)
    return load(folder / "c.py")


def test_functions_of_other_names_are_operations(tmp_path: Path) -> None:
    functions = loaded(tmp_path, NAMED)
    assert functions.names == {"read", "write", "cas", "add"}
    assert functions.has("open")
    client = client_type(functions)({"n0": Address("127.0.0.1", 1)}, 5.0)

    async def main() -> None:
        assert await client.get("k") == 7  # type: ignore[attr-defined]
        with pytest.raises(DefiniteError, match="Taken: n0"):
            await client.put("k", 1)  # type: ignore[attr-defined]
        for value in (1, 2):
            with pytest.raises(DefiniteError, match="k"):
                await client.swap("k", None, value)  # type: ignore[attr-defined]
        with pytest.raises(IndefiniteError, match="Taken: k"):  # definite for write alone
            await client.swap("k", None, 3)  # type: ignore[attr-defined]

    trio.run(main)


def test_it_leaves_a_function_as_it_is() -> None:
    def read(session: object, key: str) -> str:
        return f"{session} {key}"

    assert operation(read) is read
    assert operation("read_at")(read) is read
    assert read(1, "k") == "1 k"


def test_the_decorator_outweighs_the_name(tmp_path: Path) -> None:
    text = HEAD + "@operation('read')\ndef write(s, k): ...\n"
    assert loaded(tmp_path, text).names == {"read"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "@operation('raed')\ndef f(s, k): ...\n",
            "operation 'raed'; did you mean 'read'?",
        ),
        ("@operation\ndef wriet(s, k, v): ...\n", "'wriet'; did you mean 'write'?"),
        (
            "@operation('cas')\ndef f(s, k, v): ...\n",
            "f is called with 4 arguments: f(session,",
        ),
        ("@operation('read')\ndef f(s, k): ...\ndef read(s, k): ...\n", "f and read are both the"),
        ("@operation('read', definite='x')\ndef f(s, k): ...\n", "definite of f holds 'x'"),
        ("@operation(definite=(int,))\ndef read(s, k): ...\n", "no exception class"),
    ],
)
def test_one_line_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        loaded(tmp_path, HEAD + text)
    assert str(error.value).startswith(f"{tmp_path / 'c.py'}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_its_import_is_cheap() -> None:
    code = (
        "import sys, shaketable; print(*sorted({'trio', 'msgspec', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
