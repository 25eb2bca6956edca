"""Made-up configurations of trainers around other frameworks, and the runs that they start."""

from __future__ import annotations

from typing import Any

SWIFT = """
NNODES=2 NPROC_PER_NODE=8 \\
megatron sft --load Qwen3-30B-A3B-mcore --tensor_model_parallel_size 2 --sequence_parallel true \\
    --expert_model_parallel_size 8 --max_length 8192 --micro_batch_size 1 \\
    --recompute_granularity full --recompute_method uniform --recompute_num_layers 1
"""
SWIFT_TRAINER = "NPROC_PER_NODE=4 swift sft --model Qwen/Qwen2.5-7B --deepspeed zero3 --max_length 4096"
SLIME = """
PERF=(--tensor-model-parallel-size 2 --sequence-parallel --context-parallel-size 2
      --expert-model-parallel-size 4 --expert-tensor-parallel-size 1
      --use-dynamic-batch-size --max-tokens-per-gpu 8192)
ray job submit -- python3 train.py --actor-num-nodes 2 --actor-num-gpus-per-node 8 \\
    --hf-checkpoint /models/Qwen3-30B-A3B --rollout-batch-size 16 --n-samples-per-prompt 8 ${PERF[@]}
"""
OPENRLHF = """
deepspeed --num_gpus 8 --module openrlhf.cli.train_sft --pretrain meta-llama/Meta-Llama-3-8B --max_len 4096 \\
    --train_batch_size 64 --micro_train_batch_size 2 --zero_stage 3 --gradient_checkpointing --adam_offload
"""
VERL = """
python3 -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer.yaml \\
    data.max_prompt_length=1024 data.max_response_length=3072 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B \\
    actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.rollout.n=4 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 \\
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 \\
    actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2 \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=4 trainer.n_gpus_per_node=8 trainer.nnodes=2
"""
VERL_FSDP = """
python3 -m verl.trainer.main_ppo data.max_prompt_length=1024 data.max_response_length=7168 \\
    actor_rollout_ref.model.path=Qwen/Qwen2.5-7B actor_rollout_ref.actor.ppo_mini_batch_size=16 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 trainer.n_gpus_per_node=8 trainer.nnodes=1 \\
    actor_rollout_ref.actor.ulysses_sequence_parallel_size=2 actor_rollout_ref.actor.strategy=fsdp
"""
VERL_SFT = """
torchrun --standalone --nnodes=1 --nproc_per_node=8 -m verl.trainer.sft_trainer \\
    model.path=Qwen/Qwen2.5-7B data.train_batch_size=128 data.max_token_len_per_gpu=16384 \\
    data.micro_batch_size_per_gpu=4 engine.ulysses_sequence_parallel_size=2
"""
VERL_OLD_SFT = """
torchrun --standalone --nnodes=1 --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer \\
    model.partial_pretrain=Qwen/Qwen2.5-7B data.train_batch_size=128 data.max_length=2048 \\
    data.micro_batch_size_per_gpu=4 model.lora_rank=32
"""
LITGPT = """
checkpoint_dir: checkpoints/meta-llama/Llama-2-7b-hf
precision: bf16-true
quantize:
devices: 4
num_nodes: 1
lora_r: 32
train:
  global_batch_size: 64
  micro_batch_size: 2
  max_seq_length: 512
"""
LITGPT_PRETRAIN = "litgpt pretrain Llama-2-7b --model_name Llama-2-7b --devices 8 --train.micro_batch_size 2"
LIGHTNING = """
import lightning as L
model = transformers.AutoModelForCausalLM.from_pretrained('google/gemma-2b', torch_dtype=torch.bfloat16)
loader = DataLoader(data, batch_size=2)
strategy = FSDPStrategy(sharding_strategy="FULL_SHARD", activation_checkpointing_policy={Block})
trainer = L.Trainer(devices=8, strategy=strategy, precision="bf16-mixed", accumulate_grad_batches=4)
"""
NEMO_RL = """
policy:
  model_name: Qwen/Qwen2.5-7B
  train_global_batch_size: 64
  train_micro_batch_size: 1
  max_total_sequence_length: 4096
  dtensor_cfg: {enabled: DTENSOR, tensor_parallel_size: 4, sequence_parallel: true,
    activation_checkpointing: true}
  megatron_cfg: {enabled: MEGATRON, tensor_model_parallel_size: 2, pipeline_model_parallel_size: 2,
    sequence_parallel: true, activation_checkpointing: true}
cluster: {gpus_per_node: 8, num_nodes: 2}
"""
AUTOMODEL = """
step_scheduler: {global_batch_size: 64, local_batch_size: 2}
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: Qwen/Qwen3-30B-A3B
distributed:
  {tp_size: 1, cp_size: 1, pp_size: 2, ep_size: 4, dp_size: none, activation_checkpointing: true}
"""
FACTORY = """
model_name_or_path: Qwen/Qwen2.5-7B
finetuning_type: full
deepspeed: examples/deepspeed/ds_z3_offload_config.json
cutoff_len: 8192
per_device_train_batch_size: 1
gradient_accumulation_steps: 4
enable_liger_kernel: true
bf16: true
"""
AXOLOTL = """
base_model: NousResearch/Meta-Llama-3-8B
sequence_len: 8192
micro_batch_size: 2
gradient_accumulation_steps: 2
gradient_checkpointing: true
optimizer: adamw_bnb_8bit
bf16: auto
dp_shard_size: 4
tensor_parallel_size: 2
fsdp_version: 2
fsdp_config: {reshard_after_forward: true}
"""
NEOX = """
{
  "pipe-parallel-size": 2, "model_parallel_size": 2, "num-layers": 32, "hidden-size": 4096,
  "num-attention-heads": 32, "seq-length": 2048, "no-weight-tying": true, "global_num_gpus": 16,
  "zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8,
  "checkpoint-activations": true, "precision": "bfloat16",
}
"""
PADDLE = """{
  "model_name_or_path": "meta-llama/Llama-2-13b", "per_device_train_batch_size": 1,
  "gradient_accumulation_steps": 8, "tensor_parallel_degree": 2, "pipeline_parallel_degree": 4,
  "sharding": "stage1", "sharding_parallel_degree": -1, "max_seq_length": 4096,
  "recompute": true, "bf16": true
}"""
FOUNDRY = """
max_seq_len: 2048
global_train_batch_size: 64
device_train_microbatch_size: 2
precision: amp_bf16
model: {name: mpt_causal_lm, d_model: 4096, n_heads: 32, n_layers: 32, vocab_size: 50368}
fsdp_config: {sharding_strategy: FULL_SHARD, activation_checkpointing: true}
"""
TORCHTUNE = """
model: {_component_: torchtune.models.llama3_1.llama3_1_70b}
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 1024}
batch_size: 2
gradient_accumulation_steps: 1
optimizer: {_component_: bitsandbytes.optim.PagedAdamW8bit}
enable_activation_checkpointing: true
dtype: bf16
"""
PRIMUS = """
exp_name: ${PRIMUS_EXP_NAME:tiny}
modules:
  pre_trainer:
    framework: megatron
    model: llama2_70B.yaml
    overrides:
      wandb_project:
      micro_batch_size: 2
      global_batch_size: 128
      seq_length: ${PRIMUS_SEQ_LENGTH:4096}
      tensor_model_parallel_size: ${PRIMUS_TP:4}
      pipeline_model_parallel_size: ${PRIMUS_PP:2}
      recompute_num_layers: 0
"""
OPENRLHF_DOTTED = """
deepspeed --num_gpus 8 --module openrlhf.cli.train_sft \\
    --model.model_name_or_path meta-llama/Meta-Llama-3-8B --data.max_len 4096 \\
    --train.batch_size 64 --train.micro_batch_size 2 --ds.zero_stage 3 \\
    --model.gradient_checkpointing_enable --ds.adam_offload
"""
TRAINER = """
torchrun --nproc_per_node=8 train.py --model_name_or_path meta-llama/Llama-2-13b-hf --bf16 True \\
    --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --model_max_length 2048 \\
    --fsdp "shard_grad_op auto_wrap offload" --gradient_checkpointing True
"""
PROGRAM = """
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B", torch_dtype=dtype)
settings = SFTConfig(output_dir=folder, per_device_train_batch_size=2, gradient_accumulation_steps=16,
                     bf16=True, max_length=2048, gradient_checkpointing=True, fsdp="full_shard auto_wrap")
SFTTrainer(model=model, args=settings, train_dataset=rows).train()
"""
ARGUMENTS = """{
  "model_name_or_path": "meta-llama/Llama-2-13b-hf", "per_device_train_batch_size": 2,
  "optim": "adamw_bnb_8bit", "gradient_accumulation_steps": 8, "bf16": true,
  "max_seq_length": 2048, "output_dir": "zero3.json"
}"""
ACCELERATE_DEEPSPEED = """
distributed_type: DEEPSPEED
deepspeed_config: {zero_stage: 2, gradient_accumulation_steps: 4, offload_optimizer_device: cpu}
mixed_precision: bf16
num_processes: 8
"""
ULYSSES = """
distributed_type: DEEPSPEED
deepspeed_config: {zero_stage: 3}
parallelism_config: {parallelism_config_sp_size: 4, parallelism_config_sp_backend: deepspeed}
num_processes: 8
"""
ACCELERATE_MEGATRON = """
distributed_type: MEGATRON_LM
megatron_lm_config:
  megatron_lm_tp_degree: 4
  megatron_lm_pp_degree: 2
  megatron_lm_num_micro_batches: 8
  megatron_lm_sequence_parallelism: true
  megatron_lm_use_distributed_optimizer: true
mixed_precision: bf16
num_processes: 16
"""

CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    ("run.sh", SWIFT, "megatron", {
        "num_gpus": 16, "model": "qwen3-30b-a3b", "seq_length": 8192, "tensor_parallel": 2,
        "expert_parallel": 8, "expert_tensor_parallel": 1, "sequence_parallel": True, "zero_stage": 1,
        "data_parallel": 8, "num_microbatches": 2, "recompute": "full", "precision": "bf16",
    }),
    ("run.sh", SWIFT_TRAINER, "deepspeed", {
        "num_gpus": 4, "model": "qwen2.5-7b", "seq_length": 4096, "zero_stage": 3, "data_parallel": 4,
        "frozen": True, "recompute": "full", "precision": "bf16",
    }),
    # rows of 8192 tokens a GPU over two context ranks; 16 prompts of 8 answers make a step
    ("run.sh", SLIME, "megatron", {
        "num_gpus": 16, "model": "qwen3-30b-a3b", "seq_length": 16384, "global_batch": 128,
        "context_parallel": 2, "data_parallel": 4, "expert_parallel": 4, "zero_stage": 1, "precision": "bf16",
    }),
    ("run.sh", OPENRLHF, "deepspeed", {
        "num_gpus": 8, "model": "llama-3-8b", "zero_stage": 3, "micro_batch": 2, "num_microbatches": 4,
        "seq_length": 4096, "recompute": "full", "offload": "optimizer", "precision": "bf16",
    }),
    # 32 prompts of 4 answers a mini-batch; the rollout's own tensor ranks are not the actor's
    ("run.sh", VERL, "megatron", {
        "num_gpus": 16, "model": "qwen2.5-7b", "tensor_parallel": 2, "pipeline_parallel": 2,
        "data_parallel": 4, "global_batch": 128, "seq_length": 4096, "sequence_parallel": True,
        "zero_stage": 1, "offload": "none",
    }),
    ("run.sh", VERL_FSDP, "deepspeed", {
        "num_gpus": 8, "context_parallel": 2, "context_parallel_kind": "all_to_all", "data_parallel": 4,
        "zero_stage": 3, "seq_length": 8192, "num_microbatches": 4, "recompute": "full",
    }),
    ("run.sh", VERL_SFT, "deepspeed", {
        "num_gpus": 8, "context_parallel": 2, "micro_batch": 1, "seq_length": 32768, "global_batch": 128,
        "zero_stage": 3, "model": "qwen2.5-7b",
    }),
    ("run.sh", VERL_OLD_SFT, "deepspeed", {
        "num_gpus": 8, "micro_batch": 4, "num_microbatches": 4, "seq_length": 2048, "frozen": True,
    }),
    ("lora.yaml", LITGPT, "accelerate", {
        "num_gpus": 4, "zero_stage": 3, "micro_batch": 2, "num_microbatches": 8, "seq_length": 512,
        "recompute": "full", "frozen": True, "model": "llama-2-7b", "logits": 6.0,
    }),
    ("run.sh", LITGPT_PRETRAIN, "accelerate", {
        "num_gpus": 8, "zero_stage": 3, "micro_batch": 2, "num_microbatches": 32, "recompute": "none",
    }),
    ("train.py", LIGHTNING, "accelerate", {
        "num_gpus": 8, "zero_stage": 3, "micro_batch": 2, "num_microbatches": 4, "recompute": "full",
        "precision": "bf16", "model": "gemma-2b", "optimizer": 12.0,
    }),
    ("grpo.yaml", NEMO_RL.replace("DTENSOR", "false").replace("MEGATRON", "true"), "megatron", {
        "num_gpus": 16, "tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 4, "recompute": "full",
        "num_microbatches": 16, "zero_stage": 1, "precision": "bf16",
    }),
    ("grpo.yaml", NEMO_RL.replace("DTENSOR", "true").replace("MEGATRON", "false"), "automodel", {
        "num_gpus": 16, "tensor_parallel": 4, "pipeline_parallel": 1, "data_parallel": 4, "recompute": "full",
        "zero_stage": 3, "micro_batch": 1, "num_microbatches": 16,
    }),
    ("recipe.yaml", AUTOMODEL, "automodel", {
        "model": "qwen3-30b-a3b", "pipeline_parallel": 2, "schedule": "1f1b", "data_parallel": 8,
        "expert_parallel": 4, "zero_stage": 2, "num_microbatches": 8, "recompute": "full",
    }),
    # the named file is not there: its name says ZeRO-3 with everything offloaded
    ("sft.yaml", FACTORY, "deepspeed", {
        "model": "qwen2.5-7b", "seq_length": 8192, "zero_stage": 3, "offload": "parameters", "micro_batch": 1,
        "num_microbatches": 4, "global_batch": 64, "recompute": "full", "frozen": False, "logits": 0.0,
    }),
    ("config.yaml", AXOLOTL, "accelerate", {
        "model": "llama-3-8b", "tensor_parallel": 2, "data_parallel": 8, "zero_stage": 3,
        "shard_group_size": 4,
        "micro_batch": 2, "num_microbatches": 2, "recompute": "full", "precision": "bf16", "optimizer": 6.0,
    }),
    ("6-7B.yml", NEOX, "megatron-deepspeed", {
        "tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 4, "zero_stage": 1, "micro_batch": 4,
        "num_microbatches": 8, "seq_length": 2048, "recompute": "full", "precision": "bf16", "num_layers": 32,
    }),
    ("sft.json", PADDLE, "paddle", {
        "model": "llama-2-13b", "tensor_parallel": 2, "pipeline_parallel": 4, "data_parallel": 2,
        "zero_stage": 1, "num_microbatches": 8, "recompute": "full", "sequence_parallel": False,
    }),
    ("mpt.yaml", FOUNDRY, "llm-foundry", {
        "data_parallel": 16, "zero_stage": 3, "micro_batch": 2, "num_microbatches": 2, "seq_length": 2048,
        "recompute": "full", "precision": "bf16", "num_layers": 32,
    }),
    # 16-bit weights, gradients and two one-byte moments, no master copy
    ("70B.yaml", TORCHTUNE, "accelerate", {
        "model": "llama-3-70b", "zero_stage": 3, "micro_batch": 2, "seq_length": 1024, "recompute": "full",
        "optimizer": 2.0, "frozen": False,
    }),
    ("llama2.yaml", PRIMUS, "primus", {
        "model": "llama-2-70b", "tensor_parallel": 4, "pipeline_parallel": 2, "data_parallel": 2,
        "micro_batch": 2, "seq_length": 4096, "num_microbatches": 32, "zero_stage": 1, "precision": "bf16",
    }),
    ("run.sh", OPENRLHF_DOTTED, "deepspeed", {
        "num_gpus": 8, "model": "llama-3-8b", "zero_stage": 3, "micro_batch": 2, "num_microbatches": 4,
        "seq_length": 4096, "recompute": "full", "offload": "optimizer", "precision": "bf16",
    }),
    ("run.sh", TRAINER, "accelerate", {
        "num_gpus": 8, "model": "llama-2-13b", "zero_stage": 2, "offload": "parameters", "micro_batch": 2,
        "num_microbatches": 8, "seq_length": 2048, "recompute": "full", "precision": "bf16",
    }),
    ("train.py", PROGRAM, "accelerate", {
        "model": "qwen2.5-7b", "zero_stage": 3, "micro_batch": 2, "num_microbatches": 16, "seq_length": 2048,
        "recompute": "full", "precision": "bf16",
    }),
    ("train.py", PROGRAM.replace("fsdp=\"full_shard auto_wrap", "deepspeed=\"zero2.json"), "deepspeed", {
        "model": "qwen2.5-7b", "zero_stage": 2, "micro_batch": 2, "num_microbatches": 16,
    }),
    ("args.json", ARGUMENTS, "accelerate", {
        "model": "llama-2-13b", "zero_stage": 0, "micro_batch": 2, "num_microbatches": 8, "seq_length": 2048,
        "optimizer": 6.0, "precision": "bf16",
    }),
    ("args.json", ARGUMENTS.replace("output_dir", "deepspeed"), "deepspeed", {
        "model": "llama-2-13b", "zero_stage": 3, "micro_batch": 2, "num_microbatches": 8, "seq_length": 2048,
        "optimizer": 6.0, "precision": "bf16",
    }),
    ("zero2.yaml", ACCELERATE_DEEPSPEED, "deepspeed", {
        "num_gpus": 8, "zero_stage": 2, "num_microbatches": 4, "offload": "optimizer", "micro_batch": 1,
        "precision": "bf16",
    }),
    ("ulysses.yaml", ULYSSES, "deepspeed", {
        "num_gpus": 8, "context_parallel": 4, "context_parallel_kind": "all_to_all", "data_parallel": 2,
        "zero_stage": 3,
    }),
    ("mega.yaml", ACCELERATE_MEGATRON, "megatron", {
        "num_gpus": 16, "tensor_parallel": 4, "pipeline_parallel": 2, "data_parallel": 2, "zero_stage": 1,
        "num_microbatches": 8, "sequence_parallel": True, "precision": "bf16",
    }),
]  # fmt: skip
