"""The shape of the tree does not get worse; what it is to become stands in `shape`'s limits."""

from __future__ import annotations

import statistics

import pytest

from tests.architecture.shape import FOLDER_FILES_MAX, Shape, shape

LARGE_FOLDERS_MAX = 0
FRAGMENTS_MAX = 15


@pytest.fixture(scope="module")
def found() -> Shape:
    return shape()


def test_functions_are_short(found: Shape) -> None:
    assert not found.long_functions
    assert statistics.median(found.function_lines) <= 7


def test_there_are_no_import_cycles(found: Shape) -> None:
    assert not found.cycles


def test_folders_can_be_looked_through(found: Shape) -> None:
    assert len(found.large_folders) <= LARGE_FOLDERS_MAX, found.large_folders
    assert min(found.large_folders.values(), default=99) > FOLDER_FILES_MAX


def test_a_paragraph_is_no_module(found: Shape) -> None:
    assert len(found.fragments) <= FRAGMENTS_MAX, found.fragments
