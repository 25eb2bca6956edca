#!/bin/sh
# 70B dense on 256 H100: the textbook's t=8 d=32 ZeRO-1, priced; then the planner's own answer, which trades
# tensor-parallel traffic for a short pipeline.
set -e
problem="--model llama-3-70b --gpus 256 --global-batch 2048 --seq-length 4096"
plan-parallel estimate $problem --tp 8 --pp 1 --zero 1
plan-parallel why-not $problem --tp 8 --pp 1 --zero 1
plan-parallel $problem "$@"
