"""Megatron's pipeline layout string: ``Et*8|t*8|t*8|t*8L`` and back to layer counts.

``E`` embedding, ``t`` decoder layer, ``m`` multi-token-prediction layer, ``L`` loss; ``|`` ends a stage,
stages follow the flow of data (virtual stages in the outer order); ``x*n`` and ``(...)*n`` repeat; commas are
ignored (megatron-core ``pipeline_parallel_layer_layout.py``), and so are the backslashes of a shell.
"""

from __future__ import annotations

import re
from itertools import groupby

LARGEST = 1_000_000
"""Characters that an expanded layout may have: more is a mistake, not a model."""

_GROUP = re.compile(r"\(([^()]*)\)(?:\*(\d+))?")
_REPEAT = re.compile(r"([EtmL|])\*(\d+)")


def layout_text(counts: list[int], mtp_layers: int) -> str:
    """Write layer counts of stages (flow order) as a layout."""
    stages = [f"t*{count}" if count > 1 else "t" * count for count in counts]
    stages[0] = "E" + stages[0]
    stages[-1] += "m" * mtp_layers + "L"
    return "|".join(stages)


def layout_stages(text: str) -> list[str]:
    """Read a layout into the letters of every stage in flow order.

    Raises
    ------
    ValueError
        The text is no layout, or its embedding or loss does not stand at its end.
    """
    flat = _expand(re.sub(r"[\s,\\]", "", text))
    if re.search(r"[^EtmL|]", flat):
        raise ValueError("a layout is made of E, t, m, L, |, (...) and *n")
    whole = flat.replace("|", "")
    if not (whole.startswith("E") and whole.endswith("L") and whole.count("E") == whole.count("L") == 1):
        raise ValueError("a layout has one E at its beginning and one L at its end")
    return flat.split("|")


def layout_counts(stages: list[str]) -> list[int]:
    """Transformer layers of each stage, from the letters of the stages."""
    return [stage.count("t") for stage in stages]


def mtp_problem(stages: list[str], ranks: int, mtp_layers: int | None) -> str | None:
    """Return what is wrong with the place of multi-token-prediction layers, None where nothing is.

    Parameters
    ----------
    stages
        Letters of every stage in flow order, a multiple of the ranks.
    mtp_layers
        How many the run builds; None where that is not known.

    References
    ----------
    megatron-core ``validate_layer_layout``: as many as the run builds, behind all decoder layers, all on one
    stage, and that the last chunk of its rank.
    """
    holders = [at for at, stage in enumerate(stages) if "m" in stage]
    placed, whole = sum(stage.count("m") for stage in stages), "".join(stages)
    if mtp_layers is not None and placed != mtp_layers:
        return f"it places {placed} MTP layers, and mtp_num_layers is {mtp_layers}"
    if placed and "t" in whole[whole.index("m") :]:
        return "decoder layers stand before MTP layers"
    if len(holders) > 1:
        return "MTP layers stand on one stage together"
    if holders and holders[0] < len(stages) - ranks:
        return "MTP layers stand in the last chunk of a pipeline rank"
    return None


def _expand(text: str) -> str:
    """Write all repetitions out, innermost first."""
    while True:
        after = _REPEAT.sub(lambda match: _repeated(match.group(1), match.group(2)), text)
        after = _GROUP.sub(lambda match: _repeated(match.group(1), match.group(2) or "1"), after)
        if after == text:
            return text
        text = after
        if len(text) > LARGEST:
            raise ValueError(f"the layout has more than {LARGEST} entries")


def _repeated(unit: str, times: str) -> str:
    count = int(times)
    if len(unit) * count > LARGEST:
        raise ValueError(f"the layout has more than {LARGEST} entries")
    return unit * count


def list_text(numbers: list[int]) -> str:
    """Write a 0/1 list as the expression that ``--moe-layer-freq`` evaluates: ``([0]*3+[1]*58)``."""
    runs = [(value, len(list(run))) for value, run in groupby(numbers)]
    return "(" + "+".join(f"[{value}]*{length}" for value, length in runs) + ")"
