"""Base and names of every declared document."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(pattern=r"^[a-z0-9]+([_-][a-z0-9]+)*$", max_length=48)]
ConfigName = Annotated[str, Field(pattern=r"^[a-z0-9]+(_[a-z0-9]+)*$", max_length=48)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Declared(BaseModel):
    """Base of every declared document part: frozen, unknown keys refused.

    The docstring under a key is its description in docs/configs.md and docs/schemas.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
