
# The batch script: starts one task a node, passes on that the job is to end, and fails if anything has died.
set -u
# Set before anything else: what comes earlier than the trap would end this shell and leave the tasks to SIGKILL.
stop=
trap 'stop=1' TERM URG INT

run=$folder/jobs/$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}
# A cluster that counts from 1 again gives a number twice; an old run's notices are not of this one.
[ ! -e "$run" ] || mv "$run" "$run.$(date +%s)" || exit 1
mkdir -p "$run" || exit 1
say() { echo "graftwork $(date -u +%H:%M:%SZ) $*" >&2; }
crashed() {
  local found=("$run"/CRASH_*)
  [ -e "${found[0]}" ]
}

kill_wait=$(scontrol show config 2>/dev/null | sed -n 's/^KillWait *= *\([0-9]*\) sec$/\1/p')
if [ "${kill_wait:-$drain_s}" -lt "$drain_s" ]; then
  say "KillWait of this site is $kill_wait s, a drain may take $drain_s s: end this job with graftwork cancel, not scancel"
fi

if [ -z "$stop" ]; then
  # A node that has drained waits for nobody and ends nobody: both are settings of the site, so they are said here.
  srun --label --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 --cpu-bind=none \
    "${srun_options[@]}" "$folder/node.sh" "$run" </dev/null &
  step=$!
  next=0 pause=2
  while kill -0 "$step" 2>/dev/null; do
    if [ -n "$stop" ] || crashed; then
      # Never to srun itself: it would kill the tasks. Again and again: a task may not have had its traps yet.
      if [ "$SECONDS" -ge "$next" ]; then
        [ "$next" -gt 0 ] || say "telling every node to drain"
        scancel --signal=URG "$SLURM_JOB_ID"
        next=$((SECONDS + pause)) pause=$((pause < 32 ? pause * 2 : 60))
      fi
    fi
    sleep 1 &
    wait $!
  done
  wait "$step"
  rc=$?
else
  rc=0
fi

if crashed; then
  say "ended by a crash:"
  cat "$run"/CRASH_* >&2
  [ "$rc" -ne 0 ] || rc=1
fi
say "ended with $rc"
exit "$rc"
