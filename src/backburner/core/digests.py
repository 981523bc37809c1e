"""SHA-256 without OpenSSL, which `hashlib` loads and which would make `backburner run` 4 ms slower."""

from backburner.core.light_typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import sha256
else:
    try:
        from _sha2 import sha256  # CPython 3.12 and newer
    except ImportError:
        try:
            from _sha256 import sha256  # CPython 3.11
        except ImportError:
            from hashlib import sha256

__all__ = ["sha256"]
