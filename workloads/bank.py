"""Transfers between accounts, and reads of all balances.

Source: jepsen.tests.bank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from shaketable.harness.contracts.clients import BankClient
from shaketable.harness.contracts.plugins import Answer, Json, Operation, TargetClient, Workload
from shaketable.harness.contracts.rng import rng_for
from shaketable.harness.generators import (
    GeneratedWorkload,
    Generator,
    each_client,
    number_of_keys,
    operations,
)

ACCOUNTS: Final = "accounts"
"""The key that operations are recorded under: each is about several accounts."""
READ, TRANSFER = "read", "transfer"
BALANCE, DEBIT, CREDIT = "balance", "debit", "credit"
ACCOUNTS_DEFAULT: Final = 8
OPENING_BALANCE: Final = 100
AMOUNT_MAX: Final = 5


class BankWorkload(GeneratedWorkload):
    """Transfers between accounts that hold 100 each at first, and reads of all balances.

    A transfer moves 1 to 5 from one account to another one, and is refused if the first would be
    left with less than 0. So all reads have the same total. There are as many accounts as a
    campaign has `queues`. After the heal each client reads all balances.
    """

    name = "bank"
    checkers: tuple[str, ...] = ("bank", "vacuity", "stats")

    def __init__(self, accounts: int = ACCOUNTS_DEFAULT) -> None:
        self.accounts = accounts

    def configured(self, options: Json) -> Workload:
        """Return this workload on options["queues"] accounts.

        Raises:
            UsageError: that is no such number.
        """
        return BankWorkload(number_of_keys(self.name, options, self.accounts, least=2))

    def generator(self, seed: str, clients: int) -> Generator:
        """Return what clients do: as many transfers as reads."""
        return each_client(lambda client: operations(self._operations(seed, client)))

    def final_generator(self, seed: str, clients: int, keys: Sequence[str]) -> Generator:
        """Read all balances, each client once."""
        return each_client(lambda client: operations(self.final_operations(client, clients)))

    def final_operations(self, client: int, clients: int) -> Iterator[Operation]:
        """Read all balances."""
        yield self._read()

    def why_not(self, client: type) -> str | None:
        """Return what such clients lack: they need accounts."""
        return None if issubclass(client, BankClient) else "have no accounts"

    def opened(self, client: TargetClient) -> TargetClient:
        """Return the client: transactions are the target's own."""
        return client

    async def invoke(
        self, operation: Operation, offset: int | None, client: TargetClient
    ) -> Answer:
        """Transfer, or read all balances."""
        assert isinstance(client, BankClient), "looked at when it was opened"
        steps = operation.steps or ()
        if operation.f == TRANSFER:
            (_, source, amount), (_, destination, _) = steps
            await client.transfer(source, destination, amount, OPENING_BALANCE)
            return Answer(steps=steps)
        accounts = [account for _, account, _ in steps]
        found = await client.balances(accounts, OPENING_BALANCE)
        return Answer(
            steps=[
                (BALANCE, account, balance)
                for account, balance in zip(accounts, found, strict=True)
            ]
        )

    def _operations(self, seed: str, client: int) -> Iterator[Operation]:
        rng = rng_for(seed, "client", client)
        while True:
            if rng.random() < 0.5:
                yield self._read()
                continue
            source, destination = rng.sample(range(self.accounts), 2)
            amount = rng.randint(1, AMOUNT_MAX)
            steps = (DEBIT, _account(source), amount), (CREDIT, _account(destination), amount)
            yield Operation(TRANSFER, ACCOUNTS, steps=steps)

    def _read(self) -> Operation:
        """Return a read of all balances; it says with how much each account was opened."""
        steps = tuple((BALANCE, _account(n), OPENING_BALANCE) for n in range(self.accounts))
        return Operation(READ, ACCOUNTS, steps=steps)


def _account(number: int) -> str:
    return f"account-{number}"


PLUGIN = BankWorkload()
