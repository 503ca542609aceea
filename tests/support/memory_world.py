"""A world in memory for tests of faults and of the nemesis: the contract of World, no process."""

from __future__ import annotations

from collections.abc import Sequence

from shaketable.harness.contracts.capabilities import LinkShape
from shaketable.harness.contracts.plugins import UNTOUCHED, Json

COUNTS = (
    "bytes",
    "packets",
    "delayed",
    "dropped",
    "duplicated",
    "reordered",
    "corrupted",
    "resets",
    "half_open",
    "unread",
)


class MemoryWorld:
    """Processes are numbers, cuts are sets. `log` keeps what was done, in order."""

    def __init__(self, nodes: Sequence[str], leads: str | None = None) -> None:
        self.nodes = tuple(nodes)
        self.leads = leads
        self.incarnations = dict.fromkeys(nodes, 1)
        self.dead: set[str] = set()
        self.paused: set[str] = set()
        self.wiped: set[str] = set()
        self.cuts: dict[str, tuple[tuple[str, str], ...]] = {}
        self.healed: dict[str, str] = {}
        self.shapes: dict[str, tuple[tuple[tuple[str, str], ...], LinkShape]] = {}
        self.unshaped: set[str] = set()
        self.traffic = True
        self.log: list[str] = []

    async def leader(self, order: Sequence[str] = ()) -> str | None:
        return self.leads

    async def kill(self, node: str) -> Json:
        if node in self.dead:
            return {"incarnation": UNTOUCHED}
        self.log.append(f"kill {node}")
        self.dead.add(node)
        self.paused.discard(node)
        return {"incarnation": self.incarnations[node]}

    async def restart(self, node: str, incarnation: int) -> None:
        if node in self.dead and self.incarnations[node] == incarnation:
            self.log.append(f"restart {node}")
            self.dead.discard(node)
            self.incarnations[node] += 1

    async def pause(self, node: str) -> Json:
        if node in self.dead or node in self.paused:
            return {"incarnation": UNTOUCHED}
        self.log.append(f"pause {node}")
        self.paused.add(node)
        return {"incarnation": self.incarnations[node]}

    async def resume(self, node: str, incarnation: int) -> None:
        if node in self.paused and self.incarnations[node] == incarnation:
            self.log.append(f"resume {node}")
            self.paused.discard(node)

    def is_paused(self, node: str) -> bool:
        return node in self.paused

    def is_alive(self, node: str, incarnation: int) -> bool:
        return node not in self.dead and self.incarnations[node] == incarnation

    async def cut(self, links: Sequence[tuple[str, str]]) -> str:
        assert all(a in self.nodes and b in self.nodes and a != b for a, b in links)
        name = f"cut-{len(self.cuts)}"
        self.cuts[name] = tuple(links)
        self.log.append(name)
        return name

    async def heal(self, cut: str, how: str) -> None:
        assert how in ("deliver", "reset")
        if cut not in self.healed:
            self.log.append(f"heal {cut}")
            self.healed[cut] = how

    def held(self, cut: str) -> Json:
        open_cut = cut in self.cuts and self.traffic
        return {"bytes": 100 if open_cut else 0, "connections": 1 if open_cut else 0}

    async def shape(self, links: Sequence[tuple[str, str]], shape: LinkShape) -> str:
        assert all(a in self.nodes and b in self.nodes and a != b for a, b in links)
        name = f"shape-{len(self.shapes)}"
        self.shapes[name] = (tuple(links), shape)
        self.log.append(name)
        return name

    async def unshape(self, shape: str) -> None:
        if shape in self.shapes and shape not in self.unshaped:
            self.log.append(f"un{shape}")
            self.unshaped.add(shape)

    def shaped(self, shape: str) -> Json:
        if not self.traffic:
            return dict.fromkeys(COUNTS, 0)
        return {**dict.fromkeys(COUNTS, 9), "delay_ms_mean": self.shapes[shape][1].delay_ms}

    def why_not_wiped(self, node: str) -> str | None:
        others = sorted((self.dead | self.paused | self.wiped) - {node})
        return f"{', '.join(others)} is not back yet" if others else None

    async def wipe(self, node: str) -> Json:
        killed = await self.kill(node)
        self.wiped.add(node)
        self.log.append(f"wipe {node}")
        return {**killed, "files": 2, "bytes": 4096, "messages": 7}

    async def replace(self, node: str, incarnation: int) -> None:
        if node in self.wiped and self.incarnations[node] == incarnation:
            self.log.append(f"replace {node}")
            self.wiped.discard(node)
            await self.restart(node, incarnation)

    async def transfer(self, to: str) -> Json:
        was = self.leads
        answer: Json = {"from": was, "took_ms": None, "error": None}
        if was is None or was == to:
            return answer
        if to in self.dead:
            return {**answer, "error": f"{to} cannot be reached"}
        self.log.append(f"transfer {was} {to}")
        if to not in self.paused:
            self.leads = to
            answer["took_ms"] = 1.0
        return answer

    @property
    def closed_links(self) -> set[tuple[str, str]]:
        return {
            link for name, links in self.cuts.items() if name not in self.healed for link in links
        }

    @property
    def is_whole(self) -> bool:
        shaped = self.shapes.keys() - self.unshaped
        return not (self.dead or self.paused or self.wiped or self.closed_links or shaped)
