"""How fast our peers run the same robot and task on this machine, and how fast we do.

Gymnasium's vector envs over MuJoCo, mjlab on Warp's CPU device, and rsl-rl-lib's PPO, each in an
interpreter of its own (docs/peers.md says how to make one). The robot, substeps, env count,
observations, rewards, actions and thread count are the same; a peer's observations and rewards are
first compared with ours. Every contender runs in three fresh processes, in turn with the others.

    python benchmark/benchmark_peers.py --peer-python PATH --peer-python OTHER_PATH

Takes about six minutes on two quiet cores, one more when Warp has to compile its kernels first.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import RESULTS, machine, spread, write_result

TASK = "g1_walk"
PEERS = Path(__file__).resolve().parent / "peers"
ROUNDS, LIMIT_S = 3, 240
# Control steps before the clock starts; with 512 envs one of mjlab takes half a second.
WARMUP, MJLAB_WARMUP = "20", "4"
# Peer -> the packages whose versions belong to its figure.
PACKAGES = {
    "gymnasium": ("gymnasium", "mujoco", "numpy"),
    "mjlab": ("mjlab", "mujoco", "mujoco-warp", "warp-lang", "torch"),
    "rsl-rl-lib": ("rsl-rl-lib", "torch"),
}
# What a peer's observations and rewards may differ from ours by. mjlab's rewards read velocities
# of the substep before, so they differ by more than rounding.
TOLERANCE = {
    "gymnasium": {"obs": 1e-3, "critic_obs": 1e-3, "reward": 1e-3},
    "mjlab": {"obs": 1e-3, "critic_obs": 1e-3, "reward": 5e-2},
}


@dataclass
class Contender:
    """One row of the table.

    Attributes:
      name: for a person.
      package: the peer that it needs; "" is us.
      group: rows of one group are compared with ours in it.
      words: script and arguments.
      results: one an ended process.
      not_run: why it did not run; "" where it did.
    """

    name: str
    package: str
    group: str
    words: list[str]
    python: str = sys.executable
    versions: dict[str, str] = field(default_factory=dict)
    results: list[dict[str, Any]] = field(default_factory=list)
    not_run: str = ""

    def run(self) -> None:
        """Run one fresh process; a failure is remembered as the reason not to run again."""
        if self.not_run:
            return
        begin = perf_counter()
        try:
            result = call(self.python, self.words)
            self.results.append({**result, "process_s": perf_counter() - begin})
        except RuntimeError as error:
            self.not_run = str(error)


def main() -> None:
    """Compare, measure, print the tables, write the results."""
    arguments = parse_arguments()
    header = machine()
    interpreters = [(python, installed(python)) for python in arguments.peer_python]
    with tempfile.TemporaryDirectory() as folder:
        from export import write_bundle

        write_bundle(TASK, arguments.overrides, Path(folder))
        contenders = make_contenders(arguments, folder)
        for contender in contenders:
            find_interpreter(contender, interpreters)
        agreement, prepare_s = compare(contenders, folder)
        for number in range(arguments.rounds):
            for contender in contenders:
                contender.run()
                print(f"round {number + 1}: {contender.name}, {contender.group}: "
                      f"{brief(contender)}", file=sys.stderr)  # fmt: skip
    rows = [row for group in groups(contenders) for row in summarise(group)]
    table = to_markdown(rows)
    print(table)
    for name, differences in agreement.items():
        text = ", ".join(f"{k} {v:.1e}" for k, v in differences.items())
        print(f"{name} against ours, largest differences: {text}")
    print(verdict(rows))
    name = f"peers_{TASK}"
    content = {
        "verdict": verdict(rows),
        "rows": rows,
        "largest_differences": agreement,
        "prepare_s": prepare_s,
    }
    path = write_result(name, header, content)
    path.write_text(path.read_text().replace(folder, "BUNDLE"))
    (RESULTS / f"{name}.md").write_text(table + "\n")
    print(f"written: {path}\n         {RESULTS / name}.md")


def parse_arguments() -> argparse.Namespace:
    """Read the command line; an interpreter that is not there ends with exit code 2."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer-python", action="append", metavar="PATH",
                        help="an interpreter with peers installed; may be given several times; "
                        "each peer runs in the first that has it. Default: this one")  # fmt: skip
    parser.add_argument("--num-envs", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--ppo-envs", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--updates", type=int, default=4, help="PPO updates a process")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--rsl-compile", action="store_true",
                        help="also rsl-rl-lib with torch.compile (a minute a process)")  # fmt: skip
    parser.add_argument("overrides", nargs="*", help=f"config of {TASK}, key=value")
    arguments = parser.parse_intermixed_args()
    arguments.peer_python = arguments.peer_python or [sys.executable]
    for path in arguments.peer_python:
        if not os.access(path, os.X_OK) or Path(path).is_dir():
            parser.error(f"--peer-python {path}: no such program; give a Python interpreter, as "
                         "in docs/peers.md")  # fmt: skip
    return arguments


def make_contenders(arguments: argparse.Namespace, folder: str) -> list[Contender]:
    """List all rows, in the order in which they run."""
    cpus, seconds = machine_cpus(), ["--seconds", str(arguments.seconds)]
    rows = []
    for count in arguments.num_envs:
        group, size = f"{count} envs", ["--num-envs", str(count)]
        rows.append(Contender("unilab, collecting", "", group, [
            "ours.py", "collect", "--task", TASK, *size, *seconds, "--warmup", WARMUP,
            *arguments.overrides]))  # fmt: skip
        for mode, name in (
            ("sync", "Gymnasium SyncVectorEnv"),
            ("async", "Gymnasium AsyncVectorEnv"),
            ("halves", "Gymnasium, two SyncVectorEnv processes that exchange nothing"),
        ):
            rows.append(Contender(name, "gymnasium", group, [
                "gymnasium_env.py", folder, "--mode", mode, *size, *seconds,
                "--warmup", WARMUP]))  # fmt: skip
        rows.append(Contender("mjlab, Warp on the CPU", "mjlab", group, [
            "mjlab_env.py", folder, *size, *seconds, "--warmup", MJLAB_WARMUP]))  # fmt: skip
    for net in ("128-128", "512-256-128"):
        group = f"PPO {net}, {arguments.ppo_envs} envs"
        words = ["--net", net, "--num-envs", str(arguments.ppo_envs), "--threads", str(cpus),
                 "--updates", str(arguments.updates)]  # fmt: skip
        rows.append(Contender("unilab PPO", "", group, ["ours.py", "ppo", *words]))
        rows.append(Contender("rsl-rl-lib PPO", "rsl-rl-lib", group, ["rsl_rl_ppo.py", *words]))
        if arguments.rsl_compile:
            rows.append(Contender("rsl-rl-lib PPO, torch.compile", "rsl-rl-lib", group, [
                "rsl_rl_ppo.py", *words, "--compile", "default"]))  # fmt: skip
    return rows


def machine_cpus() -> int:
    """CPUs that this process may use: what every contender gets."""
    from unilab.runtime.threads import available_cpus

    return available_cpus()


def installed(python: str) -> dict[str, str]:
    """Return the version of every package in an interpreter."""
    code = (
        "import importlib.metadata as m, json\n"
        "print(json.dumps({d.metadata['Name'].lower(): d.version for d in m.distributions()}))"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"error: --peer-python {python} is no Python interpreter that runs: "
                         f"{last_line(done.stderr)}")  # fmt: skip
    versions: dict[str, str] = json.loads(done.stdout)
    return versions


def find_interpreter(
    contender: Contender, interpreters: Sequence[tuple[str, dict[str, str]]]
) -> None:
    """Give a peer the first interpreter that has it, or the reason why it is not run."""
    if not contender.package:
        return
    for python, versions in interpreters:
        if contender.package in versions:
            contender.python = python
            contender.versions = {n: versions[n] for n in PACKAGES[contender.package]}
            return
    contender.not_run = (
        f"{contender.package} is not installed (pip install {contender.package}; docs/peers.md)"
    )


def compare(
    contenders: Sequence[Contender], folder: str
) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Compare each peer's observations and rewards with ours; one that differs is not run.

    This is also when Warp compiles its kernels, where it has not yet.

    Returns:
      Peer -> largest differences, and peer -> seconds that this took.
    """
    scripts = {"gymnasium": "gymnasium_env.py", "mjlab": "mjlab_env.py"}
    agreement: dict[str, dict[str, float]] = {}
    prepare_s: dict[str, float] = {}
    for package, script in scripts.items():
        rows = [c for c in contenders if c.package == package and not c.not_run]
        if not rows:
            continue
        begin, reason = perf_counter(), ""
        try:
            differences = call(rows[0].python, [script, folder, "--mode", "check"])
            agreement[package] = differences
            worse = [k for k, v in differences.items() if not v <= TOLERANCE[package][k]]
            if worse:
                reason = f"its {worse[0]} differs from ours by {differences[worse[0]]:.2g}"
        except RuntimeError as error:
            reason = str(error)
        for row in rows:
            row.not_run = reason
        prepare_s[package] = perf_counter() - begin
        text = reason or "agrees with ours"
        print(f"{package}: {text} ({prepare_s[package]:.0f} s)", file=sys.stderr)
    return agreement, prepare_s


def call(python: str, words: Sequence[str]) -> dict[str, Any]:
    """Run a script of peers/ and return the JSON object that it prints last.

    Raises:
      RuntimeError: it failed or took too long; the message is one line.
    """
    try:
        done = subprocess.run(
            [python, *words], cwd=PEERS, capture_output=True, text=True, timeout=LIMIT_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"no result after {LIMIT_S} s") from error
    if done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode}: {last_line(done.stderr)}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def last_line(text: str) -> str:
    """Return the last line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def groups(contenders: Sequence[Contender]) -> list[list[Contender]]:
    """Cut the rows into groups; the first of each is ours."""
    names = list(dict.fromkeys(c.group for c in contenders))
    return [[c for c in contenders if c.group == name] for name in names]


def summarise(group: Sequence[Contender]) -> list[dict[str, Any]]:
    """Return a group's rows, with the ratio of every peer to ours; above 1 we are ahead."""
    ours = group[0]
    if ours.not_run:
        raise SystemExit(f"error: our own run failed: {ours.not_run}")
    rates = "steps_per_s" in ours.results[0]
    metric = "steps_per_s" if rates else "total_ms"
    rows = []
    for contender in group:
        row: dict[str, Any] = {
            "name": contender.name,
            "group": contender.group,
            "unit": "env-steps/s" if rates else "ms per iteration",
            "versions": contender.versions,
            "command": " ".join(["python", f"benchmark/peers/{contender.words[0]}",
                                 *contender.words[1:]]),
            "not_run": contender.not_run,
            "processes": contender.results,
        }  # fmt: skip
        if not contender.not_run:
            values = [result[metric] for result in contender.results]
            row[metric] = spread(values)
            pairs = zip([r[metric] for r in ours.results], values, strict=True)
            if contender is not ours:
                row["ours_ahead_by"] = spread([a / b if rates else b / a for a, b in pairs])
                _check_equal(ours, contender)
        rows.append(row)
    return rows


def _check_equal(ours: Contender, peer: Contender) -> None:
    """Refuse a comparison of networks of different size."""
    sizes = {r["parameters"] for c in (ours, peer) for r in c.results if "parameters" in r}
    if len(sizes) > 1:
        raise SystemExit(f"error: {peer.name}: networks of different sizes: {sorted(sizes)}")


def to_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table for a person."""
    lines = ["| at equal terms | contender | versions | median (min to max) | ours is ahead by |",
             "|---|---|---|---|---|"]  # fmt: skip
    for row in rows:
        versions = ", ".join(f"{k} {v}" for k, v in row["versions"].items())
        if row["not_run"]:
            figure, ratio = f"not run: {row['not_run']}", ""
        else:
            value = row.get("steps_per_s") or row["total_ms"]
            figure = (f"{value['median']:,.0f} ({value['min']:,.0f} to {value['max']:,.0f}) "
                      f"{row['unit']}")  # fmt: skip
            ahead = row.get("ours_ahead_by")
            ratio = "" if ahead is None else (
                f"{ahead['median']:.2f} x ({ahead['min']:.2f} to {ahead['max']:.2f})"
            )  # fmt: skip
            figure += _details(row["processes"])
        lines.append(f"| {row['group']} | {row['name']} | {versions} | {figure} | {ratio} |")
    return "\n".join(lines)


def _details(processes: Sequence[dict[str, Any]]) -> str:
    """Parts of a figure: the simulation alone, or acting and updating."""
    parts = {
        "simulation_steps_per_s": "simulation alone {:,.0f}",
        "act_ms": "acting and storing {:,.0f}",
        "update_ms": "update {:,.0f}",
    }
    texts = [
        text.format(spread([p[key] for p in processes])["median"])
        for key, text in parts.items()
        if key in processes[0]
    ]
    return "; " + ", ".join(texts) if texts else ""


def verdict(rows: Sequence[dict[str, Any]]) -> str:
    """Say in one line whether ours is ahead of each."""
    ran = [row for row in rows if "ours_ahead_by" in row]
    behind = [r for r in ran if r["ours_ahead_by"]["median"] <= 1.0]
    if not ran:
        return "no peer ran"
    if not behind:
        return f"ours is ahead in each of {len(ran)} comparisons"
    return "ours is behind: " + "; ".join(f"{r['name']} ({r['group']})" for r in behind)


def brief(contender: Contender) -> str:
    """The last result of a row in a few words."""
    if contender.not_run:
        return f"not run: {contender.not_run}"
    result = contender.results[-1]
    if "steps_per_s" in result:
        return f"{result['steps_per_s']:,.0f} env-steps/s"
    return f"{result['total_ms']:,.0f} ms"


if __name__ == "__main__":
    main()
