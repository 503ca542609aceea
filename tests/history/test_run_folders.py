"""Run folders: made, linked, found, and files that appear whole."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.history import run_folder
from shaketable.harness.history.run_folder import RunFolder, create, link_latest, open_existing

NOW = datetime(2026, 11, 21, 9, 11, 4, 7_999, tzinfo=UTC)


def make_run(store: Path, name: str = "quick", now: datetime = NOW) -> RunFolder:
    folder = create(store, name, now)
    folder.campaign_toml.write_text('name = "quick"\n')
    return folder


def test_a_run_is_named_by_its_start_in_utc(tmp_path: Path) -> None:
    folder = create(tmp_path / "store", "quick", NOW)
    assert folder.path == tmp_path / "store" / "quick" / "20261121T091104.007Z"
    assert folder.segments.is_dir()
    assert folder.nodes.is_dir()
    elsewhere = NOW.astimezone(timezone(timedelta(hours=5)))
    assert run_folder.utc_name(elsewhere) == folder.path.name


def test_runs_of_one_instant_get_folders_of_their_own(tmp_path: Path) -> None:
    names = [create(tmp_path, "quick", NOW).path.name for _ in range(3)]
    assert names == [f"20261121T091104.00{millis}Z" for millis in (7, 8, 9)]


def test_latest_follows_the_newest_run(tmp_path: Path) -> None:
    first = make_run(tmp_path)
    link_latest(first)
    other = make_run(tmp_path, "deep")
    link_latest(other)
    second = make_run(tmp_path)
    link_latest(second)
    assert open_existing(tmp_path / "latest").path == second.path
    assert open_existing(tmp_path / "quick" / "latest").path == second.path
    assert open_existing(tmp_path / "deep" / "latest").path == other.path
    moved = tmp_path.parent / "moved"
    tmp_path.rename(moved)  # links are relative: a store can be carried away
    assert open_existing(moved / "latest").path == moved / "quick" / second.path.name
    moved.rename(tmp_path)
    left = sorted(path.name for path in (tmp_path / "quick").iterdir())
    assert left == [first.path.name, second.path.name, "latest"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "latest", "a\0b"])
def test_names_that_are_no_folders_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a folder"):
        create(tmp_path, name, NOW)


def test_a_store_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    with pytest.raises(UsageError, match=r"store .*: (Not a directory|File exists)"):
        create(tmp_path / "store", "quick", NOW)


def test_what_is_no_run_is_told_with_what_to_give_instead(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such folder; give the folder of a run"):
        open_existing(tmp_path / "absent")
    run = make_run(tmp_path / "store")
    expected = rf"not the folder of a run \(campaign.toml, history/segments missing\).*{run.path}"
    for path in (tmp_path / "store", tmp_path / "store" / "quick"):
        with pytest.raises(UsageError, match=expected):
            open_existing(path)
    with pytest.raises(UsageError, match="a file; give the folder of the run"):
        open_existing(run.campaign_toml)
    link_latest(run)
    run.path.rename(tmp_path / "gone")
    with pytest.raises(UsageError, match="the link points nowhere"):
        open_existing(tmp_path / "store" / "latest")


def test_a_file_appears_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.json"
    run_folder.write_atomically(path, "old ä")
    assert path.read_text(encoding="utf-8") == "old ä"
    real = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        real(self, data[:2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(HarnessError, match=r"cannot write .*results\.json: No space left"):
        run_folder.write_atomically(path, b"new")
    assert path.read_text(encoding="utf-8") == "old ä"
    assert [entry.name for entry in tmp_path.iterdir()] == ["results.json"]
