"""A picture of the cluster: every GPU in its node, coloured by one kind of group; hover names the rank."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from planner.spec import Cluster, Plan
from planner.spec.ranks import Coordinate, coordinates

CELL = 15
GAP = 3
NODE_GAP = 28
LABEL = 16
MOST_NODES = 64
"""Nodes drawn; the rest of a larger cluster repeats the pattern and is named in words."""
NODES_PER_ROW = 8
COLOURS = 12
"""Distinct group colours of the style sheet (``.g0`` to ``.g11``); groups beyond repeat them."""

DIMENSIONS = ("tensor", "context", "expert", "data", "pipeline")


def shown_dimensions(plan: Plan) -> list[str]:
    """Dimensions with more than one rank, the ones worth a button."""
    sizes = {
        "tensor": plan.tensor_parallel, "context": plan.context_parallel, "expert": plan.expert_parallel,
        "data": plan.data_parallel, "pipeline": plan.pipeline_parallel,
    }  # fmt: skip
    return [name for name in DIMENSIONS if sizes[name] > 1] or ["data"]


def group_of(coordinate: Coordinate, dimension: str) -> tuple[int, ...]:
    """Return what the ranks of one group share: every coordinate but the dimension's own."""
    place = coordinate
    if dimension == "expert":
        return (place.pipeline, place.expert_data, place.expert_tensor)
    own = {"tensor": place.tensor, "context": place.context, "data": place.data, "pipeline": place.pipeline}
    return tuple(value for name, value in own.items() if name != dimension)


def cluster_map(plan: Plan, cluster: Cluster) -> str:
    """Return the SVG. Each GPU carries one ``data-<dimension>`` colour class per kind of group."""
    per_node = cluster.gpus_per_node
    nodes = -(-plan.num_gpus // per_node)
    drawn = min(nodes, MOST_NODES)
    columns, rows = min(drawn, NODES_PER_ROW), -(-drawn // NODES_PER_ROW)
    across, down = _node_cells(per_node)
    node_width, node_height = across * (CELL + GAP) + NODE_GAP, down * (CELL + GAP) + NODE_GAP + LABEL
    cells = "".join(_cells(plan, cluster, drawn, (node_width, node_height)))
    size = f"0 0 {columns * node_width + NODE_GAP} {rows * node_height + NODE_GAP}"
    note = f"<p>The first {drawn} of {nodes} nodes; the rest repeat the pattern.</p>"
    more = note if nodes > drawn else ""
    return (
        f'<svg id="cluster" viewBox="{size}" role="img" aria-label="Groups of GPUs">{cells}</svg>'
        f'<p id="cluster-rank" aria-live="polite">Point at a GPU to see its rank and groups.</p>{more}'
    )


def _node_cells(per_node: int) -> tuple[int, int]:
    across = 4 if per_node >= 4 else per_node
    return across, -(-per_node // across)


def _cells(plan: Plan, cluster: Cluster, drawn: int, node: tuple[int, int]) -> Iterator[str]:
    per_node = cluster.gpus_per_node
    numbers: dict[str, dict[tuple[int, ...], int]] = {name: {} for name in DIMENSIONS}
    across, _ = _node_cells(per_node)
    for place in coordinates(plan, per_node):
        if place.node >= drawn:
            break
        x = NODE_GAP + (place.node % NODES_PER_ROW) * node[0]
        y = NODE_GAP + (place.node // NODES_PER_ROW) * node[1]
        if place.local_rank == 0:
            where = escape(_place_words(place, cluster))
            yield f'<text x="{x}" y="{y + LABEL - 5}">node {place.node}{where}</text>'
        x += place.local_rank % across * (CELL + GAP)
        y += LABEL + place.local_rank // across * (CELL + GAP)
        colours = " ".join(
            f'data-{name}="{_number(numbers[name], group_of(place, name)) % COLOURS}"' for name in DIMENSIONS
        )
        label = escape(_label(place))
        yield (
            f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" rx="3" {colours} data-label="{label}">'
            f"<title>{label}</title></rect>"
        )


def _place_words(place: Coordinate, cluster: Cluster) -> str:
    """Name the tiers between the node and the cluster (rack, NVLink domain, pod) that the node stands in."""
    tiers = [link for link in cluster.links if cluster.gpus_per_node < link.group_gpus < cluster.num_gpus]
    return "".join(f", {link.name} {place.rank // link.group_gpus}" for link in tiers)


def _number(seen: dict[tuple[int, ...], int], group: tuple[int, ...]) -> int:
    return seen.setdefault(group, len(seen))


def _label(place: Coordinate) -> str:
    return (
        f"rank {place.rank} (node {place.node}, GPU {place.local_rank}): tensor {place.tensor}, "
        f"context {place.context}, data {place.data}, pipeline {place.pipeline}, expert {place.expert}"
    )
