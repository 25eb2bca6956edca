"""Accelerators and clusters by name, or from the user's own TOML file.

A file may name another one as ``base`` and give only what differs; ``[borrow]`` takes measured curves from a
similar part. Tables are merged key by key; ``links`` are merged by their ``name``.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, TypedDict, Unpack

from planner.catalog.files import find, read_toml, validated
from planner.catalog.network import fabric_of, load_fabric, parse_network
from planner.errors import BadInput
from planner.spec.cluster import Accelerator, Cluster, CollectiveCurve, Link

MAX_GPUS = 10_000_000
MAX_BASES = 16
"""Longest chain of files that name each other as ``base``."""
FABRIC_FIELDS = {"latency_s", "base_s", "efficiency", "all_to_all_efficiency", "ring_waits"}
"""What a fabric decides about the tiers between nodes."""
CLUSTER_KEYS = ("num_gpus", "gpus_per_node", "reserved_hbm_bytes")
"""Keys of a user's cluster file that describe the cluster and not the accelerator."""


class ClusterOverrides(TypedDict, total=False):
    """What ``load_cluster`` may be told about the machine beyond its usual shape."""

    domain_gpus: int
    """GPUs of the fastest tier."""
    domain_bytes_per_s: float
    """Line rate of the fastest tier per GPU, one direction."""
    nic_bytes_per_s: float
    """Line rate of the network per GPU, one direction."""
    fabric: str
    """Kind of network: infiniband, roce, efa, ... (``hardware/networks``)."""
    network_latency_s: float
    network_efficiency: float
    pod_gpus: int
    """GPUs below one spine connection; with it ``oversubscription`` applies beyond the pod only."""
    oversubscription: float
    reserved_hbm_bytes: float


def load_accelerator(name_or_path: str | Path) -> Accelerator:
    """Return an accelerator by catalog name, alias, or path of a TOML file.

    Raises
    ------
    BadInput
        Unknown name (the nearest one is suggested), or a file that does not describe an accelerator.
    """
    name = str(name_or_path)
    return _load(_path(name)) if _is_path(name) else _known(name)


def load_cluster(
    hardware: str | Path,
    num_gpus: int | None = None,
    gpus_per_node: int | None = None,
    **overrides: Unpack[ClusterOverrides],
) -> Cluster:
    """Return ``num_gpus`` accelerators in their usual nodes and network, or as overridden.

    Parameters
    ----------
    hardware
        Catalog name or the path of a TOML file, which may itself set ``num_gpus``, ``gpus_per_node`` and
        ``reserved_hbm_bytes``.
    gpus_per_node
        Changes the node and, where the fastest tier is the node, that tier.
    """
    accelerator = load_accelerator(hardware)
    said = _cluster_keys(str(hardware))
    count = num_gpus if num_gpus is not None else said.get("num_gpus")
    if count is None:
        raise BadInput(f"say how many GPUs (--gpus): {hardware} does not")
    per_node = gpus_per_node or said.get("gpus_per_node") or accelerator.gpus_per_node
    _check_counts(count, per_node, accelerator)
    return validated(
        Cluster,
        {
            "accelerator": accelerator,
            "num_gpus": count,
            "gpus_per_node": min(per_node, count),
            "links": _links(accelerator, count, per_node, overrides),
            "reserved_hbm_bytes": overrides.get("reserved_hbm_bytes", said.get("reserved_hbm_bytes", 0.0)),
        },
        f"cluster of {accelerator.name}",
    )


def _check_counts(num_gpus: int, gpus_per_node: int, accelerator: Accelerator) -> None:
    for what, value in (("number of GPUs", num_gpus), ("GPUs per node", gpus_per_node)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_GPUS:
            raise BadInput(
                f"{what} must be a whole number from 1 to {MAX_GPUS:,}, not {value!r} ({accelerator.name})"
            )


def _links(
    accelerator: Accelerator, num_gpus: int, gpus_per_node: int, overrides: ClusterOverrides
) -> tuple[Link, ...]:
    tiers = [_fitted(link, accelerator, num_gpus, gpus_per_node) for link in accelerator.links]
    domain = _changed(
        tiers[0], group_gpus=overrides.get("domain_gpus"), bytes_per_s=overrides.get("domain_bytes_per_s")
    )
    network = [_network(link, overrides) if link.group_gpus > gpus_per_node else link for link in tiers[1:]]
    return (domain, *_with_spine(network, overrides))


def _network(link: Link, overrides: ClusterOverrides) -> Link:
    """Return a tier between nodes with the fabric and the figures that the user gave."""
    values: dict[str, Any] = {}
    if "fabric" in overrides:
        fabric = load_fabric(overrides["fabric"])
        values = fabric.model_dump(include=FABRIC_FIELDS)
        values |= {"source": f"{fabric.name}: {fabric.source}", "origin": fabric.origin}
    names = {
        "nic_bytes_per_s": "bytes_per_s",
        "network_latency_s": "latency_s",
        "network_efficiency": "efficiency",
    }
    given = {field: overrides[key] for key, field in names.items() if key in overrides}  # type: ignore[literal-required]
    return _changed(link, **{**values, **given})


def described_network(text: str | None, gpus_per_node: int) -> ClusterOverrides:
    """Return the overrides that a free-text description of the network amounts to (possibly none)."""
    found: ClusterOverrides = {}
    rate, fabric = parse_network(text, gpus_per_node), fabric_of(text)
    if rate is not None:
        found["nic_bytes_per_s"] = rate
    if fabric is not None:
        found["fabric"] = fabric
    return found


def _fitted(link: Link, accelerator: Accelerator, num_gpus: int, gpus_per_node: int) -> Link:
    """Return a tier whose block follows the node (if it was the node) or the racks (if it spans nodes)."""
    group = link.group_gpus
    if group == accelerator.gpus_per_node:
        return _changed(link, group_gpus=gpus_per_node)
    if group < accelerator.gpus_per_node:
        return _changed(link, group_gpus=min(group, gpus_per_node))
    if link is accelerator.links[0]:
        return _changed(link, group_gpus=even_domain(group, num_gpus, gpus_per_node))
    return link


def even_domain(domain_gpus: int, num_gpus: int, gpus_per_node: int) -> int:
    """Return the GPUs that a job gets in each multi-node domain (NVL72 rack).

    A job larger than one domain is spread evenly over as few domains as divide it (256 GPUs on NVL72: four
    racks with 64 each); when twice the fewest do not divide it, the domains are filled one after the other.
    """
    fewest = -(-num_gpus // domain_gpus)
    if fewest <= 1:
        return domain_gpus
    for racks in range(fewest, 2 * fewest + 1):
        if num_gpus % racks == 0 and (num_gpus // racks) % gpus_per_node == 0:
            return num_gpus // racks
    return domain_gpus


def _with_spine(network: list[Link], overrides: ClusterOverrides) -> list[Link]:
    pod = overrides.get("pod_gpus")
    factor = overrides.get("oversubscription")
    if not network or (pod is None and factor is None):
        return network
    outer = network[-1]
    if pod is None:
        return [*network[:-1], _changed(outer, oversubscription=factor)]
    below = _changed(network[0], name="pod", group_gpus=pod, oversubscription=1.0)
    return [below, _changed(outer, name="spine", oversubscription=factor)]


def _changed(link: Link, **values: Any) -> Link:
    given = {key: value for key, value in values.items() if value is not None}
    data = {**link.model_dump(), **given}
    return validated(Link, data, f"network tier {link.name}")


@cache
def _known(name: str) -> Accelerator:
    """Catalog entries do not change while the program runs; the user's own files may."""
    return _load(_path(name))


def _load(path: Path) -> Accelerator:
    data = _merged(path, ())
    for key in CLUSTER_KEYS:
        if key != "gpus_per_node":
            data.pop(key, None)
    borrowed = data.pop("borrow", {})
    data.setdefault("name", path.stem)
    part = validated(Accelerator, data, str(path))
    curves = [*part.collectives, *_borrowed(part, borrowed, str(path))]
    rate = part.links[0].bytes_per_s if part.links else 0.0
    return part.model_copy(update={"collectives": tuple(_for_link(curve, rate) for curve in curves)})


def _borrowed(part: Accelerator, borrow: Any, where: str) -> list[CollectiveCurve]:
    """Curves of another part for the collectives and group sizes that this one has not measured."""
    if not isinstance(borrow, dict) or not all(key == "collectives" for key in borrow):
        raise BadInput(f"{where}: [borrow] may only say collectives = the name of another accelerator")
    own = {(curve.collective, curve.num_ranks) for curve in part.collectives}
    lent = [curve for name in borrow.values() for curve in load_accelerator(name).collectives]
    return [curve for curve in lent if (curve.collective, curve.num_ranks) not in own]


def _for_link(curve: CollectiveCurve, bytes_per_s: float) -> CollectiveCurve:
    """Mark a curve that was measured on other links as assumed (its use scales with the line rate)."""
    if curve.link_bytes_per_s == bytes_per_s:
        return curve
    source = f"{curve.source}; measured on {curve.link_bytes_per_s / 1e9:g} GB/s links, scaled to these"
    return curve.model_copy(update={"origin": "assumed", "source": source})


def _cluster_keys(name: str) -> dict[str, Any]:
    """What a user's file says of the cluster; the catalog's files describe accelerators alone."""
    if not _is_path(name):
        return {}
    data = read_toml(Path(name))
    return {key: data[key] for key in CLUSTER_KEYS if key in data}


def _path(name: str) -> Path:
    return Path(name) if _is_path(name) else find("hardware", name)


def _is_path(name: str) -> bool:
    return name.endswith(".toml") or "/" in name or "\\" in name


def _merged(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    """Read a file on top of its base."""
    if path in seen:
        raise BadInput(f"{path}: its base leads back to itself")
    if len(seen) >= MAX_BASES:
        raise BadInput(f"{path}: more than {MAX_BASES} files stand on top of each other")
    data = read_toml(path)
    base = data.pop("base", None)
    if base is None:
        return data
    if not isinstance(base, str):
        raise BadInput(f"{path}: base must be the name of an accelerator, not {base!r}")
    below = _merged(_path(base), (*seen, path))
    below.pop("aliases", None)
    below.pop("notes", None)
    below["name"] = path.stem
    merged = _overlay(below, data, str(path))
    given = {link["name"] for link in data.get("links", ()) if "group_gpus" in link}
    for link in merged.get("links", ()):
        if link.get("group_gpus") == below.get("gpus_per_node") and link["name"] not in given:
            link["group_gpus"] = merged["gpus_per_node"]
    return merged


def _overlay(below: dict[str, Any], data: dict[str, Any], where: str) -> dict[str, Any]:
    result = dict(below)
    for key, value in data.items():
        if key == "links":
            result[key] = _overlay_links(below.get(key, []), value, where)
        elif isinstance(value, dict) and isinstance(below.get(key), dict):
            result[key] = _overlay_table(below[key], value, where)
        else:
            result[key] = value
    return result


def _overlay_table(below: dict[str, Any], data: dict[str, Any], where: str) -> dict[str, Any]:
    """Merge one table; what it changes counts as assumed unless it names its own source."""
    for key, value in data.items():
        if isinstance(below.get(key), dict) != isinstance(value, dict) and key in below:
            raise BadInput(f"{where}: {key} must be {_kind(below[key])}, as in its base, not {_kind(value)}")
    nested = {key: value for key, value in data.items() if isinstance(value, dict)}
    result = {
        **below,
        **data,
        **{key: _overlay_table(below.get(key, {}), value, where) for key, value in nested.items()},
    }
    if "source" in below and "source" not in data:
        result |= {"source": where, "origin": data.get("origin", "assumed")}
    return result


def _kind(value: Any) -> str:
    return "a table" if isinstance(value, dict) else "a value"


def _is_named(link: Any) -> bool:
    return isinstance(link, dict) and isinstance(link.get("name"), str)


def _overlay_links(below: list[Any], data: Any, where: str) -> list[Any]:
    if not isinstance(data, list) or not all(_is_named(link) for link in data):
        raise BadInput(f"{where}: every [[links]] table needs a name")
    known = {link["name"]: dict(link) for link in below}
    for link in data:
        known[link["name"]] = _overlay_table(known.get(link["name"], {}), link, where)
    return sorted(known.values(), key=_width)


def _width(link: dict[str, Any]) -> float:
    """GPUs of a tier; of no number, which is refused later, none."""
    width = link.get("group_gpus")
    return float(width) if isinstance(width, int | float) and abs(width) < MOST_WIDE else 0.0


MOST_WIDE = 1e18
"""Wider tiers are refused by their model, which says so."""
