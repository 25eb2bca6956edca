"""Accelerators by what vendors, drivers, clouds and tables call them."""

from __future__ import annotations

import re
from functools import lru_cache

from planner.catalog.files import names as catalog_names


@lru_cache(maxsize=256)
def accelerator_named(said: str) -> str:
    """Return the catalog's name of a part in a vendor's or a cloud's spelling (``NVIDIA H100 80GB HBM3``).

    The longest catalog name that the text contains, spaces and punctuation aside (a short one as a word of
    its own, none inside a longer number); a file's path and what contains no name stay as they are.
    """
    if said.endswith(".toml"):
        return said
    text = _letters(said)
    names = {_letters(name): path.stem for name, path in catalog_names("hardware").items()}
    if text in names:
        return names[text]
    words = re.split(r"[^a-z0-9]+", said.lower())
    inside = [name for name in names if name in words or (len(name) >= 4 and _stands_in(name, text))]
    return names[max(inside, key=len)] if inside else said


def _stands_in(name: str, text: str) -> bool:
    return re.search(re.escape(name) + (r"(?!\d)" if name[-1].isdigit() else ""), text) is not None


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
