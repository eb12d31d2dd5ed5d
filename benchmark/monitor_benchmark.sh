#!/usr/bin/env bash
# Watches a training from outside and says what holds it back: see docs/monitor.md.
set -euo pipefail

seconds="${SECONDS_TO_WATCH:-60}"

usage() {
  cat <<TEXT
usage: monitor_benchmark.sh TASK [KEY=VALUE ...] [OPTION ...]
       monitor_benchmark.sh --run RUN | --pid PID [OPTION ...]

Starts a training of TASK, watches it for $seconds s, ends it and leaves a report in its run
directory (report.html, report.png, report.json, samples.csv); or watches a run that goes on, or
judges one that is over. Options are those of 'unilab monitor': --for S, --interval S, --output DIR,
--baseline FILE|NAME, --any-machine, --peak, --keep.

  benchmark/monitor_benchmark.sh go1_walk physics.num_envs=1024
  benchmark/monitor_benchmark.sh go1_walk --for 120 --peak
  benchmark/monitor_benchmark.sh --run latest --baseline go1_walk/2026-01-31_12-00-00
  benchmark/monitor_benchmark.sh --pid 1234 --for 30

Exit code: 1 for a stalled or failed run or one slower than its baseline, 2 for a mistake.
PYTHON names the interpreter that has unilab, SECONDS_TO_WATCH another time.
TEXT
}

[ $# -gt 0 ] || { usage >&2; exit 2; }
starts=yes
timed=no
for word in "$@"; do
  case "$word" in
    -h | --help) usage; exit 0 ;;
    --run | --run=* | --pid | --pid=*) starts=no ;;
    --for | --for=*) timed=yes ;;
  esac
done

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="${PYTHON:-}"
if [ -z "$python" ]; then
  python=python3
  [ -x "$root/.venv/bin/python" ] && python="$root/.venv/bin/python"
  [ -n "${VIRTUAL_ENV:-}" ] && python="$VIRTUAL_ENV/bin/python"
fi
if [ "$starts" = yes ] && [ "$timed" = no ]; then
  set -- --for "$seconds" "$@"
fi
exec "$python" -m unilab.cli monitor "$@"
