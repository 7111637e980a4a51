"""What every part of the settings has in common."""

from __future__ import annotations

from types import UnionType
from typing import Annotated, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


def _kinds(annotation: object) -> set[object]:
    """The types of one value that an annotation names; those within lists and objects are not."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType, Annotated) else ()
    return {annotation}.union(*map(_kinds, parts))


class Section(BaseModel):
    """A part of the settings: an unknown key is an error, and nothing changes afterwards."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_flag_for_a_number(cls, value: object, info: ValidationInfo) -> object:
        """Python's `True` is a 1, in a file it is a mistake."""
        if isinstance(value, bool) and info.field_name is not None:
            kinds = _kinds(cls.model_fields[info.field_name].annotation)
            if bool not in kinds and kinds & {int, float}:
                raise ValueError("expected a number")
        return value
