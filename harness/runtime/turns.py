"""Deals out what a generator gives to the clients of one worker, each when it has time.

There is no task that does this: a client that is free asks for itself and for those that wait.
"""

from __future__ import annotations

import math

import trio

from shaketable.harness.generators.generator import Context, Due, Ended, Generator

NS = 1e9


class Turns:
    """A generator under way. Times count from when this was made, on trio's clock."""

    def __init__(self, generator: Generator, clients: tuple[int, ...]) -> None:
        self._generator = generator
        self._clients = clients
        self._began_s = trio.current_time()
        self._waiting: dict[int, trio.Event] = {}  # who waited longest first
        self._given: dict[int, Due] = {}
        self._is_over = False

    def now_ns(self) -> int:
        """The time that the generator goes by."""
        return int((trio.current_time() - self._began_s) * NS)

    def trio_time(self, at_ns: int) -> float:
        """The same time on trio's clock."""
        return self._began_s + at_ns / NS

    async def next(self, client: int) -> Due | None:
        """Return what this client is to do next; None if there is nothing more for anybody.

        Waits where there is nothing for now. Does not wait until it is due.
        """
        while True:
            if client in self._given:
                return self._given.pop(client)
            if self._is_over:
                return None
            free = (*self._waiting, client) if self._waiting else (client,)
            answer = self._generator.ask(Context(self.now_ns(), free, self._clients))
            if answer is None:
                self.stop()
                continue
            step, self._generator = answer
            if not isinstance(step, Due):
                until_ns = step.until_ns
                await self._wait(client, math.inf if until_ns is None else self.trio_time(until_ns))
            elif step.client == client:
                return step
            else:
                self._given[step.client] = step
                self._waiting.pop(step.client).set()

    def update(self, ended: Ended) -> None:
        """Tell the generator how an operation ended; those who wait may have something to do."""
        generator = self._generator.update(ended)
        if generator is not self._generator:
            self._generator = generator
            if self._waiting:
                self._wake()

    def stop(self) -> None:
        """Give nobody anything more."""
        self._is_over = True
        self._wake()

    async def _wait(self, client: int, until_s: float) -> None:
        woken = self._waiting[client] = trio.Event()
        with trio.CancelScope(deadline=until_s):
            await woken.wait()
        self._waiting.pop(client, None)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for woken in waiting.values():
            woken.set()
