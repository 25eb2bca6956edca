#!/bin/sh
# 1T dense on 4,096 H100: p=32 needs 124 micro-batches for a bubble of 25 %, or interleaving. Megatron's t=8
# with deep, interleaved pipelines is what the planner finds as well.
problem="--model gpt-1t --gpus 4096 --global-batch 2048 --seq-length 2048"
plan-parallel estimate $problem --tp 8 --pp 32 --vpp 1 --micro-batch 2 # exit code 3: the bubble budget
set -e
plan-parallel estimate $problem --tp 8 --pp 32 --vpp 4 --micro-batch 1
plan-parallel why-not $problem --tp 8 --pp 32
plan-parallel $problem "$@"
