"""Modules of the standard library that are loaded when they are first used: most commands need none of them."""

from backburner.core.light_typing import TYPE_CHECKING

if TYPE_CHECKING:
    import re as re
else:

    class _Deferred:
        def __init__(self, name):
            self._name = name

        def __getattr__(self, attribute):
            import sys

            __import__(self._name)
            value = getattr(sys.modules[self._name], attribute)
            setattr(self, attribute, value)  # found at once from now on
            return value

    re = _Deferred("re")
