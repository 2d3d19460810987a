"""`cogd doctor`."""

from typing import Any

import typer

from cogd.commands.conventions import Answer, add
from cogd.commands.errors import FAILED

EXTRAS = {
    "bench": "peers to measure against: sporco",
    "dev": "work on CoGD itself: tests, types, lint",
    "docs": "building the documentation",
    "export": "writing and checking ONNX files",
    "integrations": "the frameworks of examples/: Accelerate, Lightning, Transformers",
    "tensorboard": "cogd train --tensorboard",
}


def doctor() -> Answer:
    """Say what CoGD finds on this machine.

    Versions, devices, threads, and what each extra of the package would add. It exits with 1 where something that CoGD
    needs is missing or too old.

    Examples:
      cogd doctor         # a table
      cogd doctor --json  # for a bug report
    """
    packages = packages_by_extra()
    found = {"versions": versions(packages[""]), **machine(), "extras": extras(packages)}
    wrong = [f"{name} {state}" for name, state in found["versions"].items() if not state[0].isdigit()]
    return Answer(found, _table(found, wrong), FAILED if wrong else 0)


def packages_by_extra() -> dict[str, list[Any]]:
    """Return the requirements of CoGD ("") and of each of its extras."""
    from importlib.metadata import metadata

    from packaging.requirements import Requirement

    about = metadata("cogd")
    names = ["", *(about.get_all("Provides-Extra") or [])]
    wanted: dict[str, list[Any]] = {name: [] for name in names}
    for requirement in map(Requirement, about.get_all("Requires-Dist") or []):
        extra = next((name for name in names[1:] if _belongs(requirement, name)), "")
        wanted[extra].append(requirement)
    return wanted


def versions(requirements: list[Any]) -> dict[str, str]:
    """Return the installed version of each package, or what is wrong with it."""
    import platform

    return {"python": platform.python_version(), **{wanted.name: _state(wanted) for wanted in requirements}}


def machine() -> dict[str, Any]:
    """Return the devices and the threads, as far as PyTorch is there to say them."""
    from cogd.provenance import processor

    try:
        import torch
    except ImportError:
        return {"cpu": processor(), "threads": None, "gpus": [], "auto": None}
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {
        "cpu": processor(),
        "threads": torch.get_num_threads(),
        "gpus": gpus,
        "auto": "cuda" if gpus else "cpu",
    }


def extras(packages: dict[str, list[Any]]) -> dict[str, dict[str, Any]]:
    """Return what each extra adds, and which of its packages are not there."""
    return {
        name: {
            "adds": EXTRAS[name],
            "missing": [str(wanted.name) for wanted in wanted if not _state(wanted)[0].isdigit()],
        }
        for name, wanted in packages.items()
        if name
    }


def _belongs(requirement: Any, extra: str) -> bool:
    marker = requirement.marker
    return marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})


def _state(wanted: Any) -> str:
    """Return the installed version, "missing", or "too old" with what is needed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version(wanted.name)
    except PackageNotFoundError:
        return "missing"
    return found if wanted.specifier.contains(found, prereleases=True) else f"needs {wanted.specifier}, has {found}"


def _table(found: dict[str, Any], wrong: list[str]) -> Any:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_row("versions", "\n".join(f"{name} {state}" for name, state in found["versions"].items()))
    threads = f"; PyTorch uses {found['threads']} threads" if found["threads"] else ""
    table.add_row("cpu", found["cpu"] + threads)
    table.add_row("gpu", ", ".join(found["gpus"]) or "none that PyTorch sees")
    table.add_row("--device auto", found["auto"] or "unknown without PyTorch")
    for name, extra in found["extras"].items():
        how = f"pip install 'cogd\\[{name}]'" if extra["missing"] else "installed"
        table.add_row(f"extra {name}", f"{extra['adds']}: {how}")
    table.add_row("result", "; ".join(wrong) or "everything that CoGD needs is there")
    return table


def register(app: typer.Typer) -> None:
    """Add this file's commands to the command line."""
    add(app, doctor)
