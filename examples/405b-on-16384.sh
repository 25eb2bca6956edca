#!/bin/sh
# Llama 3.1 405B on 16,384 H100: the published t=8 p=16 d=128 with 16 micro-batches (400 TFLOP/s per GPU,
# about 6.5 s a step). With 16 micro-batches in flight it needs MLP recompute here; the report frees tensors early.
# Two context ranks halve the activations, so that nothing is recomputed and twice the micro-batches fill the pipeline.
set -e
problem="--model llama-3.1-405b --gpus 16384 --global-batch 2048 --seq-length 8192"
plan-parallel estimate $problem --tp 8 --pp 16 --vpp 8 --micro-batch 1 --recompute selective --recompute-modules mlp
plan-parallel why-not $problem --tp 8 --pp 16 --cp 1 --dp 128 --micro-batch 1
plan-parallel $problem "$@"
