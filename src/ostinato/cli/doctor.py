"""`ostinato doctor`: versions, devices, and what is missing or of a version that does not fit."""

from __future__ import annotations

import operator
import platform
import re
from itertools import product
from typing import Any

import typer

from ostinato.cli.options import JsonOption
from ostinato.cli.output import print_json, print_line, print_table
from ostinato.system_errors import is_out_of_memory
from ostinato.version import __version__

_PACKAGE = "ostinato"
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_BOUND = re.compile(r"(>=|<=|==|<|>)\s*([0-9][^,;\s]*)")
_NUMBERS = re.compile(r"\d+(\.\d+)*")
_EXTRA = re.compile(r"extra\s*==\s*[\"']([^\"']+)[\"']")
_USE = {"": "everything", "plot": "figures", "comet": "COMET, in an environment of its own (docs/get-started.md)"}
_DEVELOPERS = "dev"
"""The extra for development, which users do not need."""


def doctor(json: JsonOption = False) -> None:
    """Show versions, devices, and what is missing."""
    found = examine()
    if json:
        print_json(found)
    else:
        rows = [(p["name"], _state(p), p["needed_for"]) for p in found["packages"]]
        print_table(["package", "version", "needed for"], rows)
        print_table(["device", "what it is"], found["devices"].items())
        print_table(["compiled kernels", "state"], found["kernels"].items())
        print_table(["experts", "what multiplies them"], found["experts"].items())
        print_table(["data", "where"], found["data"].items())
        for line in found["advice"]:
            print_line(line)
        if not found["ok"]:
            print_line("something needed is missing, or does not fit")
        elif len(found["packages"]) > 1:
            print_line("everything needed is there")
    if not found["ok"]:
        raise typer.Exit(1)


def examine() -> dict[str, Any]:
    """Return versions, devices, kernels and data folders, and a pip line for what is missing or does not fit."""
    from importlib.metadata import PackageNotFoundError, requires

    text = f"{__version__} (Python {platform.python_version()})"
    own = {"name": _PACKAGE, "version": text, "fits": True, "extra": "", "needed_for": ""}
    advice = []
    try:
        packages = [_package(requirement) for requirement in requires(_PACKAGE) or []]
    except PackageNotFoundError:  # a folder on the path, or a frozen program
        packages = []
        advice.append("ostinato is not installed as a package: what it needs is not known here")
    packages = [p for p in packages if p["name"].lower() != _PACKAGE and p["extra"] != _DEVELOPERS]
    missing = [p for p in packages if not p["fits"]]
    ok = not any(p["extra"] == "" for p in missing)
    for extra in sorted({p["extra"] for p in missing}):  # The pip lines do not depend on how Ostinato was installed.
        purpose = f"for {_USE.get(extra, extra)}" if extra else "needed packages are missing or do not fit; add them"
        wanted = " ".join(f"'{p['requirement']}'" for p in missing if p["extra"] == extra)
        advice.append(f"{purpose}: pip install {wanted}")
    return {
        "ostinato": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": [own, *packages],
        **(_resources() if ok else {"devices": {}, "kernels": {}, "experts": {}, "data": {}}),
        "advice": advice,
        "ok": ok,
    }


def _package(requirement: str) -> dict[str, Any]:
    """Return name, installed version, versions that fit and purpose of one of Ostinato's requirements."""
    from importlib.metadata import PackageNotFoundError, version

    name = _NAME.match(requirement)
    extra = _EXTRA.search(requirement)
    label = extra.group(1) if extra else ""
    package = name.group(0) if name else requirement
    try:
        installed: str | None = version(package)
    except PackageNotFoundError:
        installed = None
    # The file of metadata has the upper bound first.
    needs = ",".join(sorted((op + bound for op, bound in _BOUND.findall(requirement.split(";")[0])), reverse=True))
    return {
        "name": package,
        "version": installed,
        "needs": needs,
        "fits": installed is not None and _fits(installed, needs),
        "extra": label,
        "needed_for": _USE.get(label, label),
        "requirement": requirement.split(";")[0].strip(),
    }


def _state(package: dict[str, Any]) -> str:
    """Return the version of a package, and beside one that does not fit those that do."""
    if package["version"] is None:
        return "missing"
    return str(package["version"]) if package["fits"] else f"{package['version']}: needs {package['needs']}"


def _fits(version: str, needs: str) -> bool:
    """Return whether a version is within bounds such as `>=2.11,<2.14`.

    Only the numbers of the release count. The library that compares versions by all rules need not be installed here.
    """
    found = _release(version)
    order = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "==": operator.eq}
    return all(order[op](found, _release(bound)) for op, bound in _BOUND.findall(needs))


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers of a release, `2.13` of 2.13.0+cpu: zeros at the end say nothing."""
    matched = _NUMBERS.match(version)
    numbers = [int(number) for number in matched.group(0).split(".")] if matched else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _resources() -> dict[str, dict[str, str]]:
    """Return devices by the name that `training.device` takes, kernels (compiled now if need be), backends of experts
    by device and type, and data folders."""
    import torch

    from ostinato.data.registry import DataAccess
    from ostinato.kernels.choose import first_that_works
    from ostinato.kernels.feedforward import try_feed_forward
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
    experts = {}
    for device, dtype in product(devices, (torch.float32, torch.bfloat16)):
        try:
            said = first_that_works(torch.device(device), dtype, try_feed_forward, 64, 64, "relu")[1]
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            said = "not tried: out of memory"  # as of a GPU that others have filled
        experts[f"{device}, {str(dtype).removeprefix('torch.')}"] = said
    return {"devices": devices, "kernels": kernels, "experts": experts, "data": data}
