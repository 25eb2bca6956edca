#!/bin/sh
# 100B dense on 512 H100: why the textbook's t=8 p=1 d=64 ZeRO-1 does not fit with fp32 gradients; p=2 does.
# Narrower tensor parallelism in a deeper pipeline is faster still: half the tensor-parallel traffic.
problem="--model 100b --gpus 512"
plan-parallel estimate $problem --tp 8 --pp 1 --zero 1 # exit code 3: the gradients do not fit
set -e
plan-parallel estimate $problem --tp 8 --pp 2 --vpp 4 --zero 1
plan-parallel why-not $problem --tp 8 --pp 2
plan-parallel $problem "$@"
