"""What the catalog is made of: named entries whose parameters are checked before anything is built.

No algorithm is imported here; `dispatcher.catalog` lists them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, UnionType
from typing import Annotated, Generic, Literal, TypeVar, Union, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from dispatcher.core.errors import BadParameterError, ConfigurationError, UnknownNameError
from dispatcher.core.ports import Observer
from dispatcher.wording import either, plain


class Params(BaseModel):
    """Parameters of one entry: frozen, strict, nothing beyond what is named."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def effective(self) -> dict[str, object]:
        """What holds: as given, and where nothing was, what the other parameters make of it."""
        return self.model_dump()


Made_co = TypeVar("Made_co", covariant=True)
P = TypeVar("P", bound=Params)
Kind = TypeVar("Kind", bound=Observer)


@dataclass(frozen=True, slots=True)
class PolicyServices:
    """What a factory may need beyond its parameters. One per coordinator."""

    random: random.Random
    """Seeded by the driver; the only source of chance."""
    _observers: dict[type[Observer], Observer] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def observer(self, kind: type[Kind]) -> Kind:
        """The one observer of this kind, shared by all policies that are built with these services.

        It sees events only where the coordinator was given it: `dispatcher.catalog.observers`.
        """
        known = self._observers.get(kind)
        if known is None:
            known = self._observers[kind] = kind()
        return cast(Kind, known)  # each is filed under its own type

    @property
    def observers(self) -> tuple[Observer, ...]:
        """Those that were asked for so far: all that is needed where no policy is switched in."""
        return tuple(self._observers.values())


@dataclass(frozen=True, slots=True)
class Entry(Generic[Made_co]):
    """One algorithm that can be asked for by name."""

    name: str
    summary: str
    """One sentence: what it does."""
    paper: str | None
    """Where it comes from; `None`: nobody's paper."""
    params: type[Params]
    """Their schema: `params.model_json_schema()`."""
    factory: Callable[[Mapping[str, object], PolicyServices], Made_co]
    """A new one each time. Raises `BadParameterError`: what, where, what was expected."""


def entry(
    name: str,
    summary: str,
    paper: str | None,
    params: type[P],
    make: Callable[[P, PolicyServices], Made_co],
) -> Entry[Made_co]:
    """An entry whose factory validates first, so that `make` sees its own parameter type."""

    def factory(given: Mapping[str, object], services: PolicyServices) -> Made_co:
        try:
            valid = params.model_validate(dict(given))
        except ValidationError as error:
            mistakes = _mistakes(params, error)
            told = "; ".join(mistakes.values())
            raise BadParameterError(f"{name}: {told}", mistakes) from error
        try:
            return make(valid, services)
        except BadParameterError as error:
            # an algorithm does not know by which name it was asked for
            at = str(error).split(" ", 1)[0]
            mistakes = {at: str(error)} if at in params.model_fields else {}
            raise BadParameterError(f"{name}: {error}", mistakes) from error

    return Entry(name, summary, paper, params, factory)


def _mistakes(params: type[Params], error: ValidationError) -> dict[str, str]:
    """By parameter: what it was, what it may be."""
    expected: dict[str, list[str]] = {}
    given: dict[str, object] = {}
    together: dict[str, str] = {}
    for problem in error.errors(include_url=False):
        message = plain(problem["msg"])
        if not problem["loc"]:
            # some that do not go together: the message begins with one of them
            together[message.split(" ", 1)[0]] = message
            continue
        field = str(problem["loc"][0])
        given[field] = problem["input"]
        if problem["type"] == "extra_forbidden":
            known = ", ".join(params.model_fields) or "none"
            expected[field] = [f"no such parameter (known: {known})"]
        else:
            expected.setdefault(field, []).append(message)
    alone = {f: f"{f} = {given[f]!r}: {either(messages)}" for f, messages in expected.items()}
    return alone | together


def allowed(parameter: FieldInfo) -> tuple[str, ...]:
    """Values that a parameter may have by name; empty: it is no choice.

    Example:
        >>> class Example(Params):
        ...     mode: Literal["exact", "fast"] | None = None
        >>> allowed(Example.model_fields["mode"])
        ('exact', 'fast')
    """
    found: list[str] = []
    ahead: list[object] = [parameter.annotation]
    while ahead:
        one = ahead.pop(0)
        if get_origin(one) is Literal:
            found += [str(value) for value in get_args(one)]
        elif get_origin(one) in {Union, UnionType, Annotated}:
            ahead += get_args(one)
    return tuple(found)


class Registry(Generic[Made_co]):
    """The entries of one kind, in the order in which to show them.

    Raises:
        ConfigurationError: a name is given twice.
    """

    def __init__(self, kind: str, entries: Iterable[Entry[Made_co]]) -> None:
        by_name: dict[str, Entry[Made_co]] = {}
        for one in entries:
            if one.name in by_name:
                raise ConfigurationError(f"two entries for a {kind} are called {one.name!r}")
            by_name[one.name] = one
        self._kind = kind
        self.entries: Mapping[str, Entry[Made_co]] = MappingProxyType(by_name)

    def build(self, name: str, params: Mapping[str, object], services: PolicyServices) -> Made_co:
        """A new one. Raises `UnknownNameError` or `BadParameterError`."""
        found = self.entries.get(name)
        if found is None:
            known = ", ".join(self.entries)
            raise UnknownNameError(f"no {self._kind} is called {name!r} (there are: {known})")
        return found.factory(params, services)
