"""Tables as Spark data frames: schemas, Parquet files, and groups that executors judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from shaketable.checkers.engine.judge import BUCKET_ENTRIES, SCHEMAS, TAGGED, judge_partition, needs
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import CheckContext, Checker

_TYPES = {pa.int64(): "bigint", pa.string(): "string", pa.list_(pa.int64()): "array<bigint>"}


def ddl(schema: pa.Schema) -> str:
    """Return the schema as Spark DDL: "`op` bigint, `f` string"."""
    return ", ".join(f"`{field.name}` {_TYPES[field.type]}" for field in schema)


def read_operations(session: Any, paths: Sequence[Path]) -> Any:
    """Return a data frame of all operations; paths are taken literally."""
    schema = ddl(SCHEMAS["operations"])
    if not paths:
        return session.createDataFrame([], schema)
    for path in paths:
        if not path.is_file():
            raise HarnessError(f"operations {path} cannot be read: there is no such file")
    return session.read.schema(schema).parquet(*[_literal(path) for path in paths])


def _literal(path: Path) -> str:
    """Return a path with the characters quoted that Hadoop would take for a pattern."""
    text = str(path.resolve())
    return "file:" + "".join(f"\\{char}" if char in "*?[]{}\\," else char for char in text)


def judge_groups(
    frames: Mapping[str, Any], partition: str, context: CheckContext, checkers: Sequence[Checker]
) -> pa.Table:
    """Group the tables that the checkers read, judge each group, and collect the findings."""
    columns = {"key": "`key`", "bucket": f"`index` div {BUCKET_ENTRIES}", "history": "0"}
    column = columns[partition]
    names = tuple(name for name in frames if needs(checkers, name))
    grouped = [frames[name].selectExpr("*", f"{column} as part").groupBy("part") for name in names]
    schema = ddl(TAGGED)
    judge = _judge_function(tuple(checkers), names, context)
    if len(grouped) == 1:
        found = grouped[0].applyInArrow(judge, schema)
    else:
        found = grouped[0].cogroup(grouped[1]).applyInArrow(judge, schema)
    return found.toArrow().cast(TAGGED)


def _judge_function(
    checkers: tuple[Checker, ...], names: tuple[str, ...], context: CheckContext
) -> Callable[..., pa.Table]:
    """Return the function that judges one group on an executor, for one or two tables."""

    def judge(parts: Sequence[pa.Table]) -> pa.Table:
        tables = {
            name: part.select(SCHEMAS[name].names).cast(SCHEMAS[name])
            for name, part in zip(names, parts, strict=True)
        }
        return judge_partition(checkers, tables, context)

    def judge_one(table: pa.Table) -> pa.Table:
        return judge((table,))

    def judge_two(left: pa.Table, right: pa.Table) -> pa.Table:
        return judge((left, right))

    assert len(names) in (1, 2), f"checkers read operations and entries, not {names}"
    return judge_one if len(names) == 1 else judge_two
