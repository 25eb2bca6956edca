"""How Megatron spreads layers over pipeline stages: a layout, ends of their own, or evenly."""

from __future__ import annotations

from typing import Any

from planner.errors import BadInput
from planner.frameworks.launch import LaunchFile, check_stages
from planner.frameworks.megatron.layout import layout_counts, layout_stages, mtp_problem
from planner.spec.request import PlanRequest

FIRST, LAST = "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"
LAYOUT = "pipeline_model_parallel_layout"


def stage_counts(launch: LaunchFile, request: PlanRequest, p: int) -> list[int]:
    """Return layers of every stage in flow order, as Megatron would split them.

    Raises
    ------
    BadInput
        The layers do not divide, or the layout is none.
    """
    if "layout" in launch.fields:
        return layout_counts(laid_out(launch, p))
    pattern = launch.get("hybrid_pattern")
    if pattern is not None and pattern.counts:
        if len(pattern.counts) % p:
            raise BadInput(
                f"the pattern has {len(pattern.counts)} stages, not a multiple of {p} pipeline ranks"
            )
        return list(pattern.counts)
    check_stages(p, launch.get("virtual_stages", 1))
    stated = launch.get("model.num_layers", request.model.num_layers)
    layers = len(pattern.letters) if pattern is not None else stated
    v = launch.get("virtual_stages", 1)
    if "layers_per_virtual_stage" in launch.fields:
        counted = layers + sum(counted_ends(launch, layers, p))
        if counted % p:
            raise BadInput(_not_even(launch, layers, p, 1))
        v = _chunks(launch.get("layers_per_virtual_stage"), counted // p)
    return _split(launch, layers, p, v)


def laid_out(launch: LaunchFile, p: int) -> list[str]:
    """Return the letters of every stage of the run's layout, in flow order.

    Raises
    ------
    BadInput
        The layout is none, or its stages do not fit the ranks.
    """
    at = launch.fields["layout"]
    try:
        stages = layout_stages(at.value)
    except ValueError as error:
        raise BadInput(f"{at.key} {at.value!r}: {error}") from error
    if len(stages) % p:
        raise BadInput(f"the layout has {len(stages)} stages, not a multiple of {p} pipeline ranks")
    problem = mtp_problem(stages, p, _mtp_layers(launch))
    if problem:
        raise BadInput(f"{at.key} {at.value!r}: {problem}")
    return stages


def _mtp_layers(launch: LaunchFile) -> int | None:
    """Multi-token-prediction layers that the run builds, None where something below the files says it."""
    own = any(entry.key.startswith("--") for entry in launch.found)
    said: int | None = launch.get("model.mtp_depth", 0 if own else None)
    return said


def _chunks(layers_per_chunk: int, layers_per_rank: int) -> int:
    if layers_per_rank % layers_per_chunk:
        even = ", ".join(str(n) for n in range(1, layers_per_rank + 1) if layers_per_rank % n == 0)
        raise BadInput(
            f"{layers_per_rank} layers of a pipeline rank are not a multiple of {layers_per_chunk} a virtual "
            f"stage; {even} are"
        )
    return layers_per_rank // layers_per_chunk


def _split(launch: LaunchFile, layers: int, p: int, v: int) -> list[int]:
    """Even, ends given, or embedding and loss counted as layers (``transformer_block.py``)."""
    embedding, loss = counted_ends(launch, layers, p * v)
    if {"first_stage_layers", "last_stage_layers"} & set(launch.fields):
        per_rank = _with_said_ends(launch, layers, p)
    elif (layers + embedding + loss) % (p * v):
        raise BadInput(_not_even(launch, layers, p, v))
    else:
        per_rank = [(layers + embedding + loss) // p] * p
    if any(count % v for count in per_rank):
        raise BadInput(f"stages of {per_rank} layers do not divide into {v} chunks")
    counts = [per_rank[rank] // v for _ in range(v) for rank in range(p)]
    counts[0] -= embedding
    counts[-1] -= loss
    return counts


def counted_ends(launch: LaunchFile, layers: int, stages: int) -> tuple[int, int]:
    """Layers that the embedding and the loss count as in the split, 0 or 1 each.

    Where overrides of a recipe say nothing, what makes its layers divide is taken to stand in the recipe,
    as it does for Llama 3.1 405B and Qwen3 235B.
    """
    names = ("embedding_counts", "loss_counts")
    if recipe_counts_ends(launch, layers, stages):
        return 1, 1
    return int(launch.get(names[0], False)), int(launch.get(names[1], False))


def recipe_counts_ends(launch: LaunchFile, layers: int, stages: int) -> bool:
    """Whether only a recipe below the files, with embedding and loss as layers, makes the layers divide."""
    recipe = launch.fields.get("named_model")
    said = {"embedding_counts", "loss_counts", "first_stage_layers", "last_stage_layers", "layout"}
    if recipe is None or recipe.key != "recipe" or said & set(launch.fields):
        return False
    return layers % stages > 0 and (layers + 2) % stages == 0


def _not_even(launch: LaunchFile, layers: int, p: int, v: int) -> str:
    """That layers do not divide, and everything that would."""
    counted = layers + sum(counted_ends(launch, layers, p * v))
    ways = [f"even stages take {even}"] if (even := _even(counted, p, v)) else []
    if counted == layers:
        ways += _with_counted_ends(launch, layers, p * v)
    ways.append(_uneven(launch, layers, p, v))
    return f"{counted} layers are not a multiple of {p} pipeline ranks x {v} chunks; {', '.join(ways)}"


def _with_counted_ends(launch: LaunchFile, layers: int, stages: int) -> list[str]:
    """The settings that count the embedding, the loss or both as layers, if those divide."""
    both = [f"account_for_{end}_in_pipeline_split" for end in ("embedding", "loss")]
    for extra, names in ((1, both[1:]), (2, both)):
        if (layers + extra) % stages == 0:
            return [f"{' and '.join(_spelled(name, launch) for name in names)} make it {layers + extra}"]
    return []


def _with_said_ends(launch: LaunchFile, layers: int, p: int) -> list[int]:
    """Layers of every rank where the first, the last or both are said and the others share the rest."""
    first, last = launch.get("first_stage_layers"), launch.get("last_stage_layers")
    said = {end: count for end, count in (("first", first), ("last", last)) if count is not None}
    middle, between = layers - sum(said.values()), p - len(said)
    if middle < 0 or between < 0 or (between and middle % between) or bool(between) != bool(middle):
        ends = " and ".join(f"{count} on the {end} stage" for end, count in said.items())
        left = f"leave {middle}, not a multiple of the {between} others"
        if between <= 0:
            left = f"leave {middle}, and there are no others" if not between else "are two stages of one"
        raise BadInput(f"{layers} layers with {ends} {left}")
    inner = [middle // between] * between if between else []
    return [*([first] if first is not None else []), *inner, *([last] if last is not None else [])]


def _even(layers: int, p: int, v: int) -> str:
    """The ranks, and the chunks of as many ranks as said, that layers divide over."""
    ranks = ", ".join(str(n) for n in range(1, layers + 1) if layers % (n * v) == 0)
    chunks = ", ".join(str(n) for n in range(1, layers + 1) if layers % (p * n) == 0)
    ways = [f"{ranks} ranks"] if ranks else []
    ways += [f"{chunks} chunks a rank"] if v > 1 and chunks else []
    return " or ".join(ways)


def _uneven(launch: LaunchFile, layers: int, p: int, v: int) -> str:
    """Settings of uneven stages, with the numbers that come nearest to even ones."""
    ends = nearest_ends(layers, p, v)
    if ends is None:
        return f"uneven ones {_spelled(LAYOUT, launch)}"
    first, inner, last = ends
    numbers = f"{_spelled(FIRST, launch)} {first} and {_spelled(LAST, launch)} {last} ({inner} between)"
    return f"uneven ones {numbers} or {_spelled(LAYOUT, launch)}"


def nearest_ends(layers: int, p: int, v: int) -> tuple[int, int, int] | None:
    """Layers of the first rank, of each inner one and of the last, as even as can be.

    All are multiples of v chunks; the fullest rank is the least, then the difference. None with fewer than
    three ranks, or where no such numbers are.
    """
    ways = []
    for inner in range(v, layers + 1, v):
        rest = layers - inner * (p - 2)
        if p > 2 and rest >= 2 * v and rest % v == 0:
            first = rest // (2 * v) * v
            ways.append((max(inner, rest - first), max(inner, rest) - first, first, inner, rest - first))
    return min(ways)[2:] if ways else None


def _spelled(name: str, launch: LaunchFile) -> str:
    """A setting as the run's own files would say it."""
    if any(entry.key.startswith("--") for entry in launch.found):
        return f"--{name.replace('_', '-')}"
    if launch.framework == "megatron-bridge":
        return (
            name.replace("decoder_first", "num_layers_in_first")
            .replace("decoder_last", "num_layers_in_last")
            .replace("_pipeline_num_layers", "_pipeline_stage")
        )
    return name


def layout_letters(value: Any) -> str:
    """Read a layout: its text, or Bridge's list of lists of layers."""
    if not isinstance(value, list):
        return str(value)
    letters = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
    rows = [row if isinstance(row, list) else [row] for row in value]
    unknown = [str(entry) for row in rows for entry in row if str(entry) not in letters]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is none of {', '.join(letters)}")
    return "|".join("".join(letters[str(entry)] for entry in row) for row in rows)
