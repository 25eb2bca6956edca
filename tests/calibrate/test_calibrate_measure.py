"""The measuring code runs on the CPU with small shapes (needs the ``calibrate`` extra)."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from planner.calibrate import calibrate, measure  # noqa: E402
from planner.calibrate.describe import Measurements, describe, to_toml  # noqa: E402
from planner.calibrate.exchange import collective_points, group_sizes  # noqa: E402
from planner.catalog.hardware import load_accelerator  # noqa: E402
from planner.errors import BadInput  # noqa: E402

SMALL = [(m, n, k) for m in (16, 64, 128) for n in (16, 64) for k in (32, 128)]


def test_shapes_cover_narrow_and_short_products() -> None:
    quick, all_of_them = measure.shapes(True), measure.shapes(False)
    assert len(quick) < len(all_of_them) / 3
    assert len(set(all_of_them)) == len(all_of_them)
    assert {m for m, _, _ in all_of_them} == {128, 256, 512, 1024, 2048, 4096, 8192, 16_384}
    assert min(k for _, _, k in all_of_them) == 128


def test_cpu_measurements_make_a_file(tmp_path: Path) -> None:
    measured = Measurements(
        device="CPU",
        software=f"PyTorch {torch.__version__}",
        hbm_bytes=80e9,
        gemm={"bf16": measure.gemm_points(SMALL, "bf16", "cpu", repeats=3)},
        burst_and_sustained_s=measure.burst_and_sustained("bf16", "cpu", size=64, warm_s=0.01),
        attention={"fa2": measure.attention_points((16, 32), "bf16", "cpu", tokens=64)},
        moved=measure.memory_points("cpu", elements=2**16),
        host_link_bytes_per_s=measure.host_link("cpu", 2**16),
        kernel_launch_s=measure.launch_seconds("cpu", 20),
    )
    path = tmp_path / "cpu.toml"
    path.write_text(to_toml(describe(measured, load_accelerator("h100"), "cpu")))
    part = load_accelerator(path)
    assert part.gemm["bf16"].rate_flop_per_s > 0
    assert all(rate > 0 for rate in part.attention["fa2"].forward_flop_per_s)
    assert 0 < part.memory.optimizer_fraction <= 1


def test_group_sizes() -> None:
    assert group_sizes(1) == []
    assert group_sizes(6) == [2, 4, 6]
    assert group_sizes(8) == [2, 4, 8]


@pytest.mark.slow
def test_collectives_between_two_processes() -> None:
    points = collective_points(2, "cpu", messages=(1024, 65_536), names=("all_reduce",))
    assert list(points) == [("all_reduce", 2)]
    assert [size for size, _ in points["all_reduce", 2]] == [1024.0, 65_536.0]
    assert all(seconds > 0 for _, seconds in points["all_reduce", 2])


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_no_gpu_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="needs a GPU that PyTorch can use, and this machine has none"):
        calibrate(tmp_path / "mine.toml")
