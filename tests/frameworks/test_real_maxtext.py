"""MaxText 0.2.5 reads what we write, over forced CPU devices (skipped where it is not there).

Its wheel says Python 3.12; on 3.11 it is unpacked into a folder that ``MAXTEXT`` names (``.ci/frameworks
FOLDER --slow``). Only configuration and mesh are built: no TPU is needed.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from launch_plans import broken, candidates

from planner.catalog import load_cluster
from planner.frameworks.files import inexpressible, write
from planner.frameworks.maxtext.write import axes, config
from planner.spec import Plan, PlanRequest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        "MAXTEXT" not in os.environ, reason="MAXTEXT names no unpacked wheel (.ci/frameworks FOLDER --slow)"
    ),
]

MOST_DEVICES = 64


@pytest.fixture(scope="module")
def base_file() -> Path:
    """``base.yml`` of the unpacked wheel, with JAX started on enough CPU devices."""
    os.environ |= {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={MOST_DEVICES}",
    }
    sys.path.insert(0, os.environ["MAXTEXT"])
    import maxtext

    logging.disable(logging.ERROR)
    return Path(str(maxtext.__file__)).parent / "configs" / "base.yml"


def tpu_plans(seed: int) -> Iterator[tuple[Plan, PlanRequest]]:
    """Random plans on one slice of TPU v5p, legal or not."""
    for plan, request in candidates("maxtext", seed):
        if plan.num_gpus <= MOST_DEVICES:
            yield plan, request.model_copy(update={"cluster": load_cluster("tpu-v5p", plan.num_gpus)})


def complaint(settings: dict[str, Any], num_devices: int, base_file: Path, file: Path) -> str | None:
    """None when MaxText takes the file and lays the devices out, else what it says."""
    import jax
    from maxtext.configs import pyconfig
    from maxtext.utils import maxtext_utils

    file.write_text(yaml.safe_dump(settings | {"base_config": str(base_file)}))
    devices = jax.devices()[:num_devices]
    said = ["run_name=test", "skip_jax_distributed_system=true", "enable_checkpointing=false"]
    try:
        with (
            mock.patch.object(jax, "devices", lambda *_: devices),
            mock.patch.object(jax, "device_count", lambda *_: num_devices),
            mock.patch.object(jax, "local_devices", lambda *_, **__: devices),
        ):
            read = pyconfig.initialize(["", str(file), *said])
            mesh = maxtext_utils.create_device_mesh(read, devices=devices)
    except (ValueError, AssertionError, TypeError, KeyError) as error:
        return f"{type(error).__name__}: {error}"[:600]
    return None if mesh.size == num_devices else f"a mesh of {mesh.size} devices"


def test_it_accepts_every_plan_that_we_write(base_file: Path, tmp_path: Path) -> None:
    accepted, complaints = 0, []
    for plan, request in tpu_plans(1):
        if broken(plan, request) or inexpressible(plan, request):
            continue
        settings = yaml.safe_load(write(plan, request)["maxtext.yml"])
        said = complaint(settings, plan.num_gpus, base_file, tmp_path / "maxtext.yml")
        if said:
            complaints.append((said, request.model.name, plan))
        accepted += said is None
        if accepted + len(complaints) == 200:
            break
    assert not complaints, complaints[:3]
    assert accepted == 200


def test_it_refuses_meshes_that_do_not_fill_the_slice(base_file: Path, tmp_path: Path) -> None:
    """Axes whose product is not the devices: refused by both, for that reason."""
    compared = 0
    for plan, request in itertools.islice(tpu_plans(2), 200):
        if broken(plan, request) or inexpressible(plan, request):
            continue
        settings = config(plan, request)
        settings["ici_tensor_parallelism"] = 3 * axes(plan)["tensor"]
        said = complaint(settings, plan.num_gpus, base_file, tmp_path / "maxtext.yml")
        assert said is not None
        wrong = plan.model_copy(update={"tensor_parallel": 3 * plan.tensor_parallel})
        assert "ranks_fill_the_cluster" in broken(wrong, request)
        compared += 1
    assert compared >= 10


def test_it_refuses_keys_that_it_does_not_know(base_file: Path, tmp_path: Path) -> None:
    plan, request = next(pair for pair in tpu_plans(3) if not broken(*pair) and not inexpressible(*pair))
    settings = config(plan, request) | {"ici_tensr_parallelism": 2}
    said = complaint(settings, plan.num_gpus, base_file, tmp_path / "maxtext.yml")
    assert said is not None
    assert "ici_tensr_parallelism" in said
