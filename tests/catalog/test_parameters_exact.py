"""Parameter counts equal those of the real architectures, to the parameter.

Each configuration in ``tests/data/configs`` is built by ``transformers`` on the meta device (no memory, no
weights) and counted. A tied matrix is one parameter there and counted once here. DeepSeek-V3's
``e_score_correction_bias`` is a buffer in transformers and a stored weight of every checkpoint: it counts.
Next-token (MTP) modules are not part of these classes, nor of ``total_parameters`` by default.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.catalog import load_model
from planner.cost.parameters import total_parameters

torch = pytest.importorskip("torch", reason="exact counts need the models-test extra (torch, transformers)")
transformers = pytest.importorskip(
    "transformers", reason="exact counts need the models-test extra (torch, transformers)"
)

CONFIGS = sorted((Path(__file__).parent.parent / "data" / "configs").glob("*.json"))

pytestmark = pytest.mark.filterwarnings("ignore")


def language_config(data: dict[str, Any]) -> Any:
    """Return the transformers configuration of the language model alone."""
    nested = data.get("text_config")
    data = dict(nested or data)
    return transformers.CONFIG_MAPPING[data.pop("model_type")](**data)


def reference_count(data: dict[str, Any]) -> int:
    """Weights of the model that transformers builds from a configuration."""
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(language_config(data))
    model.tie_weights()
    weights = sum(parameter.numel() for parameter in model.parameters())
    corrections = sum(
        b.numel() for name, b in model.named_buffers() if name.endswith("e_score_correction_bias")
    )
    return weights + corrections


def test_there_are_enough_configurations() -> None:
    assert len(CONFIGS) >= 30


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_total_equals_transformers(path: Path) -> None:
    assert total_parameters(load_model(path)) == reference_count(json.loads(path.read_text()))
