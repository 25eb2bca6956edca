#!/bin/sh
# Llama 3 70B at 128K context on 256 H100: without context parallelism the activations do not fit. With 8
# context ranks they do, and full recompute is not needed either.
problem="--model llama-3-70b --gpus 256 --seq-length 131072 --global-batch 32"
plan-parallel estimate $problem --tp 8 --pp 4 --cp 1 --dp 8 --micro-batch 1 # exit code 3: activations
set -e
plan-parallel estimate $problem --tp 8 --pp 4 --cp 8 --dp 1 --cp-kind all_gather --recompute full
plan-parallel why-not $problem --tp 8 --pp 4 --cp 8
plan-parallel $problem "$@"
