"""What a node's shell measures of its disk each second, for the broker to let files expire."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shaketable.system.node.data_files import DataFiles
from shaketable.system.sim.limits import broker_config
from shaketable.system.store.segment_files import OutsideLog

if TYPE_CHECKING:
    from shaketable.system.sim.member import SimMember


def tell_disk_usage(member: SimMember, root: str, data_files: DataFiles, older_by_ms: int) -> bool:
    """Tell the broker, as if `older_by_ms` had passed; False while the log is being replaced."""
    try:
        files = data_files.until(member.core.ledger.checkpoint_index)
    except OutsideLog:
        return False  # next time
    used_ratio = member.disk.used_ratio(root)
    wall_ms = member.wall_ms() + older_by_ms
    member.world.invariants.measured(
        member.shadow,
        files,
        used_ratio=used_ratio,
        wall_ms=wall_ms,
        expiry=broker_config(member.world.settings).expiry,
    )
    member.broker.disk_usage(used_ratio, files, member.local_ms(), wall_ms)
    return True
