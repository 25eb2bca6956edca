"""Groups of experts that a router chooses from, in config.json and in the catalog."""

from pathlib import Path

from planner.catalog import load_model
from planner.catalog.huggingface import read_config

CONFIGS = Path(__file__).parent.parent / "data" / "configs"


def test_group_limited_routers() -> None:
    """``n_group`` and ``topk_group`` of DeepSeek V3 and V2; V2-Lite has one group."""
    groups = {
        name: read_config(CONFIGS / f"{name}.json").router_groups
        for name in ("deepseek-v3", "deepseek-v2", "deepseek-v2-lite")
    }
    assert groups == {"deepseek-v3": (8, 4), "deepseek-v2": (8, 3), "deepseek-v2-lite": None}
    for name, expected in groups.items():
        assert load_model(name).router_groups == expected
