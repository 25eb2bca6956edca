"""What launch files say that changes time or memory of the same plan."""

from __future__ import annotations

import pytest

from planner.api import question
from planner.catalog.training import with_unfused_attention
from planner.frameworks.files import read_text
from planner.frameworks.lint import model_of, review

BATCHES = "torchrun pretrain_gpt.py --bf16 --seq-length 2048 --max-position-embeddings 2048 "
BATCHES += "--micro-batch-size 1 --global-batch-size 64 --use-distributed-optimizer {flags}\n"


def test_what_megatron_hides_only_when_told_is_priced_as_told() -> None:
    """arguments.py: neither the reduction of gradients nor the gathering of weights overlaps by itself."""
    request = question({"model": "llama-3-8b", "gpus": 64, "framework": "megatron"})
    both = "--overlap-grad-reduce --overlap-param-gather"
    results = {
        flags: review(read_text(BATCHES.format(flags=flags), "run.sh"), request, search_s=0)
        for flags in ("", "--overlap-grad-reduce", both)
    }
    exposed = []
    for result in results.values():
        assert result.estimate is not None
        exposed.append(float(result.estimate.time.data_comm_s))
    assert exposed[0] > exposed[1] > exposed[2]
    (said,) = [entry for entry in results[""].findings if entry.rule == "exposed-data-communication"]
    hint = "; the computation hides it with --overlap-grad-reduce and --overlap-param-gather"
    assert said.message.endswith(hint)
    assert not any(hint in entry.message for entry in results[both].findings)


def test_the_better_plan_is_priced_as_it_would_be_written() -> None:
    """Our files turn the overlap on, so the plan is not compared without it."""
    request = question({"model": "llama-3-8b", "gpus": 64, "framework": "megatron"})
    result = review(read_text(BATCHES.format(flags=""), "run.sh"), request, search_s=20)
    assert result.better is not None
    assert result.estimate is not None
    assert result.better.step_time_s < result.estimate.step_time_s
    assert result.better.time.data_comm_s < result.estimate.time.data_comm_s


GROUPS = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 "
    "--num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 2 "
    "--global-batch-size 64 --swiglu --bf16 --use-distributed-optimizer --vocab-size 32000 {flags}\n"
)


def grouped(flags: str) -> tuple[float, float, list[str]]:
    """Saved activations and transient of a run [byte], and what is said of its groups."""
    launch = read_text(GROUPS.format(flags=flags), "run.sh")
    model = model_of(launch)
    assert model is not None
    asked = question({"model": model, "hardware": "h100-sxm-80gb", "gpus": 8, "global_batch": 64})
    result = review(launch, asked, search_s=0)
    assert result.estimate is not None
    stage = result.estimate.stages[0]
    said = [entry.message for entry in result.findings if "together" in entry.message]
    return float(stage.activations_bytes), float(stage.transient_bytes), said


def test_layers_that_are_recomputed_together_live_together() -> None:
    full = "--recompute-granularity full --recompute-method {method} --recompute-num-layers {layers}"
    none, _, _ = grouped("")
    saved_1, live_1, said = grouped(full.format(method="uniform", layers=1))
    assert said == []
    for layers in (2, 8, 32):
        saved, live, said = grouped(full.format(method="uniform", layers=layers))
        assert saved == pytest.approx(saved_1 / layers)  # one input a group
        assert live - live_1 == pytest.approx((layers - 1) * none / 32)  # the others' activations
        assert len(said) == 1
    assert "saves next to nothing" in said[0]
    assert (
        grouped(full.format(method="uniform", layers=64))[:2]
        == grouped(full.format(method="uniform", layers=32))[:2]
    )
    saved, live, said = grouped(full.format(method="block", layers=8))
    assert (live, said) == (live_1, [])
    assert saved == pytest.approx(none * 24 / 32 + saved_1 * 8 / 32)


def test_a_run_in_fp32_has_no_second_copy_and_twice_the_activations() -> None:
    base = GROUPS.replace("--bf16", "").replace("--use-distributed-optimizer", "")
    of = {}
    for flags in ("", "--bf16 --attention-backend unfused"):
        launch = read_text(base.format(flags=flags), "run.sh")
        model = model_of(launch)
        assert model is not None
        asked = question({"model": model, "hardware": "h100-sxm-80gb", "gpus": 8, "global_batch": 64})
        if flags:
            asked = asked.model_copy(update={"framework": with_unfused_attention(asked.framework)})
        result = review(launch, asked, search_s=0)
        assert result.estimate is not None
        of[flags] = result.estimate.stages[0]
    single, half = of.values()
    state = single.weights_bytes + single.gradients_bytes + single.optimizer_bytes
    assert float(single.weights_bytes) * 4 == pytest.approx(float(state))  # 4 + 4 + 8 bytes of 16
    assert float(single.weights_bytes) == pytest.approx(2 * float(half.weights_bytes))
    masks = 32 * 2 * (32 + 2) * 4096**2  # layers, sequences: the scores' of 32 heads, two of s x h
    assert float(single.activations_bytes) == pytest.approx(2 * float(half.activations_bytes) - masks)


@pytest.mark.parametrize(
    ("lines", "gradient", "told"),
    [
        ("cfg = llama3_8b_pretrain_config()", 4.0, False),
        ("cfg = llama3_8b_pretrain_config()\ncfg.ddp.grad_reduce_in_fp32 = False", 4.0, True),
        ("cfg = llama3_8b_pretrain_config()\ncfg.mixed_precision.grad_reduce_in_fp32 = False", 2.0, False),
        ("cfg = llama3_8b_pretrain_8gpu_h100_bf16_config()", 2.0, False),
        (
            "cfg = llama3_8b_pretrain_8gpu_h100_bf16_config()\n"
            "cfg.mixed_precision = 'bf16_with_fp8_current_scaling_mixed'",
            4.0,
            False,
        ),
    ],
)
def test_mixed_precision_recipes_of_bridge_keep_gradients_in_fp32(
    lines: str, gradient: float, told: bool
) -> None:
    source = f"{lines}\ncfg.train.micro_batch_size = 1\ncfg.train.global_batch_size = 64\n"
    launch = read_text(source, "run.py", "megatron-bridge")
    asked = question({"model": "llama-3-8b", "gpus": 8, "framework": "megatron-bridge", "global_batch": 64})
    result = review(launch, asked, search_s=0)
    assert result.estimate is not None
    framework = result.request.framework
    stage = result.estimate.stages[0]
    assert float(stage.gradients_bytes) == pytest.approx(
        float(stage.weights_bytes) * gradient / 2.0, rel=0.01
    )
    assert framework.time.gradient_reduce_bytes == gradient
    assert any("does not hold" in entry.message for entry in result.findings) == told


def test_dropouts_and_unfused_attention_keep_what_they_need_backwards() -> None:
    def saved(flags: str) -> float:
        return grouped(flags)[0]

    tokens, layers, heads = 2 * 4096, 32, 32
    plain = saved("--hidden-dropout 0 --attention-dropout 0.0")
    assert saved("--attention-dropout 0") - plain == pytest.approx(layers * 2 * tokens * 4096)  # two masks
    assert saved("--hidden-dropout 0") == plain  # a fused kernel draws its mask again
    unfused = "--hidden-dropout 0 --attention-backend unfused"
    scores = layers * heads * tokens * 4096
    assert saved(f"{unfused} --attention-dropout 0.0") - plain == pytest.approx(2 * scores)  # the softmax
    assert saved(unfused) - plain == pytest.approx(5 * scores)  # its mask, and what is left of it
    assert saved("--hidden-dropout 0 --attention-backend flash") == plain


def test_functional_tests_of_megatron_lm_peak_where_they_are_priced() -> None:
    # tests/functional_tests/test_cases, mem-max-allocated-bytes of the golden values on 8 H100
    shape = (
        "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --group-query-attention "
        "--num-query-groups 8 --untie-embeddings-and-output-weights --micro-batch-size 2 "
        "--global-batch-size 8 --seq-length 8192 --max-position-embeddings 8192 --vocab-size 131073 "
        "--transformer-impl transformer_engine --use-distributed-optimizer --overlap-grad-reduce "
        "--overlap-param-gather --no-gradient-accumulation-fusion --bf16"
    )
    for degrees, peak in (
        ("--tensor-model-parallel-size 4 --pipeline-model-parallel-size 1", 57.14e9),
        ("--tensor-model-parallel-size 1 --pipeline-model-parallel-size 4", 60.72e9),
    ):
        launch = read_text(f"torchrun pretrain_gpt.py {shape} {degrees}\n", "run.sh", "megatron")
        model = model_of(launch)
        assert model is not None
        asked = question({"model": model, "gpus": 8, "hardware": "h100-sxm-80gb", "global_batch": 8})
        result = review(launch, asked, search_s=0)
        assert result.estimate is not None
        parts = result.estimate.stages[0].as_dict()
        allocated = sum(float(size) for name, size in parts.items() if name not in OUTSIDE)
        assert allocated == pytest.approx(peak, rel=0.1)


OUTSIDE = {"fragmentation_bytes", "context_bytes"}
"""Memory that PyTorch has not allocated."""


@pytest.mark.parametrize(
    ("flags", "size"),
    [
        ("--vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt", 50_257),
        ("--tokenizer-type GPT2BPETokenizer", 50_257),
        (
            "--tokenizer-type GPT2BPETokenizer --vocab-file bpe/vocab.json --merge-file bpe/merges.txt",
            128_256,
        ),
        ("--tokenizer-type Llama2Tokenizer --tokenizer-model tokenizer.model", 32_000),
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model Qwen/Qwen3-8B", 151_936),
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model /data/own", 128_256),
        ("--tokenizer-type GPT2BPETokenizer --vocab-size 64000", 64_000),
        ("", 128_256),
    ],
)
def test_a_tokenizer_says_the_vocabulary(flags: str, size: int) -> None:
    command = GROUPS.replace("--vocab-size 32000", "").format(flags=flags)
    model = model_of(read_text(command, "run.sh"))
    assert model is not None
    assert model.vocab_size == size
    assert ("assumed" in model.notes) == (size == 128_256)


def test_layers_of_megatron_itself_keep_the_scores_without_flash_attention() -> None:
    fused = grouped("--hidden-dropout 0")[0]
    assert grouped("--hidden-dropout 0 --transformer-impl local --use-flash-attn")[0] == fused
    assert grouped("--hidden-dropout 0 --transformer-impl local")[0] > 2 * fused
