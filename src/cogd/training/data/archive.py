"""Files below a folder or inside a zip file, read alike."""

import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class Archive(Protocol):
    def sizes(self) -> dict[str, int]:
        """Return every file's name, relative and with slashes, and its size."""

    def folders(self) -> list[str]:
        """Return the names of the folders that it says it has, likewise, each with a slash at its end."""

    def read(self, name: str) -> bytes:
        """Return a file's content."""


class FolderArchive:
    def __init__(self, path: Path):
        self.path = path

    def sizes(self) -> dict[str, int]:
        files = (Path(root, name) for root, _, names in os.walk(self.path, followlinks=True) for name in names)
        return {file.relative_to(self.path).as_posix(): file.stat().st_size for file in files}

    def folders(self) -> list[str]:
        folders = (Path(root, name) for root, names, _ in os.walk(self.path, followlinks=True) for name in names)
        return [f"{folder.relative_to(self.path).as_posix()}/" for folder in folders]

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()


class ZipArchive:
    """Names are relative to the one folder that holds everything, if there is one and it is none of `tops`.

    Every process opens its own file.
    """

    def __init__(self, path: Path, tops: Sequence[str] = ()):
        self.path = path
        self._opened: dict[int, zipfile.ZipFile] = {}
        try:
            infos = self._zip().infolist()
        except zipfile.BadZipFile as error:
            raise ValueError(f"{path} is not a sound zip file: {error}.") from error
        self._files = {info.filename: info.file_size for info in infos if not info.is_dir()}
        self._folders = [info.filename for info in infos if info.is_dir()]
        found = {name.partition("/")[0] for name in self._files}
        self._prefix = f"{found.pop()}/" if len(found) == 1 and not found & set(tops) else ""

    def sizes(self) -> dict[str, int]:
        return {name.removeprefix(self._prefix): size for name, size in self._files.items()}

    def folders(self) -> list[str]:
        return [name.removeprefix(self._prefix) for name in self._folders]

    def read(self, name: str) -> bytes:
        return self._zip().read(self._prefix + name)

    def _zip(self) -> zipfile.ZipFile:
        if os.getpid() not in self._opened:
            self._opened[os.getpid()] = zipfile.ZipFile(self.path)
        return self._opened[os.getpid()]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_opened": {}}
