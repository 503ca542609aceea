"""Each published bug has two campaigns that can run, and its place in the docs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from shaketable.harness.campaigns.campaign import target_of
from shaketable.harness.installing import pinned
from shaketable.harness.museum import PublishedBug, published_bugs

BUGS = published_bugs()
PAGE = Path(__file__).parents[2] / "docs" / "museum.md"


@pytest.mark.parametrize("bug", BUGS.values(), ids=list(BUGS))
def test_its_campaigns_differ_in_what_fixes_it(bug: PublishedBug) -> None:
    shown, fixed = bug.campaigns()
    assert shown.target in pinned()
    for campaign in (shown, fixed):
        assert target_of(campaign).version in pinned()[campaign.target]
        assert campaign.engine == "local", "it starts sooner than Spark"
        assert campaign.time_limit_s <= 120
    different = [
        name for name in shown.__struct_fields__ if getattr(shown, name) != getattr(fixed, name)
    ]
    assert len(different) == 1, different
    assert different[0] in ("option", "faults")


def test_the_page_says_how_often_each_was_found() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert {row.split("`")[1] for row in rows} == set(BUGS)


def test_a_kind_of_finding_that_there_is_not_is_refused(tmp_path: Path) -> None:
    bug = next(iter(BUGS.values()))
    (tmp_path / "x").mkdir()
    text = (bug.folder / "bug.toml").read_text().replace('shows = ["', 'shows = ["no-kind", "')
    (tmp_path / "x" / "bug.toml").write_text(text)
    with pytest.raises(ValueError, match="no kind of finding called no-kind"):
        published_bugs(tmp_path)
    (tmp_path / "x" / "bug.toml").write_text(text.replace("sources = [", "source = ["))
    with pytest.raises(msgspec.ValidationError):
        published_bugs(tmp_path)
