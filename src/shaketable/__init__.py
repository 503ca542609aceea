"""A chaos and correctness harness for replicated systems, and the broker group it shakes first.

What other projects import is here, and is imported when it is used: `from shaketable import check`
(docs/python.md). The packages are the folders of the same name at the top of the project; here are
links to them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from shaketable.checkers.api import (
        Event,
        NotLinearizableError,
        Operation,
        check,
    )
    from shaketable.checkers.models.model import Call, Model
    from shaketable.harness.campaigns.campaign import Campaign
    from shaketable.harness.contracts.errors import DefiniteError, HarnessError, UsageError
    from shaketable.harness.contracts.verdict import Finding, Outcome, Verdict
    from shaketable.harness.described import operation
    from shaketable.harness.testing.asserting import assert_linearizable
    from shaketable.harness.testing.campaigns import CampaignRun, run_campaign
    from shaketable.harness.testing.pytest_plugin import campaign
    from shaketable.harness.testing.recorder import RecordedCall, Recorder
    from shaketable.harness.testing.strategies import histories, perturbed_histories

_PLACES: Final = {
    "check": "checkers.api",
    "assert_linearizable": "harness.testing.asserting",
    "Event": "checkers.api",
    "Operation": "checkers.api",
    "Verdict": "harness.contracts.verdict",
    "Outcome": "harness.contracts.verdict",
    "Finding": "harness.contracts.verdict",
    "NotLinearizableError": "checkers.api",
    "Recorder": "harness.testing.recorder",
    "RecordedCall": "harness.testing.recorder",
    "DefiniteError": "harness.contracts.errors",
    "Model": "checkers.models.model",
    "Call": "checkers.models.model",
    "histories": "harness.testing.strategies",
    "perturbed_histories": "harness.testing.strategies",
    "campaign": "harness.testing.pytest_plugin",
    "run_campaign": "harness.testing.campaigns",
    "Campaign": "harness.campaigns.campaign",
    "CampaignRun": "harness.testing.campaigns",
    "operation": "harness.described",
    "UsageError": "harness.contracts.errors",
    "HarnessError": "harness.contracts.errors",
}
"""Public names, and the modules that they are imported from when they are asked for."""

__all__ = [  # noqa: PLE0604, RUF022 - type checkers read it, so it is written out; in the order of use
    "check", "assert_linearizable", "Event", "Operation", "Verdict", "Outcome", "Finding",
    "NotLinearizableError", "Recorder", "RecordedCall", "DefiniteError", "Model", "Call",
    "histories", "perturbed_histories", "campaign", "run_campaign", "Campaign", "CampaignRun",
    "operation", "UsageError", "HarnessError",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: all of them would take a second."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, also those that are not imported yet."""
    return sorted({*globals(), *__all__})
