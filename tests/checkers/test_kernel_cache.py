"""Machine code of kernels is not used beyond the sources that it was compiled from."""

from __future__ import annotations

from pathlib import Path

from shaketable.harness.compiled import delete_stale_cache


def test_a_change_to_any_kernel_forgets_what_was_kept(tmp_path: Path) -> None:
    (tmp_path / "caller.py").write_text("import callee")
    (tmp_path / "callee.py").write_text("one = 1")
    kept = tmp_path / "__pycache__" / "caller.run-1.py311.nbi"
    kept.parent.mkdir()
    kept.write_bytes(b"code")
    assert delete_stale_cache(tmp_path)
    assert not kept.exists()
    kept.write_bytes(b"code")
    assert not delete_stale_cache(tmp_path)
    assert kept.exists()
    (tmp_path / "callee.py").write_text("one = 2")
    assert delete_stale_cache(tmp_path)
    assert not kept.exists()


def test_a_folder_without_a_place_for_code_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text("one = 1")
    assert delete_stale_cache(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kernel.py"]
