#!/bin/sh
# DeepSeek-V3 on 2,048 H800: the published p=16 e=64 ZeRO-1 t=1 with DualPipe (about 19.9 s a step from 180K GPU
# hours per trillion tokens). It fits with the habits of DeepSeek's own framework, moments in 16 bits and
# activations cached in FP8, and not with fp32 moments and 16-bit activations.
problem="--model deepseek-v3 --hardware h800 --gpus 2048 --global-batch 15360 --seq-length 4096 --precision fp8"
plan-parallel estimate $problem --framework any --pp 16 --ep 64 --zero 1 --schedule dualpipe --micro-batch 1 \
    --recompute selective --recompute-modules mla_up_proj,layernorm,moe_act # exit code 3: memory
set -e
problem="$problem --framework deepseek"
plan-parallel estimate $problem --pp 16 --ep 64 --zero 1 --schedule dualpipe --micro-batch 1 --recompute selective
plan-parallel why-not $problem --tp 1 --pp 16 --ep 64 --zero 1 --schedule dualpipe
plan-parallel $problem "$@"
