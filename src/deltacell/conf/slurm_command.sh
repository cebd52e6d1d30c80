#!/bin/bash
{% for option, value in options.items() if value is not none %}
#SBATCH --{{ option }}={{ value }}
{% endfor %}
{# What was saved is resumed, so a job that lost its node may start again. #}
#SBATCH --requeue
#SBATCH --open-mode=append

export OMP_NUM_THREADS={{ cpus }}
exec srun --ntasks=1 --cpus-per-task={{ cpus }} {{ command }}
