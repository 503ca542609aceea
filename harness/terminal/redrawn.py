"""Progress that is redrawn in place on a terminal, and vanishes at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console, RenderableType
from rich.live import Live

REFRESH_HZ: Final = 4


class Redrawn(ABC):
    """What has a panel that is drawn anew `REFRESH_HZ` times a second on `console`."""

    console: Console

    @abstractmethod
    def panel(self) -> RenderableType:
        """Draw it as it is now. Called from rich's refreshing thread."""

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Redraw the panel for the body of `with`."""
        with Live(
            console=self.console,
            refresh_per_second=REFRESH_HZ,
            transient=True,
            get_renderable=self.panel,
        ):
            yield
