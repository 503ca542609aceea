"""A node for tests of the harness: the lowest node that reaches a majority leads.

It keeps its log in memory and copies it to its peers with every ping: no consensus, only
something that listens, pings through its links, elects somebody, and answers quickly.
Run as `python fake_node.py CONFIG.json`.
"""

import json
import sys
import time
from pathlib import Path

import trio

PING_S = 0.05
FRESH_S = 0.4


class Node:
    def __init__(self, config):
        self.id = config["node"]
        self.config = config
        self.nodes = sorted([self.id, *config["peers"]])
        self.heard = {}
        self.term = 0
        self.leader = None
        self.log = []  # [term, key, value]
        self.favourite = [0, None]  # how many transfers there were, to whom the last one was

    def alive(self):
        now = time.monotonic()
        return [n for n in self.nodes if n == self.id or now - self.heard.get(n, -1e9) < FRESH_S]

    def elect(self):
        alive = self.alive()
        wanted = self.favourite[1] if self.favourite[1] in alive else alive[0]
        chosen = wanted if len(alive) > len(self.nodes) / 2 else None
        if chosen == self.id and self.leader != self.id:
            self.term += 1
        if chosen is None or chosen == self.id:
            self.leader = chosen

    def status(self):
        self.elect()
        role = "leader" if self.leader == self.id else "follower" if self.leader else "candidate"
        end = len(self.log) - 1
        return {
            "node": self.id, "role": role, "term": self.term, "leader": self.leader,
            "committed_index": end, "end_index": end,
        }  # fmt: skip

    def take(self, message):
        self.heard[message["from"]] = time.monotonic()
        if message["term"] >= self.term and message["leader"] == message["from"]:
            self.term, self.leader = message["term"], message["leader"]
            if self.config.get("mutant") != "forgets":
                self.log = message["log"]
        self.term = max(self.term, message["term"])
        if message["favourite"][0] > self.favourite[0]:
            self.favourite = message["favourite"]
        return {"from": self.id}

    def answer(self, message):
        do = message["do"]
        if do == "status":
            return self.status()
        self.elect()
        if self.leader != self.id:
            return {"error": "not the leader"}
        if do == "transfer":
            if message["to"] not in self.alive():
                return {"error": f"{message['to']} cannot be reached"}
            self.favourite = [self.favourite[0] + 1, message["to"]]
            return {"result": None}
        values = [value for _, key, value in self.log if key == message["key"]]
        if do == "append":
            self.log.append([self.term, message["key"], message["value"]])
            return {"result": len(values)}
        if do == "end":
            return {"result": len(values)}
        offset = message["offset"]
        return {"result": values[offset] if offset < len(values) else None}

    async def ping(self, host, port):
        while True:
            await trio.sleep(PING_S)
            try:
                with trio.move_on_after(30):
                    async with await trio.open_tcp_stream(host, port) as stream:
                        lines = read_lines(stream)
                        while True:
                            self.elect()
                            message = {"from": self.id, "term": self.term, "leader": self.leader}
                            message["favourite"] = self.favourite
                            await write_line(stream, {**message, "log": self.log})
                            self.heard[(await anext(lines))["from"]] = time.monotonic()
                            await trio.sleep(PING_S)
            except (OSError, StopAsyncIteration, trio.BrokenResourceError):
                continue

    async def serve(self, address, handle):
        async def one(stream):
            try:
                async for message in read_lines(stream):
                    await write_line(stream, handle(message))
            except trio.BrokenResourceError:
                pass

        await trio.serve_tcp(one, address[1], host=address[0])

    async def run(self):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.serve, self.config["client"], self.answer)
            nursery.start_soon(self.serve, self.config["peer"], self.take)
            for host, port in self.config["peers"].values():
                nursery.start_soon(self.ping, host, port)


async def read_lines(stream):
    buffer = b""
    while data := await stream.receive_some(65536):
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            yield json.loads(line)


async def write_line(stream, message):
    await stream.send_all(json.dumps(message).encode() + b"\n")


def main():
    config = json.loads(Path(sys.argv[1]).read_text())
    if config.get("mutant") == "crash":
        sys.exit("fake node: told to crash at start")
    sys.stdout.write(f"fake node serving {config['node']}\n")
    sys.stdout.flush()
    try:
        trio.run(Node(config).run)
    except* OSError as group:
        sys.exit(f"fake node: {group.exceptions[0]}")


if __name__ == "__main__":
    main()
