"""The hardware catalog: every file loads, has sources, and clusters of any size follow from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.catalog.files import entries, folder, read_toml
from planner.catalog.hardware import even_domain, load_accelerator, load_cluster
from planner.errors import BadInput

NAMES = entries("hardware")
MEASURED_NAMES = [
    "a100-pcie-80gb", "a100-sxm-40gb", "a100-sxm-80gb", "a800-sxm-80gb", "b200-sxm-180gb", "b300-sxm",
    "gb200-nvl72", "gb300-nvl72", "h100-sxm-80gb", "h100-sxm-96gb-hbm2e", "h200-nvl", "h200-sxm-141gb",
    "h800-sxm-80gb", "l40s", "mi300x-192gb", "mi325x-256gb", "mi355x-288gb", "tpu-v5e", "tpu-v5p", "tpu-v6e",
    "v100-sxm2-32gb",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_file_loads_with_sources_and_plausible_figures(name: str) -> None:
    part = load_accelerator(name)
    assert part.name == name
    tables = [
        part.compute,
        part.memory,
        part.host,
        *part.links,
        *part.gemm.values(),
        *part.attention.values(),
    ]
    assert all(len(table.source) > 5 for table in (*tables, *part.collectives))
    assert part.gemm and part.attention
    best = max(part.compute.peak_flop_per_s["bf16" if "bf16" in part.gemm else "fp16"], 0)
    assert 0.4 * best < part.gemm["bf16" if "bf16" in part.gemm else "fp16"].rate_flop_per_s < best
    for precision, curve in part.gemm.items():
        peak = part.compute.peak_flop_per_s.get(precision, part.compute.peak_flop_per_s.get("fp8", 0.0))
        assert curve.rate_flop_per_s < peak, precision
    assert abs(part.memory.hbm_bytes / part.memory.vendor_hbm_bytes - 1) < 0.1
    assert [link.group_gpus for link in part.links] == sorted(link.group_gpus for link in part.links)


def test_names_and_aliases_are_unique() -> None:
    words = [path.stem for path in folder("hardware").glob("*.toml")]
    for path in folder("hardware").glob("*.toml"):
        data = read_toml(path)
        assert data["name"] == path.stem
        words += data.get("aliases", [])
    assert len(words) == len(set(words))
    assert all(word == word.lower() for word in words)


@pytest.mark.parametrize("name", MEASURED_NAMES)
def test_parts_of_the_published_runs_are_known(name: str) -> None:
    assert load_accelerator(name).name == name


@pytest.mark.parametrize(
    ("alias", "name"),
    [("H100", "h100-sxm-80gb"), ("a100", "a100-sxm-80gb"), ("b200", "b200-sxm-180gb"),
     ("mi300x", "mi300x-192gb"), ("v5p", "tpu-v5p"), ("gb200", "gb200-nvl72"),
     ("4090", "rtx-4090"), ("gh200", "gh200-96gb")],
)  # fmt: skip
def test_aliases(alias: str, name: str) -> None:
    assert load_accelerator(alias).name == name


def test_driver_capacity_of_an_80_gb_h100() -> None:
    # nvidia-smi prints 81,559 MiB: 85.5e9 bytes = 79.6 GiB
    memory = load_accelerator("h100").memory
    assert memory.hbm_bytes == pytest.approx(85.52e9, rel=1e-4)
    assert memory.vendor_hbm_bytes == 80e9


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(BadInput, match=r"h1000.*did you mean 'h100'"):
        load_accelerator("h1000")


def test_base_keeps_what_is_not_overridden() -> None:
    base, part = load_accelerator("a100-sxm-80gb"), load_accelerator("a800-sxm-80gb")
    assert part.links[0].bytes_per_s == 200e9
    assert part.links[1] == base.links[1]
    assert part.gemm == base.gemm
    assert part.aliases == ("a800", "a800-sxm")
    # curves measured on 300 GB/s links are not measurements of this part
    assert {curve.origin for curve in part.collectives} == {"assumed"}
    assert {curve.origin for curve in base.collectives} == {"measured"}


def test_own_curves_come_before_borrowed_ones() -> None:
    part = load_accelerator("gb200-nvl72")
    own = {
        curve.num_ranks for curve in part.collectives if "B200" not in curve.source and curve.num_ranks <= 4
    }
    assert own == {2, 4}
    assert {curve.num_ranks for curve in part.collectives} == {2, 4, 8}
    assert (
        len({(curve.collective, curve.num_ranks) for curve in part.collectives})
        == len(part.collectives)
        == 12
    )


# ---------------------------------------------------------------- clusters


@given(
    name=st.sampled_from(NAMES),
    num_gpus=st.integers(1, 20_000),
    per_node=st.one_of(st.none(), st.integers(1, 16)),
)
@settings(deadline=None, max_examples=150)
def test_any_size_makes_a_cluster(name: str, num_gpus: int, per_node: int | None) -> None:
    cluster = load_cluster(name, num_gpus, per_node)
    assert 1 <= cluster.nvlink_domain <= num_gpus
    assert cluster.gpus_per_node <= num_gpus
    assert [link.group_gpus for link in cluster.links] == sorted(link.group_gpus for link in cluster.links)
    assert cluster.links[-1].group_gpus >= num_gpus or cluster.accelerator.name.startswith("tpu")


def test_node_override_moves_the_domain() -> None:
    assert load_cluster("h100", 32, 4).nvlink_domain == 4
    assert load_cluster("h100", 6).nvlink_domain == 6
    assert load_cluster("h100", 56).nvlink_domain == 8
    # bridges of two inside a node of eight
    links = load_cluster("h100-nvl", 16, 4).links
    assert [link.group_gpus for link in links[:2]] == [2, 4]


def test_rack_domain_is_shared_evenly() -> None:
    # 256 GPUs need 4 racks of 72: 64 each; 144 fill two racks; 76 = 19 nodes of 4 divide over 19 racks only
    assert even_domain(72, 256, 4) == 64
    assert even_domain(72, 144, 4) == 72
    assert even_domain(72, 76, 4) == 72
    assert even_domain(72, 48, 4) == 72
    assert load_cluster("gb200", 512).nvlink_domain == 64
    assert load_cluster("tpu-v5p", 12_288).nvlink_domain == 6144


def test_overrides() -> None:
    cluster = load_cluster(
        "h100", 64, domain_gpus=4, domain_bytes_per_s=100e9, nic_bytes_per_s=25e9, network_latency_s=1e-6,
        network_efficiency=0.5, reserved_hbm_bytes=5e9,
    )  # fmt: skip
    assert (cluster.links[0].group_gpus, cluster.links[0].bytes_per_s) == (4, 100e9)
    assert (cluster.links[1].bytes_per_s, cluster.links[1].latency_s, cluster.links[1].efficiency) == (
        25e9,
        1e-6,
        0.5,
    )
    assert cluster.usable_hbm_bytes == cluster.accelerator.memory.hbm_bytes - 5e9


def test_spine() -> None:
    pods = load_cluster("h100", 1024, pod_gpus=256, oversubscription=3.0).links
    assert [(link.name, link.group_gpus, link.oversubscription) for link in pods[1:]] == [
        ("pod", 256, 1.0),
        ("spine", pods[2].group_gpus, 3.0),
    ]
    flat = load_cluster("h100", 1024, oversubscription=3.0).links
    assert flat[1].oversubscription == 3.0


@pytest.mark.parametrize("count", [0, -8, True, 10**9])
def test_bad_counts_are_refused(count: int) -> None:
    with pytest.raises(BadInput, match="number of GPUs must be a whole number"):
        load_cluster("h100", count)
    with pytest.raises(BadInput, match="GPUs per node must be"):
        load_cluster("h100", 8, count or -1)


def test_bad_overrides_are_refused() -> None:
    with pytest.raises(BadInput, match="oversubscription"):
        load_cluster("h100", 64, oversubscription=0.5)
    with pytest.raises(BadInput, match="bytes_per_s"):
        load_cluster("h100", 64, nic_bytes_per_s=-1.0)


# ---------------------------------------------------------------- the user's own file


def test_own_file_on_a_base(tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    path.write_text(
        'base = "h100-sxm-80gb"\nnum_gpus = 48\ngpus_per_node = 4\nreserved_hbm_bytes = 2e9\n'
        '[[links]]\nname = "network"\nbytes_per_s = 12.5e9\n'
        '[[links]]\nname = "spine"\nsource = "our fabric"\norigin = "vendor"\ngroup_gpus = 2000000\n'
        "bytes_per_s = 12.5e9\nlatency_s = 20e-6\noversubscription = 2.0\n"
        "[gemm.bf16]\nsustained_fraction = 0.8\n"
    )
    cluster = load_cluster(str(path))
    assert (cluster.num_gpus, cluster.gpus_per_node, cluster.nvlink_domain) == (48, 4, 4)
    assert cluster.accelerator.name == "ours"
    assert [link.name for link in cluster.links] == ["nvlink", "network", "spine"]
    assert cluster.links[1].bytes_per_s == 12.5e9
    assert cluster.links[1].latency_s == load_accelerator("h100").links[1].latency_s
    assert cluster.reserved_hbm_bytes == 2e9
    curve = cluster.accelerator.gemm["bf16"]
    assert (curve.sustained_fraction, curve.origin, curve.source) == (0.8, "assumed", str(path))
    assert load_cluster(str(path), 16, 8).nvlink_domain == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('base = "h100"\n', "say how many GPUs"),
        ('base = "h1000"\n', "did you mean"),
        ("base = 7\n", "base must be the name"),
        ("base = [\n", "ours.toml"),
        ('base = "h100"\ngpus_per_nod = 4\n', "gpus_per_nod: .*did you mean 'gpus_per_node'"),
        ('base = "h100"\nlinks = 3\n', r"every \[\[links\]\] table needs a name"),
        ('base = "h100"\n[memory]\nhbm_bytes = -5.0\n', "memory.hbm_bytes"),
        ('base = "h100"\nnum_gpus = "many"\n', "number of GPUs must be"),
        ('name = "x"\n', "vendor is missing"),
        ('base = "h100"\n[borrow]\ncollectives = "h1000"\n', "did you mean"),
        ('base = "h100"\nborrow = 1\n', "borrow"),
        ('base = "h100"\n[[collectives]]\nsource = "s"\norigin = "measured"\ncollective = "all_reduce"\n'
         "num_ranks = 2\nlink_bytes_per_s = 1e9\nmessage_bytes = [2.0, 1.0]\ntime_s = [1e-6, 1e-6]\n",
         "message_bytes must rise"),
    ],
)  # fmt: skip
def test_bad_own_files_get_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "ours.toml"
    path.write_text(text)
    with pytest.raises(BadInput, match=message) as caught:
        load_cluster(str(path))
    assert "\n" not in str(caught.value)


def test_base_loops_are_refused(tmp_path: Path) -> None:
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text(f'base = "{two}"\n')
    two.write_text(f'base = "{one}"\n')
    with pytest.raises(BadInput, match="leads back to itself"):
        load_cluster(str(one), 8)
