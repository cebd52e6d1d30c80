#!/bin/bash
#SBATCH --job-name={{ name }}
#SBATCH --nodes={{ trainer.nodes }}
#SBATCH --ntasks-per-node={{ trainer.devices }}
{% for option, value in {
  "gpus-per-node": gpus, "cpus-per-task": cpus, "time": job.time, "partition": job.partition,
  "account": job.account, "mem": job.mem, "array": job.seeds}.items() if value is not none %}
#SBATCH --{{ option }}={{ value }}
{% endfor %}
{% for option, value in mail_and_output.items() if value is not none %}
#SBATCH --{{ option }}={{ value }}
{% endfor %}
{# Seconds before the time limit at which the job is told to save. #}
#SBATCH --signal=B:USR1@120
#SBATCH --{{ "requeue" if job.requeue else "no-requeue" }}
{# The output of a requeued job is appended. #}
#SBATCH --open-mode=append

deltacell=({{ program }})
words=({{ words }}{{ ' "seed=$SLURM_ARRAY_TASK_ID"' if job.seeds }})
run={{ run }}

# A run that has saved is resumed. A run that never saved starts from the beginning.
saved() { compgen -G "$run/checkpoints/step-*.ckpt" > /dev/null; }
if saved; then
  words=(train --resume "$run")
else
  words+=("directory='$run'")
fi

{% if trainer.devices * trainer.nodes > 1 %}
# The ranks meet on this node, at a port where nobody listens: jobs may share a node.
if [ -z "${MASTER_PORT:-}" ]; then
  MASTER_PORT=$((15000 + SLURM_JOB_ID % 10000))
  while (: < "/dev/tcp/127.0.0.1/$MASTER_PORT") 2> /dev/null; do
    MASTER_PORT=$((MASTER_PORT + 1))
  done
  export MASTER_PORT
fi

{% endif %}
warned=0
step=
# Before the time limit Slurm tells this shell, and srun tells every rank: they save.
trap 'heard=1; warned=1; [ -z "$step" ] || kill -USR1 "$step"' USR1
# The ranks have this one from Slurm; the shell only has to outlive them.
trap 'heard=1' TERM
{# Newer versions of srun do not take the cores from the job. Bound to its own cores, a rank would
   count fewer of them than there are ranks. #}
srun --kill-on-bad-exit=1{{ " --cpus-per-task=%s" % cpus if cpus }}{{ "" if gpus else " --cpu-bind=none" }} \
  "${deltacell[@]}" "${words[@]}" &
step=$!
# A signal ends the waiting, not the step.
while heard=0; wait "$step"; code=$?; [ "$heard" = 1 ]; do :; done

{% if job.requeue %}
job=$SLURM_JOB_ID
if [ -n "${SLURM_ARRAY_JOB_ID:-}" ]; then job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID; fi
if [ "$warned" = 1 ] && [ "$code" = 138 ] && saved; then
  scontrol requeue "$job"
elif [ "$code" = 143 ]; then
  # Slurm requeues a pre-empted job only if it is still there when its grace is over.
  sleep 600 &
  wait "$!"
  kill "$!" 2> /dev/null
fi

{% endif %}
exit "$code"
