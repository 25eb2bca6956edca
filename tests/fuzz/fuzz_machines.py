"""Models and machines made up from nothing, by seed: any sizes, tiers of links, curves of a calibration."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from fuzz_files import ordinary_model
from fuzz_oracle import assert_cluster, assert_model, assert_priceable
from fuzz_values import NASTY, toml_text

from planner.calibrate.describe import Measurements, describe, to_toml
from planner.catalog import load_cluster, load_model
from planner.catalog.files import entries
from planner.catalog.hardware import load_accelerator
from planner.errors import BadInput
from planner.frameworks import FRAMEWORKS
from planner.request import Question

SIZES = (1, 2, 3, 5, 8, 12, 64, 100, 128, 1000, 4096, 65_536, 10**6)


def _size(rng: random.Random, *more: Any) -> Any:
    return rng.choice((*SIZES, *more)) if rng.random() < 0.97 else rng.choice(NASTY)


def made_up_model(rng: random.Random, folder: Path) -> None:
    """A model file of random sizes: more heads than width, one word, any experts, layers of two kinds."""
    heads = rng.choice((1, 2, 6, 32, 128))
    tree: dict[str, Any] = {
        "name": "made up", "source": "nowhere", "num_layers": rng.choice((1, 2, 7, 61, 10_000)),
        "hidden_size": _size(rng),
        "num_heads": heads, "num_kv_heads": rng.choice((1, heads, 2)), "head_dim": _size(rng, 96),
        "ffn_hidden_size": _size(rng), "vocab_size": _size(rng), "seq_length": _size(rng),
    }  # fmt: skip
    optional: dict[str, Any] = {
        "activation": rng.choice(("swiglu", "gelu", "squared_relu", "geglu")),
        "gated_mlp": rng.random() < 0.5, "tied_embeddings": rng.random() < 0.5,
        "mtp_depth": rng.choice((0, 1, 3)), "moe_layer_freq": rng.choice((1, 2)),
        "num_experts": _size(rng, 0, 256), "experts_per_token": rng.choice((1, 1, 2, 8, 300)),
        "expert_ffn_hidden_size": _size(rng, 0), "shared_expert_ffn_hidden_size": _size(rng, 0),
        "num_dense_layers": _size(rng, 0), "sliding_window": _size(rng, 0), "q_lora_rank": _size(rng, 0),
        "kv_lora_rank": _size(rng, 0), "qk_rope_head_dim": _size(rng, 0), "v_head_dim": _size(rng),
        "qk_nope_head_dim": _size(rng),
        "published_parameters": rng.choice((1, 10**9)), "aliases": rng.choice(([], ["7b"], [""])),
    }  # fmt: skip
    for name in rng.sample(list(optional), rng.randrange(len(optional) + 1)):
        tree[name] = optional[name]
    path = folder / "made-up.toml"
    path.write_text(toml_text(tree), encoding="utf-8")
    assert_model(load_model(path))


def tiered_machine(rng: random.Random, folder: Path) -> None:
    """A machine on a catalog entry with one to four tiers of links of any widths, and overrides on top."""
    links, width = [], 1
    for tier in range(rng.randrange(1, 5)):
        width *= rng.choice((1, 2, 3, 4, 8, 9))
        link: dict[str, Any] = {
            "name": rng.choice((f"tier {tier}", "network", "NVLink", "")), "source": "made up",
            "origin": rng.choice(("assumed", "vendor")), "group_gpus": rng.choice((width, width, _size(rng))),
            "bytes_per_s": rng.choice((1e6, 25e9, 450e9, 1e15)), "latency_s": rng.choice((0.0, 1e-6, 1e-3)),
            "base_s": rng.choice((0.0, 1e-5, 1.0)), "oversubscription": rng.choice((1.0, 2.0, 1e3, 1e6)),
            "efficiency": rng.choice((0.8, 1.0, 1e-3, 1e-9)), "is_torus": rng.random() < 0.2,
            "is_mesh": rng.random() < 0.2, "ring_waits": rng.random() < 0.2,
            "torus_axes": rng.choice((0, 2, 3)),
        }  # fmt: skip
        for name in rng.sample([key for key in link if key != "source"], rng.choice((0, 0, 0, 0, 1))):
            del link[name]
        links.append(link)
    tree: dict[str, Any] = {"base": rng.choice(entries("hardware")), "links": links}
    if rng.random() < 0.5:
        tree |= {"gpus_per_node": _size(rng), "num_gpus": _size(rng)}
    path = folder / "tiers.toml"
    path.write_text(toml_text(tree), encoding="utf-8")
    said: dict[str, Any] = {
        "domain_gpus": _size(rng), "pod_gpus": _size(rng), "nic_bandwidth": "25GB/s",
        "domain_bandwidth": "1e12", "oversubscription": "3", "gpus_per_node": _size(rng),
        "hbm": "300GB", "hbm_reserve": "10GB",
    }  # fmt: skip
    kept = {name: said[name] for name in rng.sample(list(said), rng.randrange(4))}
    gpus = rng.choice((None, 1, 7, 64, 1000, 99_991))
    question = Question(
        model="llama-3-8b", hardware=str(path), gpus=gpus, framework=rng.choice(list(FRAMEWORKS)), **kept
    )
    assert_priceable(question.request())
    assert_cluster(load_cluster(path, gpus), ordinary_model())


def calibrated_machine(rng: random.Random, folder: Path) -> None:
    """What ``calibrate`` writes from times that are measured, noisy or absurd, is read and used."""
    rate, noise = rng.choice((1e12, 1e14, 8e14, 1e18)), rng.choice((0.0, 0.05, 0.9))

    def measured(seconds: float) -> float:
        return seconds * (1 + noise * rng.random()) if rng.random() < 0.98 else rng.choice((1e-9, 1e3))

    sizes = [(m, n, k) for m in (64, 1024, 8192) for n in (512, 4096, 16_384) for k in (256, 4096)]
    gemm = [(m, n, k, measured(5e-6 + 2.0 * m * n * k / rate)) for m, n, k in sizes]
    formats = rng.sample(("bf16", "fp16", "fp8"), rng.randrange(1, 4))
    flop = [(length, 4e9 * length, measured(4e9 * length / rate)) for length in (512, 4096, 16_384)]
    messages = [(size, measured(2e-5 + size / 1e11)) for size in (1e4, 1e6, 1e8) for _ in range(2)]
    ranks, names = rng.choice(((8,), (2, 8), (3,))), ("all_reduce", "all_gather", "all_to_all")
    given = Measurements(
        device=rng.choice(("NVIDIA H100 80GB HBM3", "a \"strange\\name'", "é\n")), software="torch 2",
        hbm_bytes=rng.choice((80e9, 1e9, 1e13)), gemm=dict.fromkeys(formats, gemm),
        burst_and_sustained_s=rng.choice(((1.0, 1.0), (1.0, 30.0), (2.0, 1.0))),
        attention={"fa2": [(n, f, s, 2 * s) for n, f, s in flop]} if rng.random() < 0.7 else {},
        moved={kind: (1e9, measured(1e-3)) for kind in ("elementwise", "permute", "loss", "optimizer")},
        collectives={(name, r): messages for r in ranks for name in names} if rng.random() < 0.7 else {},
        host_link_bytes_per_s=rng.choice((None, 1e6, 5e10)), kernel_launch_s=rng.choice((None, 1e-7, 1e-2)),
    )  # fmt: skip
    base = load_accelerator(rng.choice(("h100", "a100", "b200", "v100")))
    path = folder / "calibrated.toml"
    try:
        data = describe(given, base, "calibrated")
    except ValueError as error:
        raise BadInput(str(error)) from error
    path.write_text(to_toml(data), encoding="utf-8")
    assert_cluster(load_cluster(path, rng.choice((8, 64))), ordinary_model())
