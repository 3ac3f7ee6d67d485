"""The packages whose shapes `make test-all` checks can be imported with the checks: no annotation is unknown there."""

import re
import subprocess
import sys
from pathlib import Path

MAKEFILE = Path(__file__).parents[1] / "Makefile"
IMPORTS = """
import importlib, pkgutil, sys
from jaxtyping import install_import_hook

packages = sys.argv[1].split(",")
with install_import_hook(packages, "beartype.beartype"):
    for package in packages:
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__, package + "."):
            importlib.import_module(module.name)
"""


def test_every_module_is_imported_with_all_shapes_checked() -> None:
    packages = re.search(r"^SHAPES := (.+)$", MAKEFILE.read_text(encoding="utf-8"), re.M)
    assert packages is not None
    found = subprocess.run([sys.executable, "-c", IMPORTS, packages[1]], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-2000:]
