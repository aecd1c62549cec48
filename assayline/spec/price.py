"""The part of a spec on money: what the hardware, its power or the tokens of an API cost.

It decides no answer and no speed, so it is no part of a spec's digest, nor of the configuration's: a run is resumed,
and counts as a repeat, whatever it cost.
"""

from typing import Annotated

from pydantic import Field, model_validator

from assayline.spec.part import SpecPart

Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]

RATES = (
    "per_gpu_hour",
    "per_machine_hour",
    "per_kwh",
    "per_million_input_tokens",
    "per_million_cached_tokens",
    "per_million_output_tokens",
)


class PriceSpec(SpecPart):
    """What things cost, each rate in `currency`. All rates that are given are added up."""

    currency: str = Field("USD", pattern=r"^[A-Z]{3}$", description="Code of the currency (ISO 4217), such as EUR.")
    per_gpu_hour: Rate | None = Field(None, description="One GPU for one hour.")
    per_machine_hour: Rate | None = Field(None, description="One machine for one hour.")
    per_kwh: Rate | None = Field(
        None, description="A kilowatt-hour of the GPUs, as far as their sensors tell; what cooling takes can be in it."
    )
    per_million_input_tokens: Rate | None = Field(None, description="A million prompt tokens of an API.")
    per_million_cached_tokens: Rate | None = Field(
        None, description="A million prompt tokens that came from a cache (default: as other prompt tokens)."
    )
    per_million_output_tokens: Rate | None = Field(None, description="A million output tokens, reasoning included.")
    gpus: int | None = Field(
        None, ge=1, description="How many GPUs are paid for (default: those that the engines held)."
    )
    machines: int = Field(1, ge=1, description="How many machines are paid for.")

    @model_validator(mode="after")
    def _check_rates(self) -> "PriceSpec":
        if all(getattr(self, rate) is None for rate in RATES):
            raise ValueError(f"no rate is given; set at least one of {', '.join(RATES)}")
        if self.per_million_cached_tokens is not None and self.per_million_input_tokens is None:
            raise ValueError("per_million_cached_tokens is beside a price of the others. Set per_million_input_tokens")
        return self
