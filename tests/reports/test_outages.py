"""When the group did not serve, and what of that each fault is charged with."""

from __future__ import annotations

import pyarrow as pa

from shaketable.harness.history.schema import OPERATIONS
from shaketable.reports.availability import ClientActivity, Gap, availability

MS, S = 1_000_000, 1_000_000_000
WORKED = ClientActivity(20 * S)


def table(*rows: tuple[str, int, int | None, str]) -> pa.Table:
    """Return operations (f, called at, returned at, outcome), times in ms."""
    whole = []
    for op, (f, call, back, outcome) in enumerate(rows):
        row = dict.fromkeys(OPERATIONS.names)
        row.update(op=op, process=0, f=f, key="q", call_ns=call * MS, outcome=outcome)
        row["return_ns"] = None if back is None else back * MS
        whole.append(row)
    return pa.Table.from_pylist(whole, schema=OPERATIONS)


def served(start_ms: int, stop_ms: int) -> list[tuple[str, int, int | None, str]]:
    return [("append", at, at + 5, "ok") for at in range(start_ms, stop_ms, 100)]


def waits(call_ms: int, return_ms: int) -> tuple[str, int, int | None, str]:
    """Return an append that somebody waits for."""
    return ("append", call_ms, return_ms, "ok")


def test_only_long_stretches_are_outages() -> None:
    rows = [*served(1000, 5000), waits(4950, 5300), *served(5300, 8000), waits(7950, 10_005)]
    rows += served(10_000, 20_000)
    found = availability(table(*rows), WORKED)
    assert found is not None
    [outage] = found.outages
    assert outage == Gap(7950 * MS, 10_005 * MS)
    assert found.total_ns == found.longest_ns == 2055 * MS
    assert (found.start_ns, found.stop_ns) == (1 * S, 20 * S)
    assert round(found.share, 4) == round(1 - 2.055 / 19, 4)


def test_clients_that_block_to_the_end_make_an_outage_to_the_first_acknowledgement_after_it() -> (
    None
):
    rows = [
        *served(1000, 15_000),
        ("append", 15_000, None, "info"),
        ("append", 15_100, 22_000, "ok"),
    ]
    found = availability(table(*rows), WORKED)
    assert found is not None
    assert found.outages == (Gap(15_000 * MS, 22_000 * MS),)
    never = availability(table(*rows[:-1]), WORKED)
    assert never is not None
    assert never.outages == (Gap(15_000 * MS, 20 * S),)


def test_reads_do_not_show_that_appends_are_served() -> None:
    rows = [*served(1000, 8000), waits(7950, 12_005), *served(12_000, 20_000)]
    rows += [("read", at, at + 1, "ok") for at in range(8000, 12_000, 50)]
    found = availability(table(*rows), WORKED)
    assert found is not None
    assert found.serving == ("append",)
    assert len(found.outages) == 1


def test_where_nothing_appends_every_operation_counts() -> None:
    rows = [("write", at, at + 5, "ok") for at in range(1000, 4000, 100)]
    rows += [("cas", at, at + 95, "fail") for at in range(3900, 20_000, 80)]
    found = availability(table(*rows), WORKED)
    assert found is not None
    assert found.serving == ("cas", "write")
    assert found.outages == (Gap(3905 * MS, 20 * S),)


def test_a_fault_is_charged_with_what_of_it_was_outage() -> None:
    rows = [*served(1000, 8000), waits(7950, 10_005), *served(10_000, 12_000)]
    rows += [waits(11_950, 13_005), *served(13_000, 20_000)]
    found = availability(table(*rows), WORKED)
    assert found is not None
    assert found.lost_ns(9 * S, 12_500 * MS) == (10_005 - 9000 + 12_500 - 11_950) * MS
    assert found.lost_ns(14 * S, 15 * S) == 0


def test_time_in_which_nobody_asks_is_no_outage() -> None:
    found = availability(table(*served(1000, 8000), *served(12_000, 20_000)), WORKED)
    assert found is not None
    assert found.outages == ()
    assert found.share == 1.0


def test_a_run_that_does_not_say_when_clients_worked_ends_with_the_last_call() -> None:
    found = availability(table(*served(1000, 4000)), None)
    assert found is not None
    assert (found.start_ns, found.stop_ns) == (1 * S, 3900 * MS)
    assert found.share == 1.0


def test_of_no_operations_nothing_is_known() -> None:
    assert availability(table(), WORKED) is None
