#!/bin/bash
# Run this with bash. It submits {{ n_parts }} jobs, which score a part of the ranking each, and a job
# that merges the parts when all of these have ended, however they ended.
set -euo pipefail

parts=$(sbatch --parsable <<'JOB'
{{ part }}
JOB
)
sbatch --dependency=afterany:"${parts%%;*}" <<'JOB'
{{ merge }}
JOB
