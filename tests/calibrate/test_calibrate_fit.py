"""The arithmetic of calibration: known constants come back from synthetic times, outliers or not."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from planner.calibrate import calibrate
from planner.calibrate.command import base_of
from planner.calibrate.describe import Measurements, describe, to_toml
from planner.calibrate.fit import bandwidth_share, fit_gemm, least_deviation, rising, sustained_share
from planner.catalog.hardware import load_accelerator, load_cluster
from planner.cost.collectives import Group, all_reduce_time
from planner.cost.kernels import gemm_time
from planner.errors import BadInput

KNOWN_DEVICES = (
    ("GB300", "gb300-nvl72"), ("GB200", "gb200-nvl72"), ("GH200", "gh200-96gb"), ("B300", "b300-sxm"),
    ("B200", "b200-sxm-180gb"), ("H200 NVL", "h200-nvl"), ("H200", "h200-sxm-141gb"),
    ("H100 NVL", "h100-nvl-94gb"),
    ("H100 PCIe", "h100-pcie-80gb"), ("H100", "h100-sxm-80gb"), ("H800", "h800-sxm-80gb"),
    ("H20", "h20-sxm-96gb"),
    ("A100-PCIE-40GB", "a100-pcie-40gb"), ("A100 80GB PCIe", "a100-pcie-80gb"),
    ("A100-SXM4-40GB", "a100-sxm-40gb"),
    ("A100", "a100-sxm-80gb"), ("A800", "a800-sxm-80gb"), ("V100-SXM2-16GB", "v100-sxm2-16gb"),
    ("V100", "v100-sxm2-32gb"), ("L40S", "l40s"), ("L40", "l40-48gb"), ("L4", "l4-24gb"),
    ("A40", "a40-48gb"), ("A10G", "a10g-24gb"), ("A10", "a10-24gb"), ("RTX A6000", "rtx-a6000-48gb"),
    ("RTX 6000 Ada", "rtx-6000-ada-48gb"), ("RTX 5090", "rtx-5090"), ("RTX 4090", "rtx-4090"),
    ("RTX 3090", "rtx-3090"), ("MI355X", "mi355x-288gb"),
    ("MI325X", "mi325x-256gb"), ("MI300X", "mi300x-192gb"), ("MI250X", "mi250x-gcd-64gb"),
)  # fmt: skip
"""Part of the name that the driver gives, and the catalog entry."""
SIZES = [(m, n, k) for m in (256, 1024, 4096, 8192) for n in (512, 2048, 8192) for k in (512, 2048, 16_384)]


def times(rate: float, k0: float, launch: float, quantise: float, narrow: float) -> np.ndarray:
    m, n, k = np.array(SIZES, dtype=float).T
    area = np.sqrt((m * m + 2 * narrow**2) * (n * n + 2 * narrow**2))
    return launch + 2 * area * (k + k0) / rate + quantise * m * k


@pytest.mark.parametrize(
    ("rate", "k0", "launch", "quantise", "narrow"),
    [(800e12, 120, 4e-6, 0.0, 110), (250e12, 0, 9e-6, 0.0, 0), (1500e12, 300, 11e-6, 2.4e-12, 100)],
)
def test_known_constants_come_back(
    rate: float, k0: float, launch: float, quantise: float, narrow: float
) -> None:
    m, n, k = zip(*SIZES, strict=True)
    seconds = times(rate, k0, launch, quantise, narrow)
    fit = fit_gemm(m, n, k, seconds, 1e15, quantised=quantise > 0)
    assert fit.rate_flop_per_s == pytest.approx(rate, rel=1e-3)
    assert fit.k0 == pytest.approx(k0, rel=0.01, abs=1.0)
    assert fit.launch_s == pytest.approx(launch, rel=0.01)
    assert fit.quantise_s_per_element == pytest.approx(quantise, rel=0.01)
    assert fit.small_dimension == narrow
    assert fit.median_error < 1e-3


def test_noise_and_outliers_do_not_move_the_rate() -> None:
    generator = np.random.default_rng(7)
    m, n, k = zip(*SIZES, strict=True)
    seconds = times(800e12, 120, 4e-6, 0.0, 110) * generator.normal(1.0, 0.02, len(SIZES))
    seconds[::9] *= 3.0  # a ninth of the runs was disturbed
    fit = fit_gemm(m, n, k, seconds, 1e15)
    assert fit.rate_flop_per_s == pytest.approx(800e12, rel=0.03)
    assert fit.median_error < 0.04


def test_memory_bound_products_are_left_out() -> None:
    m, n, k = (list(values) for values in zip(*SIZES, strict=True))
    seconds = list(times(800e12, 120, 4e-6, 0.0, 110))
    # 16 rows at 1 TB/s: nothing but reading the weights; the rate must not follow them
    for columns in (4096, 8192, 16_384):
        m, n, k = [*m, 16], [*n, columns], [*k, 8192]
        seconds.append(2.0 * columns * 8192 / 1e12)
    assert fit_gemm(m, n, k, seconds, 1e12).rate_flop_per_s == pytest.approx(800e12, rel=1e-3)
    assert fit_gemm(m, n, k, seconds, 1e12).median_error < fit_gemm(m, n, k, seconds, 1e15).median_error
    with pytest.raises(ValueError, match="at least eight"):
        fit_gemm(m[:5], n[:5], k[:5], seconds[:5], 1e15)


def test_least_deviation_ignores_a_wild_row_and_stays_non_negative() -> None:
    table = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 1.0], [1.0, 3.0]])
    exact = table @ np.array([2.0, 0.5])
    exact[2] = 100.0
    assert least_deviation(table, exact) == pytest.approx([2.0, 0.5], rel=0.05)
    # y falls with the second column: its best non-negative coefficient is zero
    assert least_deviation(table[:4], table[:4] @ np.array([1.0, -2.0]))[1] == 0.0


def test_shares_and_sorting() -> None:
    assert bandwidth_share(1e9, 1e-3, 2e12) == 0.5
    assert bandwidth_share(1e9, 1e-6, 2e12) == 1.0
    assert sustained_share(0.9, 1.0) == pytest.approx(0.9)
    assert sustained_share(1.1, 1.0) == 1.0
    assert rising([4, 2, 4, 4], [3.0, 1.0, 9.0, 4.0]) == ([2.0, 4.0], [1.0, 4.0])


def measurements() -> Measurements:
    products = [
        (*size, float(seconds)) for size, seconds in zip(SIZES, times(700e12, 100, 5e-6, 0, 110), strict=True)
    ]
    return Measurements(
        device='NVIDIA "H100" 80GB',
        software="PyTorch 2.9",
        hbm_bytes=85.0e9,
        gemm={"bf16": products},
        burst_and_sustained_s=(0.9, 1.0),
        attention={"fa2": [(4096, 1e12, 4e-3, 9e-3), (1024, 1e12, 5e-3, 12e-3)]},
        moved={"elementwise": (2e9, 1e-3), "permute": (1e9, 1e-3)},
        collectives={("all_reduce", 2): [(2.0**20, 50e-6), (2.0**14, 10e-6)]},
        host_link_bytes_per_s=50e9,
        kernel_launch_s=5e-6,
    )


def test_measurements_become_a_file_that_the_catalog_reads(tmp_path: Path) -> None:
    base, path = load_accelerator("h100"), tmp_path / "mine.toml"
    path.write_text(to_toml(describe(measurements(), base, "mine")))
    part = load_accelerator(path)
    curve = part.gemm["bf16"]
    assert part.name == "mine"
    assert curve.rate_flop_per_s == pytest.approx(700e12, rel=1e-3)
    assert (curve.sustained_fraction, curve.origin) == (pytest.approx(0.9), "fitted")
    assert 'NVIDIA "H100" 80GB' in curve.source
    assert part.gemm["fp8"] == base.gemm["fp8"]
    assert part.memory.hbm_bytes == 85.0e9
    assert part.memory.elementwise_fraction == pytest.approx(2e12 / 3.35e12, rel=1e-5)
    assert part.memory.loss_fraction == base.memory.loss_fraction
    assert part.attention["fa2"].seq_lengths == (1024, 4096)
    assert part.attention["fa2"].backward_flop_per_s[1] == pytest.approx(2.5e12 / 9e-3, rel=1e-5)
    assert part.host.kernel_launch_s == 5e-6
    cluster = load_cluster(path, 2)
    assert all_reduce_time(2.0**20, Group(2), cluster) == pytest.approx(50e-6)
    m, n, k = SIZES[-1]
    assert gemm_time(m, n, k, part) > 2 * m * n * k / 700e12


def test_toml_round_trip() -> None:
    data = {
        "name": 'a "b" \\ c', "count": 3, "on": True, "rate": 1.25e15, "list": [1.0, 2.5],
        "table": {"x": 1, "inner": {"y": 2.0}}, "only": {"z": {"w": 1}},
        "rows": [{"a": 1}, {"a": 2, "b": [3]}],
    }  # fmt: skip
    assert tomllib.loads(to_toml(data)) == data


def test_every_known_device_is_in_the_catalog() -> None:
    for part, name in KNOWN_DEVICES:
        assert load_accelerator(name).name == name
        assert base_of(f"NVIDIA {part}") == name
    assert base_of("NVIDIA H100 80GB HBM3") == "h100-sxm-80gb"
    assert base_of("NVIDIA A100-SXM4-40GB") == "a100-sxm-40gb"
    assert base_of("NVIDIA GB200") == "gb200-nvl72"
    assert base_of("NVIDIA H200") == "h200-sxm-141gb"
    with pytest.raises(BadInput, match="no 'Tesla T4'; name its nearest entry with --base"):
        base_of("Tesla T4")


def test_bad_targets_and_machines_without_a_gpu_get_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadInput, match=r"must end in \.toml"):
        calibrate(tmp_path / "mine.txt")
    with pytest.raises(BadInput, match="does not exist"):
        calibrate(tmp_path / "nowhere" / "mine.toml")
    (tmp_path / "old.toml").write_text("")
    with pytest.raises(BadInput, match="exists already"):
        calibrate(tmp_path / "old.toml")
    monkeypatch.setattr("planner.calibrate.command.find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"needs PyTorch: pip install 'plan-parallel\[calibrate\]'"):
        calibrate(tmp_path / "mine.toml")
    assert not (tmp_path / "mine.toml").exists()
