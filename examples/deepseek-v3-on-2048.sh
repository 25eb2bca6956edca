#!/bin/sh
# DeepSeek-V3 on 2,048 H800: the published p=16 e=64 ZeRO-1 t=1 with DualPipe (about 19.9 s a step from 180K GPU
# hours per trillion tokens). Two copies of the parameters and p+1 micro-batches in flight exceed the memory
# model here; the report keeps moments in bf16 and caches activations in FP8, which is not modelled.
problem="--model deepseek-v3 --hardware h800 --gpus 2048 --global-batch 15360 --seq-length 4096 --precision fp8"
plan-parallel estimate $problem --framework any --pp 16 --ep 64 --zero 1 --schedule dualpipe --micro-batch 1 \
    --recompute selective --recompute-modules mla_up_proj,layernorm,moe_act
plan-parallel estimate $problem --framework any --pp 16 --ep 64 --zero 1 --schedule dualpipe --micro-batch 1 \
    --recompute full
set -e
plan-parallel $problem --framework any "$@"
