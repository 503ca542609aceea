"""Transactions of reads and writes of registers.

Source: jepsen.tests.cycle.wr; Elle (Kingsbury & Alvaro, VLDB 2020), section 4.2: writes follow
reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from shaketable.harness.contracts.clients import RegisterTransactionClient
from shaketable.harness.contracts.plugins import (
    Answer,
    Json,
    Operation,
    Step,
    TargetClient,
    Workload,
)
from shaketable.harness.contracts.rng import rng_for
from shaketable.harness.generators import (
    GeneratedWorkload,
    Generator,
    each_client,
    number_of_keys,
    operations,
)
from shaketable.harness.history.schema import TRANSACTION

REGISTERS: Final = "registers"
"""The key that transactions are recorded under: each is about several."""
READ, WRITE = "r", "w"
REGISTERS_DEFAULT: Final = 8
STEPS_MAX: Final = 3
"""Registers that a transaction reads, or reads and writes; it has one at least."""


class RwRegisterWorkload(GeneratedWorkload):
    """Transactions that read one to three registers, and write unique values to some of them.

    All clients work on the same registers, as many as a campaign has `queues`, on the first ones
    most. A register is read in a transaction before it is written there, so the checker knows which
    version each write replaced. After the heal all registers are read.
    """

    name = "rw-register"
    checkers: tuple[str, ...] = ("isolation", "vacuity", "stats")

    def __init__(self, registers: int = REGISTERS_DEFAULT) -> None:
        self.registers = registers

    def configured(self, options: Json) -> Workload:
        """Return this workload on options["queues"] registers.

        Raises:
            UsageError: that is no such number.
        """
        return RwRegisterWorkload(number_of_keys(self.name, options, self.registers))

    def generator(self, seed: str, clients: int) -> Generator:
        """Return what clients do: random transactions."""
        return each_client(lambda client: operations(self._transactions(seed, client, clients)))

    def final_generator(self, seed: str, clients: int, keys: Sequence[str]) -> Generator:
        """Read all registers, each client once."""
        return each_client(lambda client: operations(self.final_operations(client, clients)))

    def final_operations(self, client: int, clients: int) -> Iterator[Operation]:
        """Read all registers."""
        yield _transaction([(READ, _key_of(place), None) for place in range(self.registers)])

    def why_not(self, client: type) -> str | None:
        """Return what such clients lack: they need transactions over registers."""
        if issubclass(client, RegisterTransactionClient):
            return None
        return "have no transactions over registers"

    def opened(self, client: TargetClient) -> TargetClient:
        """Return the client: transactions are the target's own."""
        return client

    async def invoke(
        self, operation: Operation, offset: int | None, client: TargetClient
    ) -> Answer:
        """Run a transaction; return its steps, with the values that were read."""
        assert isinstance(client, RegisterTransactionClient), "looked at when it was opened"
        assert operation.steps is not None, "a transaction of nothing"
        return Answer(steps=await client.transact_registers(operation.steps))

    def _transactions(self, seed: str, client: int, clients: int) -> Iterator[Operation]:
        """Generate transactions; written values are c, n + c, 2n + c, ...: all unique."""
        rng, value = rng_for(seed, "client", client), client
        while True:
            steps: list[Step] = []
            places = {self._place(rng.random()) for _ in range(rng.randint(1, STEPS_MAX))}
            for place in sorted(places, key=lambda _: rng.random()):
                steps.append((READ, _key_of(place), None))
                if rng.random() < 0.5:
                    steps.append((WRITE, _key_of(place), value))
                    value += clients
            yield _transaction(steps)

    def _place(self, share: float) -> int:
        """Choose a register: the first for half of all shares, the second for half of the rest."""
        place = 0
        while share >= 0.5 and place < self.registers - 1:
            place, share = place + 1, 2 * share - 1
        return place


def _transaction(steps: Sequence[Step]) -> Operation:
    return Operation(TRANSACTION, REGISTERS, steps=tuple(steps))


def _key_of(number: int) -> str:
    return f"register-{number}"


PLUGIN = RwRegisterWorkload()
