#!/bin/sh
# Gemma 2 27B on 6,144 TPU v5p: the published 768-way data x 8-way model sharding. Splitting the 8 ways into
# tensor and context ranks saves tensor-parallel traffic.
set -e
problem="--model gemma-2-27b --hardware tpu-v5p --gpus 6144 --framework maxtext"
plan-parallel estimate $problem --tp 8 --dp 768 --zero 3
plan-parallel why-not $problem --tp 8 --dp 768 --zero 3
plan-parallel $problem "$@"
