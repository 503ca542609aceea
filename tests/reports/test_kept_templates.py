"""Compiled templates are kept beside their sources, and never used for another source."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from jinja2 import Environment
from jinja2.bccache import FileSystemBytecodeCache

from shaketable.reports.templating import environment


@pytest.fixture(autouse=True)
def keeping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)


def shown(folder: Path) -> str:
    return environment(folder).get_template("page.j2").render(name="<n1>")


def test_a_template_is_compiled_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    compile_it = Environment.compile

    def counted(self: Environment, source: str, *more: object, **named: object) -> object:
        compiled.append(source)
        return compile_it(self, source, *more, **named)

    monkeypatch.setattr(Environment, "compile", counted)
    template = tmp_path / "page.j2"
    template.write_text("one {{ name }}")
    assert [shown(tmp_path), shown(tmp_path)] == ["one &lt;n1&gt;"] * 2
    assert compiled == ["one {{ name }}"]
    template.write_text("two {{ name }}")
    assert shown(tmp_path) == "two &lt;n1&gt;"
    assert len(compiled) == 2


def test_a_full_disk_loses_the_code_and_not_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FileSystemBytecodeCache, "dump_bytecode", full)
    (tmp_path / "page.j2").write_text("one {{ name }}")
    assert shown(tmp_path) == "one &lt;n1&gt;"
