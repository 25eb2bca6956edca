"""Networks: the fabrics of ``hardware/networks`` and what a free-text description says about the NICs."""

from __future__ import annotations

import re
from functools import cache

from planner.catalog.files import folder, read_toml, validated
from planner.errors import BadInput, did_you_mean
from planner.spec.cluster import Fabric

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([GT])b(?:ps|/s(?:ec)?|e)?(?![a-z])")
"""A rate in bits: ``400 Gb/s``, ``200Gbps``, ``400Gbe``, ``1.6 Tb/s`` (a capital B is bytes: NVLink)."""
_COUNT = re.compile(r"(?<![\w.])(\d+)\s*x\s*(?=\S)")
_GENERATION = re.compile(r"\b(EDR|HDR|NDR|XDR)\s*\d*\b")
_GENERATION_GBIT = {"EDR": 100.0, "HDR": 200.0, "NDR": 400.0, "XDR": 800.0}
"""Rate of a four-lane InfiniBand port. [Gbit/s]"""
_NOT_COMPUTE = ("management", "storage:")
_FABRICS = (
    ("efa", r"\bEFA\b"),
    ("tcpx", r"TCPX"),
    ("omni-path", r"omni-?path"),
    ("slingshot", r"slingshot"),
    ("roce", r"\bRoCE"),
    ("infiniband", r"infiniband|\bIB\b|\b[EHNX]DR\d*\b"),
    ("ethernet", r"ethernet|GbE\b"),
)


@cache
def fabrics() -> dict[str, Fabric]:
    """Return every fabric of ``hardware/networks`` by name and alias."""
    found: dict[str, Fabric] = {}
    for path in sorted((folder("hardware") / "networks").glob("*.toml")):
        fabric = validated(Fabric, read_toml(path), str(path))
        found |= dict.fromkeys((fabric.name, *fabric.aliases), fabric)
    return found


def load_fabric(name: str) -> Fabric:
    """Return a fabric by name.

    Raises
    ------
    BadInput
        No fabric has that name.
    """
    known = fabrics()
    if name.lower() in known:
        return known[name.lower()]
    names = ", ".join(sorted({fabric.name for fabric in known.values()}))
    raise BadInput(f"unknown network fabric {name!r}{did_you_mean(name, known)} (known: {names})")


def parse_network(text: str | None, gpus_per_node: int) -> float | None:
    """Read the NIC rate per GPU and direction out of a text such as ``8x HDR200 InfiniBand``. [byte/s].

    Parameters
    ----------
    text
        Free text; clauses are separated by ``;``, ``,``, ``+`` or ``and``.
    gpus_per_node
        GPUs that share the NICs of a clause that does not say ``per GPU``.

    Returns
    -------
    float or None
        The fastest clause that is not about storage or management; None when no clause gives a rate.
    """
    rates = [_clause_gbit(clause, gpus_per_node) for clause in _compute_clauses(text)]
    fastest = max(rates, default=0.0)
    return fastest * 1e9 / 8.0 if fastest > 0 else None


def fabric_of(text: str | None) -> str | None:
    """Return the name of the fabric that a description mentions between nodes, or None."""
    said = "; ".join(_compute_clauses(text))
    return next((name for name, pattern in _FABRICS if re.search(pattern, said, re.IGNORECASE)), None)


def _compute_clauses(text: str | None) -> list[str]:
    clauses = re.split(r"[;,+]|\band\b", text or "")
    return [clause for clause in clauses if not clause.strip().lower().startswith(_NOT_COMPUTE)]


def _clause_gbit(clause: str, gpus_per_node: int) -> float:
    """Rate of one clause per GPU, 0 when it gives none. [Gbit/s]."""
    rate = _RATE.search(clause)
    count = _COUNT.search(clause)
    generation = _GENERATION.search(clause)
    if rate is not None:
        gbit = float(rate.group(1)) * (1e3 if rate.group(2) == "T" else 1.0)
    elif generation is not None and count is not None:
        gbit = _GENERATION_GBIT[generation.group(1)]
    else:
        return 0.0
    if re.search(r"per GPU", clause, re.IGNORECASE):
        return gbit
    return gbit * (int(count.group(1)) if count else 1) / gpus_per_node
