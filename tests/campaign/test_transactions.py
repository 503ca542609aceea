"""Workloads of transactions on stores that are right, and on ones with a planted bug each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pytest
import trio

from shaketable.checkers.transactions import bank, isolation
from shaketable.harness import discovery
from shaketable.harness.campaigns.campaign import check_clients
from shaketable.harness.contracts.errors import DefiniteError, UsageError
from shaketable.harness.contracts.plugins import Answer, CheckContext, Operation, Promises, Step
from shaketable.harness.contracts.verdict import Outcome, Verdict
from shaketable.harness.generators import Due, Played, play
from shaketable.harness.history.schema import OPERATIONS
from shaketable.workloads.bank import BankWorkload
from shaketable.workloads.list_append import ELEMENTS_MAX, STEPS_MAX, ListAppendWorkload
from shaketable.workloads.rw_register import RwRegisterWorkload

CLIENTS = 5
MS = 1_000_000

READS = ("r", "balance")
Version = dict[str, Any]


class Store:
    """Lists in versions; a transaction reads one version, and is the next one if it may be.

    `bug`: "lost-update": of two transactions that appended to one list, the last has no element of
    the other; "write-skew": only the lists appended to must be unchanged, not those read;
    "old-snapshot": what is read is up to five versions old; "dirty": an aborted transaction is
    seen.
    """

    node = "n0"

    def __init__(self, bug: str = "") -> None:
        self.versions: list[Version] = [{}]
        self.bug = bug
        self.rng = Random(7)

    def begin(self) -> int:
        """Return the version that a transaction reads."""
        last = len(self.versions) - 1
        return max(0, last - self.rng.randrange(6)) if self.bug == "old-snapshot" else last

    def do(self, steps: Sequence[Step], mine: Version) -> list[Step]:
        """Do the steps on lists; return them with what was read."""
        done: list[Step] = []
        for f, key, value in steps:
            if f == "append":
                mine[key] = (*mine.get(key, ()), value)
            done.append((f, key, list(mine.get(key, ())) if f == "r" else value))
        return done

    def commit(self, steps: Sequence[Step], at: int) -> list[Step]:
        """Do the steps on that version."""
        mine = dict(self.versions[at])
        now = self.versions[-1]
        done = self.do(steps, mine)
        written = {key for f, key, _ in steps if f not in READS}
        looked_at = {key for _, key, _ in steps} if self.bug != "write-skew" else written
        before = self.versions[at]
        has_changed = any(before.get(key) != now.get(key) for key in looked_at)
        if written and self.bug != "lost-update" and has_changed:
            if self.bug == "dirty":
                self.versions.append({**now, **{key: mine[key] for key in written}})
            raise DefiniteError("another one was first")
        if written:
            self.versions.append({**now, **{key: mine[key] for key in written}})
        return done


class Registers(Store):
    """Registers in versions."""

    def do(self, steps: Sequence[Step], mine: Version) -> list[Step]:
        """Do the steps on registers."""
        done: list[Step] = []
        for f, key, value in steps:
            if f == "w":
                mine[key] = value
            done.append((f, key, mine.get(key) if f == "r" else value))
        return done


class Accounts(Store):
    """Balances in versions. `bug` "torn-read": half of the balances read are of the version before.

    As in `Store`, "lost-update" keeps the balances of the transaction that commits last.
    """

    def do(self, steps: Sequence[Step], mine: Version) -> list[Step]:
        """Debit and credit, or read all balances."""
        if any(f == "balance" for f, *_ in steps):
            old = self.versions[-2] if self.bug == "torn-read" and len(self.versions) > 1 else mine
            return [
                (f, account, (old if n % 2 else mine).get(account, opening))
                for n, (f, account, opening) in enumerate(steps)
            ]
        for f, account, amount in steps:
            mine[account] = mine.get(account, 100) + (amount if f == "credit" else -amount)
            if mine[account] < 0:
                raise DefiniteError("it has less")
        return list(steps)


def played(store: Store, generator: Any, operations_max: int = 1_500) -> list[Played]:
    """Play with transactions that last as long as others take to come between."""
    began: dict[int, int] = {}
    rng = Random(1)

    def life(due: Due) -> tuple[int, str, Answer]:
        # What is played next begins before this one ends: its snapshot is of some time ago.
        at = began.get(due.client, store.begin())
        began[due.client] = store.begin()
        took_ns = rng.randrange(MS, 5 * MS)
        try:
            return took_ns, "ok", Answer(steps=store.commit(due.operation.steps or (), at))
        except DefiniteError:
            return took_ns, "fail", Answer()

    return play(generator, CLIENTS, life, operations_max=operations_max)


def verdict_on(history: Sequence[Played], level: str, checker: Any = isolation.PLUGIN) -> Verdict:
    rows = [
        {
            "op": number, "process": each.client, "f": each.operation.f, "key": each.operation.key,
            "call_ns": each.call_ns, "return_ns": each.return_ns, "outcome": each.outcome,
            "extra": json.dumps(
                {"input": each.operation.steps}
                | ({"output": each.answer.steps} if each.outcome == "ok" else {})
            ),
        }
        for number, each in enumerate(history)
    ]  # fmt: skip
    context = CheckContext((), {}, Promises(isolation=level))
    table = pa.Table.from_pylist(rows, OPERATIONS)
    return checker.conclude(checker.check({"operations": table}, context), context)


@pytest.mark.parametrize(
    ("bug", "kind"),
    [
        ("", None),
        ("lost-update", "lost-update"),
        ("write-skew", "G2-item"),
        ("dirty", "G1a"),
    ],
)
def test_transactions_meet_so_that_each_bug_shows(bug: str, kind: str | None) -> None:
    history = played(Store(bug), ListAppendWorkload().generator("7", CLIENTS))
    verdict = verdict_on(history, "serializable")
    assert (verdict.outcome is Outcome.INVALID) == (kind is not None), verdict.summary
    assert kind is None or verdict.counts.get(kind), verdict.summary
    if kind is None:
        assert "serializable" in verdict.summary


@pytest.mark.parametrize(
    ("level", "outcome"),
    [
        ("strict-serializable", Outcome.INVALID),
        ("serializable", Outcome.VALID),
        ("", Outcome.VALID),
    ],
)
def test_what_is_not_promised_is_observed(level: str, outcome: Outcome) -> None:
    history = played(Store("old-snapshot"), ListAppendWorkload().generator("7", CLIENTS))
    verdict = verdict_on(history, level)
    assert verdict.outcome is outcome, verdict.summary
    assert bool(verdict.observed) == (outcome is Outcome.VALID)
    assert "serializable" in verdict.data["holds"]
    assert "strict-serializable" in verdict.data["broken"]


def test_values_are_unique_lists_stay_short_and_all_are_read_in_the_end() -> None:
    store = Store()
    history = played(store, ListAppendWorkload(3).generator("7", CLIENTS), 3_000)
    steps = [step for each in history for step in each.operation.steps or ()]
    values = [value for f, _, value in steps if f == "append"]
    assert len(values) == len(set(values)) > 1_000
    assert {len(each.operation.steps or ()) for each in history} == set(range(1, STEPS_MAX + 1))
    lists = store.versions[-1]
    assert len(lists) > 9
    assert max(map(len, lists.values())) <= ELEMENTS_MAX + STEPS_MAX * CLIENTS
    final = played(store, ListAppendWorkload(3).final_generator("7", CLIENTS, ()))
    read = {key for each in final for _, key, _ in each.operation.steps or ()}
    assert read >= lists.keys()
    assert {each.operation.f for each in final} == {"txn"}
    assert all(f == "r" for each in final for f, _, _ in each.operation.steps or ())


def test_a_final_read_that_is_given_up_ends_its_client() -> None:
    final = ListAppendWorkload(2).final_generator("7", 2, ())
    given_up = play(final, 2, lambda _due: (MS, "ok", Answer()))
    assert [each.client for each in given_up] == [0, 1]


def test_an_operation_names_its_steps() -> None:
    workload = ListAppendWorkload()
    operation = next(workload.operations("7", 0, CLIENTS))
    assert operation.steps
    assert operation.value is None

    class Client:
        async def transact(self, steps: Sequence[Step]) -> Sequence[Step]:
            return steps

    answer = trio.run(workload.invoke, operation, None, Client())  # type: ignore[arg-type]
    assert answer == Answer(steps=operation.steps)


@pytest.mark.parametrize(
    ("workload", "client", "lack"),
    [
        (ListAppendWorkload(), "list-append", "no transactions"),
        (RwRegisterWorkload(), "rw-register", "no transactions over registers"),
        (BankWorkload(), "bank", "no accounts"),
    ],
)
def test_clients_that_cannot_serve_it_are_refused(workload: Any, client: str, lack: str) -> None:
    with pytest.raises(UsageError, match=rf"^workload {client}: clients of dledger have {lack}"):
        check_clients(workload, discovery.get("targets", "dledger"))


@pytest.mark.parametrize(
    ("workload", "least"),
    [(ListAppendWorkload(), 1), (RwRegisterWorkload(), 1), (BankWorkload(), 2)],
)
@pytest.mark.parametrize("queues", [0, 1_001, "3", True, 2.5])
def test_a_wrong_number_of_keys_is_refused(workload: Any, least: int, queues: object) -> None:
    refused = rf"^workload {workload.name}: queues is .*, not {least} to 1000"
    with pytest.raises(UsageError, match=refused):
        workload.configured({"queues": queues})
    assert Operation("txn", "k").steps is None


@pytest.mark.parametrize(
    ("bug", "kind"),
    [("", None), ("lost-update", "lost-update"), ("write-skew", "G2-item"), ("dirty", "G1a")],
)
def test_transactions_over_registers_show_each_bug(bug: str, kind: str | None) -> None:
    history = played(Registers(bug), RwRegisterWorkload().generator("7", CLIENTS))
    verdict = verdict_on(history, "serializable")
    assert (verdict.outcome is Outcome.INVALID) == (kind is not None), verdict.summary
    assert kind is None or verdict.counts.get(kind), verdict.summary
    if kind is None:
        # A write follows a read of its register, so that the order of versions is known.
        assert "serializable" in verdict.data["holds"], verdict.summary
        decided = verdict.data["holds"] + verdict.data["broken"]
        assert "strict-serializable" in decided, verdict.summary


def test_a_register_is_read_before_it_is_written_and_values_are_unique() -> None:
    generator = RwRegisterWorkload(3).generator("7", CLIENTS)
    history = played(Registers(), generator, 3_000)
    all_steps = [each.operation.steps or () for each in history]
    values = [value for steps in all_steps for f, _, value in steps if f == "w"]
    assert len(values) == len(set(values)) > 1_000
    for steps in all_steps:
        read = {key for f, key, _ in steps if f == "r"}
        assert {key for f, key, _ in steps if f == "w"} <= read
        assert len(read) == sum(f == "r" for f, *_ in steps) <= 3
    final = played(Registers(), RwRegisterWorkload(3).final_generator("7", CLIENTS, ()))
    assert [each.client for each in final] == list(range(CLIENTS))
    assert all(len(each.operation.steps or ()) == 3 for each in final)


@pytest.mark.parametrize("bug", ["", "lost-update", "torn-read"])
def test_a_bank_has_one_total_unless_there_is_a_bug(bug: str) -> None:
    history = played(Accounts(bug), BankWorkload().generator("7", CLIENTS))
    assert {each.operation.f for each in history} == {"read", "transfer"}
    verdict = verdict_on(history, "snapshot-isolation", bank.PLUGIN)
    assert (verdict.outcome is Outcome.INVALID) == bool(bug), verdict.summary
    assert set(verdict.counts) - {"reads"} == ({"wrong-total"} if bug else set())
    assert bug == "" or "instead of 800" in verdict.findings[0].message


def test_a_bank_hands_accounts_and_amounts_to_its_client() -> None:
    asked: list[Any] = []

    class Client:
        async def transfer(self, *given: Any) -> None:
            asked.append(given)

        async def balances(self, accounts: Sequence[str], opening: int) -> list[int]:
            asked.append((tuple(accounts), opening))
            return [opening + n for n in range(len(accounts))]

    workload, client = BankWorkload(2), Client()
    transfer = Operation(
        "transfer", "accounts", steps=(("debit", "account-1", 3), ("credit", "account-0", 3))
    )
    answer = trio.run(workload.invoke, transfer, None, client)  # type: ignore[arg-type]
    assert answer == Answer(steps=transfer.steps)
    (read,) = workload.final_operations(0, CLIENTS)
    answer = trio.run(workload.invoke, read, None, client)  # type: ignore[arg-type]
    assert answer.steps == [("balance", "account-0", 100), ("balance", "account-1", 101)]
    assert asked == [("account-1", "account-0", 3, 100), (("account-0", "account-1"), 100)]
