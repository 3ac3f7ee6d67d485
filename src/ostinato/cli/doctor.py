"""`ostinato doctor`: versions, devices, and what is missing."""

from __future__ import annotations

import platform
import re
from typing import Any

import typer

from ostinato.cli.options import JsonOption
from ostinato.cli.output import print_json, print_line, print_table
from ostinato.version import __version__

_PACKAGE = "ostinato"
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"extra\s*==\s*[\"']([^\"']+)[\"']")
_USE = {"": "everything", "plot": "figures"}
_DEVELOPERS = "dev"
"""The extra for development, which users do not need."""


def doctor(json: JsonOption = False) -> None:
    """Show versions, devices, and what is missing."""
    found = examine()
    if json:
        print_json(found)
    else:
        rows = [(p["name"], p["version"] or "missing", p["needed_for"]) for p in found["packages"]]
        print_table(["package", "version", "needed for"], rows)
        print_table(["device", "what it is"], found["devices"].items())
        print_table(["compiled kernels", "state"], found["kernels"].items())
        print_table(["data", "where"], found["data"].items())
        for line in found["advice"]:
            print_line(line)
        print_line("everything needed is there" if found["ok"] else "something needed is missing")
    if not found["ok"]:
        raise typer.Exit(1)


def examine() -> dict[str, Any]:
    """Return versions, devices, compiled kernels, data folders, and a pip line for everything that is missing."""
    from importlib.metadata import requires

    text = f"{__version__} (Python {platform.python_version()})"
    own = {"name": _PACKAGE, "version": text, "extra": "", "needed_for": ""}
    packages = [_package(requirement) for requirement in requires(_PACKAGE) or []]
    packages = [p for p in packages if p["name"].lower() != _PACKAGE and p["extra"] != _DEVELOPERS]
    missing = [p for p in packages if p["version"] is None]
    ok = not any(p["extra"] == "" for p in missing)
    advice = []
    for extra in sorted({p["extra"] for p in missing}):  # The pip lines do not depend on how Ostinato was installed.
        purpose = f"for {_USE.get(extra, extra)}" if extra else "needed packages are missing; add them"
        wanted = " ".join(f"'{p['requirement']}'" for p in missing if p["extra"] == extra)
        advice.append(f"{purpose}: pip install {wanted}")
    return {
        "ostinato": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": [own, *packages],
        **(_means() if ok else {"devices": {}, "kernels": {}, "data": {}}),
        "advice": advice,
        "ok": ok,
    }


def _package(requirement: str) -> dict[str, Any]:
    """Return name, installed version and purpose of one of Ostinato's requirements."""
    from importlib.metadata import PackageNotFoundError, version

    name = _NAME.match(requirement)
    extra = _EXTRA.search(requirement)
    label = extra.group(1) if extra else ""
    package = name.group(0) if name else requirement
    try:
        installed: str | None = version(package)
    except PackageNotFoundError:
        installed = None
    return {
        "name": package,
        "version": installed,
        "extra": label,
        "needed_for": _USE.get(label, label),
        "requirement": requirement.split(";")[0].strip(),
    }


def _means() -> dict[str, dict[str, str]]:
    """Return devices by the name that `training.device` takes, kernels (compiled now if need be), and data folders."""
    import torch

    from ostinato.data.registry import DataAccess
    from ostinato.kernels.large_products import has_slow_products
    from ostinato.kernels.native import described, library

    devices = {"cpu": f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"}
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        devices[f"cuda:{index}"] = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    if torch.backends.mps.is_available():
        devices["mps"] = "Apple GPU"
    access = DataAccess.default()
    data = {"cache": str(access.cache), "mirror": access.mirror or "none (OSTINATO_MIRROR)"}
    is_ours = has_slow_products() and library() is not None
    products = "compiled: torch's leave a part of this processor unused" if is_ours else "torch's"
    kernels = {"attention, dropout, cached decoding": described(), "products of many rows": products}
    return {"devices": devices, "kernels": kernels, "data": data}
