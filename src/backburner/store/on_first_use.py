"""`on_first_use`: a property whose value is built when one of its attributes is first used. Most commands use few of the repositories they get."""

from collections.abc import Callable
from functools import cached_property

from backburner.core.light_typing import Any, TypeVar

_Value = TypeVar("_Value")


def on_first_use(build: Callable[[Any], _Value]) -> "cached_property[_Value]":
    """Decorate a method that imports and builds something."""
    deferred: Any = cached_property(lambda owner: _Deferred(lambda: build(owner)))
    return deferred


class _Deferred:
    def __init__(self, build: Callable[[], Any]) -> None:
        self._build = build

    def __getattr__(self, name: str) -> Any:
        if self._build is not None:
            self._built, self._build = self._build(), None
        value = getattr(self._built, name)
        setattr(self, name, value)  # found at once from now on
        return value
