"""The names of `typing` that the modules of `backburner run` use. Loading `typing` and creating its named tuples takes a quarter of that command.

Type checkers see the originals.
"""

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any, Generic, NamedTuple, NoReturn, Protocol, TypeVar, assert_never
else:
    from collections import _tuplegetter

    class Any:
        """Any type, in annotations."""

    class NoReturn:
        """The type of a function that does not return, in annotations."""

    class Protocol:
        """A base class that says which methods an argument must have."""

    class TypeVar:
        """A type that differs from use to use, in annotations."""

        def __init__(self, name):
            self.__name__ = name

        def __or__(self, other):
            return self

    class Generic:
        """A base class that can be indexed with a type."""

        def __class_getitem__(cls, kind):
            return cls

    def assert_never(value):
        raise AssertionError(f"{value!r} is not handled")

    _COMPILE_AT = 20  # of a class with fewer records, compiling a constructor takes longer than it saves
    _created: dict[type, int] = {}

    def _constructor(cls):
        fields = ", ".join(cls._fields)
        constructor = eval(f"lambda cls, {fields}: new(cls, ({fields},))", {"new": tuple.__new__})
        constructor.__defaults__ = tuple(cls._field_defaults.values())
        return constructor

    class _NamedTupleType(type):
        @classmethod
        def __prepare__(cls, name, bases):
            return {"__slots__": ()}

        def __init__(cls, name, bases, namespace):
            super().__init__(name, bases, namespace)
            if "_fields" in namespace:
                return
            cls._fields = cls.__match_args__ = fields = tuple(cls.__annotations__)
            cls._field_defaults = {field: namespace[field] for field in fields if field in namespace}
            for position, field in enumerate(fields):
                setattr(cls, field, _tuplegetter(position, ""))

    class NamedTuple(tuple, metaclass=_NamedTupleType):
        """Like `typing.NamedTuple`. A class is created in a tenth of the time, because its constructor is compiled only if it is used often."""

        _fields = ()

        def __new__(cls, *values, **named):
            _created[cls] = _created.get(cls, 0) + 1
            if _created[cls] == _COMPILE_AT:
                cls.__new__ = staticmethod(_constructor(cls))
            if named or len(values) != len(cls._fields):
                values += cls._rest(len(values), named)
            return tuple.__new__(cls, values)

        @classmethod
        def _rest(cls, count, named):
            """The values after the first `count`, by name or default."""
            fields, defaults = cls._fields[count:], cls._field_defaults
            try:
                rest = tuple([named.pop(field) if field in named else defaults[field] for field in fields])
            except KeyError as missing:
                raise TypeError(f"{cls.__name__}: no value for {missing}") from None
            if named or count > len(cls._fields):
                raise TypeError(f"{cls.__name__}: too many values, or of unknown fields {list(named)}")
            return rest

        @classmethod
        def _make(cls, values):
            return cls(*values)

        def _replace(self, **named):
            replaced = tuple.__new__(type(self), map(named.pop, self._fields, self))
            if named:
                raise ValueError(f"{type(self).__name__} has no fields {list(named)}")
            return replaced

        def _asdict(self):
            return dict(zip(self._fields, self, strict=True))

        def __repr__(self):
            return f"{type(self).__name__}({', '.join(f'{field}={value!r}' for field, value in self._asdict().items())})"

        def __getnewargs__(self):
            return tuple(self)
