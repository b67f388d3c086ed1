#!/bin/bash
# Measures data-parallel training: the example `train`, with two ranks that communicate beside two
# that do not, replicated and with ZeRO-1, and PyTorch's DistributedDataParallel over gloo with the
# same model and batch, if the environment that tests/torch.sh makes is there. All in turns, with
# one thread in each process, on a machine where nothing else runs. Prints medians in Markdown, for
# `benches/measurements --take`.
#   benches/training.sh [ROUNDS] [NAME=VALUE of `train`]...
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --quiet --release -p spark-ccl-training --example train
export OMP_NUM_THREADS=1
exec python3 - "${CARGO_TARGET_DIR:-target}/release/examples/train" "${1:-5}" "${@:2}" <<'PYTHON'
import os, re, statistics, subprocess, sys

program, rounds, *more = sys.argv[1:]
# 50 MB of gradients. A rank's samples take it about a third of a second.
settings = dict(width=512, layers=4, context=32, batch=4, every=4, steps=12, text="docs")
settings.update(argument.split("=") for argument in more)
own = int(settings["batch"]) // 2
cache = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
torch = f"{cache}/spark-ccl/torch/bin"
has_torch = os.path.exists(f"{torch}/torchrun")


def command(words, **changed):
    return words + [f"{name}={value}" for name, value in {**settings, **changed}.items()]


def ours(**changed):
    return command([program], **changed)


def theirs(launcher, **changed):
    return command([f"{torch}/{launcher[0]}", *launcher[1:], "benches/training-ddp.py"], **changed)


TWO = ["torchrun", "--nproc-per-node", "2"]
alone, both = dict(batch=own), {}
KINDS = {"spark-ccl, one rank alone": [ours(ranks=1, **alone)],
         "spark-ccl, two that do not communicate": [ours(ranks=1, **alone)] * 2,
         "spark-ccl, two ranks": [ours(ranks=2)],
         "spark-ccl, two ranks, ZeRO-1": [ours(ranks=2, sharded=1)]}
if has_torch:
    KINDS.update({"PyTorch, one rank alone": [theirs(["python"], **alone)],
                  "PyTorch, two that do not communicate": [theirs(["python"], **alone)] * 2,
                  "PyTorch, two ranks, DDP over gloo": [theirs(TWO)]})


def run(commands):
    """Milliseconds of a step, percent of it exposed, and what the end says. Without the first
    progress line, in which caches and links are cold."""
    started = [subprocess.Popen(it, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
               for it in commands]
    texts = [process.communicate(timeout=120) for process in started]
    for process, (_, errors) in zip(started, texts):
        if process.returncode:
            raise SystemExit(errors)
    lines = [line for text, _ in texts
             for line in re.findall(r"step .* samples/s.*", text)[1:]]
    speeds = [float(re.search(r"([\d.]+) samples/s", line)[1]) for line in lines]
    exposed = [float(it) for line in lines for it in re.findall(r"([\d.]+) % exposed", line)]
    batch = int(commands[0][[it.startswith("batch=") for it in commands[0]].index(True)][6:])
    [state] = re.findall(r"([\d.]+) MB here", texts[0][0]) or [""]
    share = statistics.mean(exposed) if exposed else None
    return 1000 * batch / statistics.harmonic_mean(speeds), share, state


load = os.getloadavg()[0]
measured = {kind: [] for kind in KINDS}
for _ in range(int(rounds)):
    for kind, commands in KINDS.items():
        measured[kind].append(run(commands))

print("| program | ms of a step | spread | efficiency | exposed | MB of optimizer state |")
print("|---|---|---|---|---|---|")
for kind, runs in measured.items():
    times = [time for time, _, _ in runs]
    time = statistics.median(times)
    apart = kind.split(",")[0] + ", two that do not communicate"
    is_pair = "two ranks" in kind
    pairs = zip(measured[apart], runs)
    shown = statistics.median(100 * base[0] / own[0] for base, own in pairs)
    efficiency = f"{shown:.1f} %" if is_pair else ""
    exposed = [share for _, share, _ in runs if share is not None]
    part = statistics.median(exposed) if exposed and is_pair else None
    blocked = "" if part is None else f"{part:.1f} %, {part * time / 100:.1f} ms"
    spread = 100 * (max(times) - min(times)) / time
    print(f"| {kind} | {time:.1f} | {spread:.0f} % | {efficiency} | {blocked} | {runs[0][2]} |")
print(f"\nMedians of {rounds} rounds in turns, load average before {load:.1f}.")
if not has_torch:
    print("PyTorch is not here: tests/torch.sh fetches it.", file=sys.stderr)
PYTHON
