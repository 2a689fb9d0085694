#!/bin/bash
# salloc --nodes=2 --gres=gpu:2 srun --ntasks-per-node=1 src/jobs/torchrun_script.sh --steps 20
# Interactively, without a job file: srun starts this script on each host, a rank for each GPU there.
set -eu

run=${BOOTCAMP_LOGS:-logs}/torchrun_script-$SLURM_JOB_ID.$SLURM_STEP_ID # a job may have several
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

torchrun --nnodes="$SLURM_NNODES" --nproc_per_node="$SLURM_GPUS_ON_NODE" \
  --rdzv_id="$SLURM_JOB_ID" --rdzv_backend=c10d --rdzv_endpoint="$head:29400" \
  src/_train_ddp.py --run-dir "$run" "$@"
