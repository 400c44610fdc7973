#!/usr/bin/env bash
# Converts traces to one dataset with an array of SLURM jobs, a part of the traces each, and makes the tables when all are done:
#
#   sbatch --array=1-200 examples/recipes/slurm.sh /shared/night.txt /shared/lab.parquet -y /shared/symbols
#   sbatch --dependency=afterany:JOB examples/recipes/slurm.sh /shared/night.txt /shared/lab.parquet -y /shared/symbols
#
# The second call, without an array, passes over what is there, converts what a lost job left, and makes the tables. Behind the traces and the
# dataset stand further options of stk batch. A job that is taken off its node and run again resumes where it was.
#SBATCH --job-name=stk
#SBATCH --cpus-per-task=2
#SBATCH --mem=4G
#SBATCH --requeue
set -euo pipefail
[ $# -ge 2 ] || {
  printf 'usage: slurm.sh TRACES DATASET [OPTIONS OF STK BATCH]\n' >&2
  exit 2
}
traces=$1 dataset=$2
shift 2
part=()
if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then
  # Parts count from 1, an array from where it likes.
  part=(--shard "$((SLURM_ARRAY_TASK_ID - SLURM_ARRAY_TASK_MIN + 1))/$SLURM_ARRAY_TASK_COUNT" --max-bad 100%)
fi
exec "${STK:-stk}" batch "$traces" --to parquet -o "$dataset" -j "${SLURM_CPUS_PER_TASK:-2}" "${part[@]}" "$@"
