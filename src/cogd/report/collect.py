"""Which results there are at some paths: files and folders of the kinds that this library writes."""

import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError, safe_open

from cogd.pruning.artefact import RECIPE, WEIGHTS
from cogd.report import documents
from cogd.sparse_coding import ConvDictionaryLearner
from cogd.sparse_coding.storage import DICTIONARY, read_dictionary

SKIPPED = ("checkpoints", "parts", "__pycache__")  # parts: of a benchmark, which its results file holds too
KNOWN = "finished or running trainings, pruned networks, dictionaries (.safetensors) and results files (.json)"


@dataclass(frozen=True)
class Results:
    """What one file, or one folder of a run, holds: `content` is the kind's document."""

    kind: str
    path: Path
    content: Any


class UnknownResultsError(ValueError):
    """A sound file that holds nothing for a report."""


def collect(paths: Iterable[str | Path]) -> tuple[list[Results], list[str]]:
    """Return the results at all paths, folders with all that is below them, and why files were left out.

    Raises:
        FileNotFoundError: There is nothing at a path.
        ValueError: A results file is damaged, or a path holds nothing for a report.
    """
    found: list[Results] = []
    left_out: list[str] = []
    for path in map(Path, paths):
        if not path.exists():
            raise FileNotFoundError(f"there is no file or folder {str(path)!r}.")
        mine = list(_in_folder(path, left_out)) if path.is_dir() else [read_file(path)]
        if not mine:
            raise UnknownResultsError(f"{str(path)!r} holds nothing for a report, which shows {KNOWN}.")
        found += [results for results in mine if results.path not in {other.path for other in found}]
    return found, left_out


def read_file(path: Path) -> Results:
    """Return the results in one file."""
    if path.suffix == ".safetensors":
        return Results("dictionary", path, _read_dictionary(path))
    if path.suffix == ".json":
        return _document(path, read_json(path))
    raise UnknownResultsError(f"{str(path)!r} is no results file; a report shows {KNOWN}.")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no file {str(path)!r}.") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{str(path)!r} is damaged or no JSON: {error}. Make or copy it again.") from error


def checked(kind: type[BaseModel], content: Any, path: Path) -> Any:
    """Return the content as a document of its kind, or say what is wrong with the file."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise ValueError(
            f"{str(path)!r} is damaged or of another version: {where}: {first['msg']}. Make it again."
        ) from error


def _in_folder(folder: Path, left_out: list[str]) -> Iterator[Results]:
    if (folder / "log.jsonl").is_file():
        yield Results("training", folder, _read_run(folder))
        return
    if (folder / "prune.json").is_file():
        if (folder / "masks" / "log.jsonl").is_file():
            yield Results("pruning", folder, _read_pruning(folder))
        return
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name not in SKIPPED and not path.name.startswith("."):
            yield from _in_folder(path, left_out)
        elif path.suffix in (".json", ".safetensors") and not (path.name == WEIGHTS and (folder / RECIPE).is_file()):
            try:
                yield read_file(path)
            except UnknownResultsError as error:
                left_out.append(str(error))


def _read_pruning(folder: Path) -> documents.PruningRun:
    tuning = folder / "finetune"
    return documents.PruningRun(
        settings=read_json(folder / "prune.json"),
        masks=_read_run(folder / "masks"),
        finetuning=_read_run(tuning) if (tuning / "log.jsonl").is_file() else None,
    )


def _read_dictionary(path: Path) -> documents.SavedDictionary:
    with contextlib.suppress(SafetensorError, OSError), safe_open(path, "numpy") as file:
        if (file.metadata() or {}).get("format") != DICTIONARY:
            raise UnknownResultsError(f"{str(path)!r} holds tensors, but no dictionary.")
    learner, about = ConvDictionaryLearner.load(path), read_dictionary(path)[2]
    versions = {"cogd": about.get("cogd")}  # all that files of version 0.1 say
    saved: documents.SavedDictionary = checked(
        documents.SavedDictionary, {"versions": versions, **about, "learner": learner}, path
    )
    return saved


def _document(path: Path, content: Any) -> Results:
    for kind, document in documents.KINDS.items():
        if isinstance(content, dict) and document.signature <= content.keys():
            if document is documents.PrunedNetwork and "macs" not in (content.get("report") or {}):
                raise UnknownResultsError(f"{str(path)!r} was saved without the report of `prune`.")
            return Results(kind, path, checked(document, content, path))
    raise UnknownResultsError(f"{str(path)!r} is no results file: it does not say with which versions it was made.")


def _read_run(folder: Path) -> documents.Run:
    """Return what a run's folder says; a last line of the log that was never finished does not count."""
    config = checked(documents.Config, read_json(folder / "config.json"), folder / "config.json")
    log = folder / "log.jsonl"
    begins: list[documents.Begin] = []
    epochs: list[documents.Epoch] = []
    for number, line in enumerate(re.findall(r".*\n", log.read_text()), 1):
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{str(log)!r}, line {number}, is no JSON: {error}. Make the run again.") from error
        if entry.get("event") == "begin":
            begins.append(checked(documents.Begin, entry, log))
        elif entry.get("event") == "epoch":
            epochs.append(checked(documents.Epoch, entry, log))
    return documents.Run(config=config, begins=begins, epochs=epochs, finished=(folder / "result.json").is_file())
