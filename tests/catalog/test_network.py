"""What free-text network descriptions of published runs say about the NICs."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.catalog.hardware import described_network, load_cluster
from planner.catalog.network import fabric_of, fabrics, load_fabric, parse_network
from planner.errors import BadInput

TABLE = Path(__file__).parent.parent / "data" / "hardware" / "networks.tsv"
ROWS = list(csv.DictReader(TABLE.read_text().splitlines(), delimiter="\t"))
"""Every distinct description of the published runs, with the rate and fabric read by a person."""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["description"][:60])
def test_descriptions_of_published_runs(row: dict[str, str]) -> None:
    rate = parse_network(row["description"], int(row["gpus_per_node"]))
    said = row["nic_gbit_per_s_per_gpu"]
    assert rate == (pytest.approx(float(said) * 1e9 / 8) if said else None)
    assert (fabric_of(row["description"]) or "") == row["fabric"]


def test_a_description_becomes_overrides() -> None:
    said = described_network("EFA, 200 Gb/s per GPU", 8)
    assert said == {"nic_bytes_per_s": 25e9, "fabric": "efa"}
    link = load_cluster("h100", 64, **said).links[1]
    assert link.bytes_per_s == 25e9
    assert link.latency_s == load_fabric("efa").latency_s
    assert "efa" in link.source
    assert described_network(None, 8) == {}


def test_fabrics_have_sources_and_unknown_ones_are_refused() -> None:
    assert {"infiniband", "roce", "efa"} <= set(fabrics())
    assert all(fabric.source for fabric in fabrics().values())
    with pytest.raises(BadInput, match="unknown network fabric 'infinibend'; did you mean 'infiniband'"):
        load_cluster("h100", 64, fabric="infinibend")


@given(st.text(max_size=80), st.integers(1, 16))
@settings(deadline=None)
def test_any_text_is_read(text: str, gpus: int) -> None:
    rate = parse_network(text, gpus)
    assert rate is None or rate > 0
    assert fabric_of(text) is None or fabric_of(text) in fabrics()
