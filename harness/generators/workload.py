"""A workload that says by generators what its clients do; see `contracts.plugins.Workload`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from shaketable.harness.contracts.plugins import Workload
from shaketable.harness.generators.clients import each_client
from shaketable.harness.generators.generator import Generator
from shaketable.harness.generators.sequences import operations


@runtime_checkable
class GeneratedWorkload(Workload, Protocol):
    """A workload whose operations come from one generator for all clients of a worker.

    What it is asked for by client (`operations`, `final_operations`) is not used then.
    """

    def generator(self, seed: str, clients: int) -> Generator:
        """Return what clients do until they are stopped, of so many in all workers."""
        ...

    def final_generator(self, seed: str, clients: int, keys: Sequence[str]) -> Generator:
        """Return what is done after the heal; `keys` are those on which something was ok.

        Each operation is tried until it is ok, by the client that it was given to.
        """
        ...


def generator_of(workload: Workload, seed: str, clients: int) -> Generator:
    """Return what clients do in any workload."""
    if isinstance(workload, GeneratedWorkload):
        return workload.generator(seed, clients)
    return each_client(lambda client: operations(workload.operations(seed, client, clients)))


def final_generator_of(
    workload: Workload, seed: str, clients: int, keys: Sequence[str]
) -> Generator:
    """Return what is done after the heal in any workload."""
    if isinstance(workload, GeneratedWorkload):
        return workload.final_generator(seed, clients, keys)
    return each_client(lambda client: operations(workload.final_operations(client, clients)))
