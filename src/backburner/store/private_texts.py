"""Texts that must not leave this host, such as the environments of commands, for a ledger on a server.

Each is a file in a folder of the home that only its user can read, named by the hash of the text. The ledger stores only that name.
All methods are called inside a write transaction or only read, so that no two processes change the folder at the same time.
"""

import hashlib
import os
from collections.abc import Collection

from backburner.system.home import write_atomically


class PrivateTexts:
    """The texts of one home."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def keep(self, text: str) -> str:
        """Store a text unless it is there, and return its name. It is on disk before a transaction that refers to it."""
        name = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
        path = os.path.join(self._folder, name)
        if not os.path.exists(path):
            os.makedirs(self._folder, 0o700, exist_ok=True)
            write_atomically(path, text)
            for synced in (path, self._folder):
                descriptor = os.open(synced, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        return name

    def read(self, name: str) -> str | None:
        """The text with this name; None if it is not on this host."""
        try:
            with open(os.path.join(self._folder, os.path.basename(name)), encoding="utf-8", errors="surrogateescape") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def delete_except(self, names: Collection[str]) -> None:
        """Delete all other texts."""
        if os.path.isdir(self._folder):
            for name in set(os.listdir(self._folder)).difference(names):
                os.unlink(os.path.join(self._folder, name))
