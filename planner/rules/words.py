"""Numbers in the sentences of rules: counts, products of ranks without their ones, long lists in runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

MOST_RUNS = 12
"""Runs of a list that a sentence names."""


def counted(number: int, noun: str, ending: str = "s") -> str:
    """A number and its noun: ``1 replica``, ``4 micro-batches``."""
    return f"{number} {noun}{'' if number == 1 else ending}"


def ranks_words(**sizes: int) -> str:
    """A product of ranks without its ones: ``8 tensor x 2 data ranks``; ``1 data rank`` where all are one.

    Parameters
    ----------
    **sizes
        Ranks by the name of their axis; ``_`` stands for a hyphen.
    """
    names = [(size, axis.replace("_", "-")) for axis, size in sizes.items()]
    several = [f"{size} {axis}" for size, axis in names if size > 1]
    return f"{' x '.join(several)} ranks" if several else f"1 {names[-1][1]} rank"


def over_ranks(**sizes: int) -> str:
    """`` over 4 context ranks`` for a sentence, empty where every axis has one rank."""
    return f" over {ranks_words(**sizes)}" if any(size > 1 for size in sizes.values()) else ""


def stages_words(pipeline_parallel: int, virtual_stages: int) -> str:
    """The stages of a pipeline: ``16 pipeline ranks``, ``16 pipeline ranks of 2 chunks each``."""
    ranks = counted(pipeline_parallel, "pipeline rank")
    return ranks if virtual_stages == 1 else f"{ranks} of {virtual_stages} chunks each"


def runs_words(numbers: Sequence[int]) -> str:
    """A list with equal neighbours together: ``4, 62 x 5, 4``; only the first runs of a long one."""
    runs = [(number, len(list(run))) for number, run in groupby(numbers)]
    said = [f"{count} x {number}" if count > 1 else f"{number}" for number, count in runs[:MOST_RUNS]]
    return ", ".join(said) + (f", ... ({len(numbers)} numbers)" if len(runs) > MOST_RUNS else "")
