"""``calibrate``: measure this machine and write a hardware file."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from planner.catalog.files import names
from planner.catalog.hardware import load_accelerator
from planner.catalog.vendor_names import accelerator_named
from planner.errors import BadInput
from planner.output import write_file
from planner.spec.cluster import Accelerator

if TYPE_CHECKING:
    from planner.calibrate.describe import Measurements

ATTENTION_LENGTHS = (512, 1024, 2048, 4096, 8192, 16_384)


def calibrate(
    out: Path, base: str | None = None, quick: bool = False, say: Callable[[str], None] = lambda line: None
) -> Path:
    """Measure the GPUs of this machine and write ``out``, a TOML file that ``--hardware`` takes.

    Parameters
    ----------
    out
        File to write; it must end in ``.toml`` and not exist yet.
    base
        Catalog entry that gives what is not measured (peaks, network, price); guessed from the driver's name.
    quick
        A tenth of the shapes: a minute instead of ten.
    say
        Called with one line per part of the work.

    Raises
    ------
    BadInput
        No PyTorch, no GPU, an unknown GPU without ``base``, or a file name that cannot be written.
    """
    _check_target(out)
    device = _device_name()
    accelerator = load_accelerator(base or base_of(device))
    from planner.calibrate.describe import describe, to_toml

    measured = _measure(accelerator, device, quick, say)
    try:
        text = to_toml(describe(measured, accelerator, out.stem))
    except ValueError as error:
        raise BadInput(f"this machine's times make no hardware file: {error}") from error
    write_file(out, text)
    load_accelerator(out)
    say(f"wrote {out}: use it as --hardware {out}")
    return out


def base_of(device: str) -> str:
    """Return the catalog entry for the driver's name of a GPU.

    Raises
    ------
    BadInput
        The catalog has no such GPU.
    """
    name = accelerator_named(device)
    if name in names("hardware"):
        return name
    raise BadInput(
        f"the catalog has no {device!r}; name its nearest entry with --base (plan-parallel hardware)"
    )


def _check_target(out: Path) -> None:
    if out.suffix != ".toml":
        raise BadInput(f"--out {out} must end in .toml")
    if out.exists():
        raise BadInput(f"--out {out} exists already; choose another name")
    if not out.resolve().parent.is_dir():
        raise BadInput(f"--out {out}: the folder {out.resolve().parent} does not exist")


def _device_name() -> str:
    if find_spec("torch") is None:
        raise BadInput("calibrate needs PyTorch: pip install 'plan-parallel[calibrate]'")
    import torch

    if not torch.cuda.is_available():
        raise BadInput("calibrate needs a GPU that PyTorch can use, and this machine has none")
    return str(torch.cuda.get_device_name())


def _measure(base: Accelerator, device: str, quick: bool, say: Callable[[str], None]) -> Measurements:
    import torch

    from planner.calibrate import measure
    from planner.calibrate.describe import Measurements
    from planner.calibrate.exchange import collective_points

    precision = "bf16" if "bf16" in base.gemm else "fp16"
    sizes = measure.shapes(quick)
    say(f"{device}: timing {len(sizes)} matrix products")
    gemm = {precision: measure.gemm_points(sizes, precision, "cuda")}
    if "fp8" in base.gemm and torch.cuda.get_device_capability() >= (8, 9):
        say("timing fp8 products")
        gemm["fp8"] = measure.gemm_points(sizes, "fp8", "cuda")
    say("timing attention, memory and a long run")
    kernel = "fa2" if base.vendor == "nvidia" else next(iter(base.attention))
    num_gpus = torch.cuda.device_count()
    collectives = {}
    long_run = measure.burst_and_sustained(precision, "cuda", warm_s=2.0 if quick else 20.0)
    attention = {kernel: measure.attention_points(ATTENTION_LENGTHS, precision, "cuda")}
    moved = measure.memory_points("cuda")
    if num_gpus > 1:
        say(f"timing collectives on {num_gpus} GPUs")
        collectives = collective_points(num_gpus)
    return Measurements(
        device=device,
        software=f"PyTorch {torch.__version__}",
        hbm_bytes=float(torch.cuda.get_device_properties(0).total_memory),
        gemm=gemm,
        burst_and_sustained_s=long_run,
        attention=attention,
        moved=moved,
        collectives=collectives,
        host_link_bytes_per_s=measure.host_link("cuda"),
        kernel_launch_s=measure.launch_seconds("cuda"),
    )
