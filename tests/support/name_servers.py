"""Name-server processes that tests start, kill and ask; `close` ends them however the test went."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from shaketable.harness.runtime.processes.ports import find_free
from shaketable.system.client.connection import Connection, OutcomeUnknownError, RefusedError
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.name_server_requests import TopicRoute, decode_route

HOST = "127.0.0.1"
ROOT = Path(__file__).parent.parent.parent
END_TIMEOUT_S = 20.0
ASK_TIMEOUT_S = 5.0


class NameServers:
    """So many name servers on ports of their own, each with a log file.

    `options` are those of the program.
    """

    def __init__(self, folder: Path, count: int, *options: str) -> None:
        self.folder = folder
        self.options = options
        self.ports = find_free(count)
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def addresses(self) -> str:
        """What namesrvAddr is to be."""
        return ";".join(f"{HOST}:{port}" for port in self.ports)

    def start(self, *ports: int) -> None:
        for port in ports or self.ports:
            with (self.folder / f"name-server-{port}.log").open("ab") as log:
                self.processes[port] = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "shaketable.system.node.name_server",
                        "--port",
                        str(port),
                        *self.options,
                    ],
                    cwd=ROOT,
                    stdout=log,
                    stderr=log,
                )

    def kill(self, port: int) -> None:
        self.processes[port].kill()
        self.processes[port].wait(END_TIMEOUT_S)

    def stop(self) -> None:
        """End those that run in order; each has to say that all was well."""
        running = [p for p in self.processes.values() if p.poll() is None]
        for process in running:
            process.terminate()
        assert [process.wait(END_TIMEOUT_S) for process in running] == [0] * len(running)

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
        for process in self.processes.values():
            process.wait(END_TIMEOUT_S)

    async def route(self, port: int, topic: str) -> TopicRoute | None:
        """Ask one of them; None where it knows no route. Raises OutcomeUnknownError."""
        try:
            connection = await Connection.open(HOST, port, ASK_TIMEOUT_S)
        except OSError as error:
            raise OutcomeUnknownError(f"no connection: {error}") from None
        request = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext={"topic": topic})
        try:
            response = await connection.call(request, ASK_TIMEOUT_S)
        finally:
            connection.close()
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if response.code != ResponseCode.SUCCESS:
            raise RefusedError(response.code, response.remark or "")
        return decode_route(response.body)
