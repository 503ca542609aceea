"""Workloads that are defined by generators; see `contracts.plugins.Workload`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from shaketable.harness.contracts.plugins import Workload
from shaketable.harness.generators.clients import each_client
from shaketable.harness.generators.combinators import operations
from shaketable.harness.generators.generator import Generator


@runtime_checkable
class GeneratedWorkload(Workload, Protocol):
    """A workload whose operations come from one generator for all clients of a worker.

    Its per-client methods (`operations`, `final_operations`) are not used then.
    """

    def generator(self, seed: str, clients: int) -> Generator:
        """Return what clients do until stopped; `clients` is their number in all workers."""
        ...

    def final_generator(self, seed: str, clients: int, keys: Sequence[str]) -> Generator:
        """Return what is done after the heal; `keys` are those with at least one ok operation.

        Each operation is retried by its client until it is ok.
        """
        ...


def generator_of(workload: Workload, seed: str, clients: int) -> Generator:
    """Return the generator of any workload."""
    if isinstance(workload, GeneratedWorkload):
        return workload.generator(seed, clients)
    return each_client(lambda client: operations(workload.operations(seed, client, clients)))


def final_generator_of(
    workload: Workload, seed: str, clients: int, keys: Sequence[str]
) -> Generator:
    """Return the generator of any workload's final operations, after the heal."""
    if isinstance(workload, GeneratedWorkload):
        return workload.final_generator(seed, clients, keys)
    return each_client(lambda client: operations(workload.final_operations(client, clients)))
