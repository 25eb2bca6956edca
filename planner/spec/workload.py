"""What is trained per step: batch, sequence and number format."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from planner.spec.plan import Precision


class Workload(BaseModel):
    """Tokens of one optimizer step: ``global_batch`` sequences of ``seq_length`` tokens.

    ``global_batch_max`` opens a range (the planner may pick any batch in it); None fixes the batch.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    global_batch: int = Field(gt=0)
    seq_length: int = Field(gt=0)
    precisions: tuple[Precision, ...] = ("bf16",)
    """Number formats the planner may choose from; one entry fixes it."""
    global_batch_max: int | None = None
    frozen_weights: bool = False
    """Adapters (LoRA) are trained: the model's own weights have no gradients and no optimizer state."""
    frozen_weight_bytes: float | None = Field(default=None, gt=0)
    """Bytes of a frozen parameter where it is quantised (QLoRA); None: the format of the computation."""

    @property
    def tokens(self) -> int:
        """Tokens per optimizer step at the (smallest) global batch."""
        return self.global_batch * self.seq_length
