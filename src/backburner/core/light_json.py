"""`dumps` and `loads` of `json`, through the same C functions but without its Python modules, which need `re`.

For JSON that Backburner stores. Errors, and versions of Python without these functions, are left to `json`.
"""

from backburner.core.light_typing import TYPE_CHECKING

try:
    if TYPE_CHECKING:
        raise ImportError
    from _json import encode_basestring_ascii, make_encoder, make_scanner

    class _Settings:
        strict = True
        object_hook = object_pairs_hook = None
        parse_float, parse_int = float, int
        parse_constant = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}.__getitem__

    def _not_json(value):
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")

    def _encoder(sort_keys):
        return make_encoder(None, _not_json, encode_basestring_ascii, None, ": ", ", ", sort_keys, False, True)

    _scan, _encode, _encode_sorted = make_scanner(_Settings), _encoder(False), _encoder(True)

    def loads(text):
        """The value of a JSON text."""
        try:
            value, end = _scan(text, 0)
            if end == len(text):
                return value
        except (StopIteration, TypeError):
            pass
        import json

        return json.loads(text)

    def dumps(value, *, sort_keys=False):
        """The JSON text of a value."""
        return "".join((_encode_sorted if sort_keys else _encode)(value, 0))

except (ImportError, TypeError):  # the C functions are no documented part of Python
    from json import dumps as dumps
    from json import loads as loads
    from json.encoder import encode_basestring_ascii as encode_basestring_ascii
