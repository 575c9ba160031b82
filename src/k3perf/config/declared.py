"""What every model of a declared document is made of: the base class and the types of
names and numbers.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(pattern=r"^[a-z0-9]+([_-][a-z0-9]+)*$", max_length=48)]
ConfigName = Annotated[str, Field(pattern=r"^[a-z0-9]+(_[a-z0-9]+)*$", max_length=48)]
Release = Annotated[str, Field(pattern=r"^(\d+(\.\d+)*)?$")]
CpuFeature = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=48)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
EngineArguments = dict[str, Any]


class Declared(BaseModel):
    """Base of every declared document part: frozen, unknown keys refused.

    The docstring under a key is its description in docs/configs.md and docs/schemas.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
