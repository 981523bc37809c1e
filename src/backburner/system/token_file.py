"""The token of a home, with which programs use its HTTP interfaces. Every process of the user can read it."""

import os
import secrets

from backburner.system.home import Home, write_atomically

TOKEN = "token"


def token_of(home: Home) -> str:
    """The token of a home. Creates it on first use, readable only by its owner."""
    path = os.path.join(home.root, TOKEN)
    try:
        with open(path, encoding="ascii") as file:
            if found := file.read().strip():
                return found
    except FileNotFoundError:
        pass
    write_atomically(path, secrets.token_urlsafe(32) + "\n")
    return token_of(home)
