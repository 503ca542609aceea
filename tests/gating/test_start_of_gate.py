"""What a gate loads: no plots are drawn, so nothing that draws them."""

from __future__ import annotations

import subprocess
import sys


def test_a_gate_loads_no_library_for_plots() -> None:
    program = (
        "import sys, shaketable.harness.terminal.gate\n"
        "print(sorted({'bokeh', 'pyspark', 'jinja2'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
