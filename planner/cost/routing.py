"""On how many ranks or nodes a token's experts lie, chosen freely or by groups first, and the bytes sent."""

from __future__ import annotations

from typing import Any

import numpy as np

Groups = tuple[int, int]
"""Equal groups that the experts fall into, and how many of them one token may use."""


def distinct_destinations(count: Any, experts_per_token: int, groups: Groups | None = None) -> Any:
    """Return on how many of ``count`` equal destinations a token's experts lie, on average. [1].

    Parameters
    ----------
    count
        Ranks or nodes over which all experts are spread evenly.
    groups
        Of group-limited routing (DeepSeek-V3: 8 groups, 4 a token); None: every expert is as likely.

    Notes
    -----
    Freely: r (1 - (1 - 1/r)^k). With G groups of which a token uses L: a destination that holds g = G/r
    groups has j of the chosen ones with chance C(g,j) C(G-g,L-j) / C(G,L), and then is hit with chance
    1 - (1 - j/L)^k. Where a group spans several destinations, the token chooses freely among those of its
    L groups.
    """
    ranks = np.asarray(count, dtype=np.float64)
    if groups is None or groups[1] >= groups[0]:
        return _hit(ranks, experts_per_token)
    total, used = groups
    held = total / np.maximum(ranks, 1.0)
    shares: Any = 0.0
    for chosen in range(1, used + 1):
        chance = _binomial(held, chosen) * _binomial(total - held, used - chosen) / _binomial(total, used)
        shares = shares + chance * (1.0 - (1.0 - chosen / used) ** experts_per_token)
    spread = _hit(used * np.maximum(ranks / total, 1.0), experts_per_token)
    return np.where(ranks <= total, ranks * shares, spread)


def dispatch_bytes(
    tokens: Any,
    hidden_size: int,
    experts_per_token: int,
    ranks: Any,
    bytes_per_element: float = 2.0,
    max_destinations: int | None = None,
    groups: Groups | None = None,
) -> Any:
    """Bytes that one rank sends when each token goes once to every *distinct* destination. [byte].

    Parameters
    ----------
    tokens
        Tokens of this rank. [token]
    ranks
        Destinations over which experts are spread evenly: ranks of the group, or nodes.
    bytes_per_element
        2 for bf16, 1 for fp8.
    max_destinations
        Node-limited routing (DeepSeek: 4).

    Notes
    -----
    Of the distinct destinations (:func:`distinct_destinations`), (r - 1)/r are remote.
    Without deduplication (plain all-to-all) k copies are sent instead.
    """
    count = np.asarray(ranks, dtype=np.float64)
    distinct = distinct_destinations(count, experts_per_token, groups)
    if max_destinations is not None:
        distinct = np.minimum(distinct, max_destinations)
    sent = tokens * hidden_size * bytes_per_element * distinct * (count - 1.0) / count
    return float(sent) if np.ndim(sent) == 0 else sent


def _hit(ranks: Any, draws: int) -> Any:
    return ranks * (1.0 - (1.0 - 1.0 / ranks) ** draws)


def _binomial(n: Any, k: int) -> Any:
    """C(n, k) of numbers that need not be whole, zero where n < k."""
    value: Any = np.ones_like(np.asarray(n, dtype=np.float64))
    for index in range(k):
        value = value * np.maximum(np.asarray(n) - index, 0.0) / (index + 1)
    return value
