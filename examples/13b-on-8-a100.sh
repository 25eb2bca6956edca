#!/bin/sh
# 13B on one node of 8 A100 80 GB: plain data parallelism needs 18 bytes a parameter and does not fit. Tensor
# parallelism with full recompute does; sharding gradients and optimizer (ZeRO-2) does without recompute.
problem="--model 13b --hardware a100-sxm-80gb --gpus 8 --global-batch 512"
plan-parallel estimate $problem --tp 1 --dp 8 --zero 0 # exit code 3: 18 bytes a parameter
set -e
plan-parallel estimate $problem --tp 2 --dp 4 --zero 1 --recompute full
plan-parallel why-not $problem --tp 2 --dp 4 --zero 1 --recompute full
plan-parallel $problem "$@"
