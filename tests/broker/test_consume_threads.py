"""One thread saves checkpoints while another reads what they saved, on a real disk."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

from checkpoint_life import Log, Node

from shaketable.system.node.disks.real_disk import RealDisk

SAVES = 60
ENTRIES_A_SAVE = 7
ENTRIES_KEPT = 40


def test_reads_during_saves_find_everything(tmp_path: Path) -> None:
    """The main thread reads, as the broker does; expiry and new files go on meanwhile."""
    errors: list[BaseException] = []
    node = Node(RealDisk(), Log(), root=str(tmp_path))
    for _ in range(SAVES):
        node.apply(ENTRIES_A_SAVE)
        node.expire(max(0, node.applied - node.log.begin - ENTRIES_KEPT))
        checkpoint = node.checkpoint()

        def save(checkpoint=checkpoint) -> None:
            try:
                node.files.save(checkpoint)
            except BaseException as error:
                errors.append(error)

        thread = Thread(target=save)
        thread.start()
        while thread.is_alive():
            node.check()
        thread.join()
        assert not errors
        node.queues.checkpointed(checkpoint.units)
        node.keys.checkpointed(checkpoint.keys)
    node.files.close()
    again = Node(RealDisk(), node.log, root=str(tmp_path))
    assert again.loaded is not None
    again.check()
    again.files.close()
