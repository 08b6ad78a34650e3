"""elastic_chaos.py [--minutes M] [--seed S]: runs whose ranks join and leave at random.

Each run of examples/elastic trains under data, zero or diloco in turn. While it trains, processes join it and ranks
leave it, at random. The recorded sequence of memberships, replayed with threads and checkpoints, must end in the same
state. The last line counts what has happened; the exit code is 1 if a state was wrong or a run did not end.
"""

import argparse
import collections
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PROGRAM = os.path.join(os.environ.get("TRIREME_BINARY_DIR", ""), "examples", "elastic")
STEPS = 200
MOST = 4  # ranks
MOST_CHANGES = 10  # of a run; then it is left alone
LIMIT = 120  # seconds of a run


def clean(**variables):
    launchers = "(OMPI|PMI|PMIX|SLURM|TRIREME|MPI)_"
    return {key: value for key, value in os.environ.items() if not re.match(launchers, key)} | variables


class trial:
    """One run: its processes, and what has become of them."""

    def __init__(self, folder, strategy, draw, number):
        self.folder = os.path.join(folder, "run%d" % number)
        self.strategy = strategy
        self.draw = draw
        self.job = "chaos.%d.%d" % (os.getpid(), number)
        self.options = ["--strategy", strategy, "--steps", str(STEPS), "--save-every", "50"]
        self.unit = 2 if strategy == "diloco" else 1
        self.ranks = []
        self.joins = []   # seconds from the start of a process to its first step
        self.lost = 0     # processes that came too late
        self.leaving = set()  # have been asked to

    def start(self, rank=None, size=None):
        where = clean() if rank is None else clean(TRIREME_RANK=str(rank), TRIREME_SIZE=str(size), TRIREME_JOB=self.job)
        command = [PROGRAM, self.folder] + self.options + ["--pause", "4"] + (["--join"] if rank is None else [])
        self.ranks.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=where,
                                           text=True))

    def living(self):
        return [each for each in self.ranks if each.poll() is None]

    def disturb(self, counts):
        living = [each for each in self.living() if each.pid not in self.leaving]
        if len(living) <= self.unit:
            what = "join"
        elif len(living) >= MOST:
            what = "leave"
        else:
            what = self.draw.choice(("join", "leave"))
        for _ in range(self.unit):
            if what == "join":
                self.start()
            else:
                one = self.draw.choice([each for each in living if each.pid not in self.leaving])
                self.leaving.add(one.pid)
                one.send_signal(signal.SIGTERM)
        counts[what] += self.unit

    def run(self, counts):
        first = self.unit * self.draw.choice((1, 2))
        for rank in range(first):
            self.start(rank, first)
        end = time.monotonic() + LIMIT
        changes = 0
        while self.living():
            time.sleep(self.draw.uniform(0.15, 0.5))
            if time.monotonic() > end:
                for each in self.living():
                    each.kill()
                return "did not end within %d s" % LIMIT
            over = os.path.exists(os.path.join(self.folder, "members", "ended"))
            if self.living() and not over and changes < MOST_CHANGES:
                self.disturb(counts)
                changes += 1
        state, steps = None, 0
        for each in self.ranks:
            out, err = each.communicate()
            if found := re.search(r"^state (\w+)$", out, re.MULTILINE):
                state = found[1]
                steps = int(re.search(r"^(\d+) steps", out, re.MULTILINE)[1])
            if found := re.search(r"^joined: ([\d.]+) s", out, re.MULTILINE):
                self.joins.append(float(found[1]))
            if each.returncode:
                if "has ended, so there is nothing to join" not in err:
                    return "a rank has ended with %d: %s" % (each.returncode, err.strip())
                self.lost += 1
        if state is None:
            return "no rank has printed the state"
        again = subprocess.run([PROGRAM, self.folder, "--replay", "--until", str(steps)] + self.options,
                               capture_output=True, text=True, env=clean(), timeout=LIMIT, check=False)
        if not re.search("^state %s$" % state, again.stdout, re.MULTILINE):
            return "state %s, but replayed: %s%s" % (state, again.stdout, again.stderr)
        return None

    def memberships(self):
        with open(os.path.join(self.folder, "members", "memberships.jsonl"), encoding="utf-8") as file:
            return [json.loads(line) for line in file]


def main():
    parser = argparse.ArgumentParser(prog="elastic_chaos.py")
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--runs", type=int, default=0, help="as many runs instead")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    given = parser.parse_args()
    if not os.path.exists(PROGRAM):
        print("skipped:", PROGRAM, "is not built")
        sys.exit(77)
    print("seed %d" % given.seed, flush=True)
    draw = random.Random(given.seed)
    folder = tempfile.mkdtemp(prefix="elastic.")
    until = time.monotonic() + 60 * given.minutes
    counts, runs, changes, waits, joins = collections.Counter(), 0, 0, [], []
    wrong = []
    try:
        while runs < given.runs if given.runs else time.monotonic() < until:
            one = trial(folder, ("data", "zero", "diloco")[runs % 3], draw, runs)
            problem = one.run(counts)
            runs += 1
            all_of_it = one.memberships()
            changes += len(all_of_it) - 1
            waits += [each["seconds"] for each in all_of_it[1:] if each["from"] == "memory"]
            joins += one.joins
            print("%-6s ranks %s: %s" % (one.strategy, " ".join(
                "%d%s" % (each["ranks"], "" if each["from"] == "memory" else "*") for each in all_of_it),
                                         problem or "the same state when replayed"), flush=True)
            if problem:
                wrong.append(problem)
            else:
                shutil.rmtree(one.folder)
    finally:
        if not wrong:
            shutil.rmtree(folder, ignore_errors=True)
    waits.sort()
    joins.sort()
    if waits:
        print("a change took %.3f s (median), %.3f s at most" % (waits[len(waits) // 2], waits[-1]))
    if joins:
        print("from the start of a process to its first step %.3f s (median), %.3f s at most" %
              (joins[len(joins) // 2], joins[-1]))
    print("%d runs, %d changes of membership, %s: %d wrong" %
          (runs, changes, ", ".join("%d %s" % (counts[what], word) for what, word in
                                    (("join", "joins"), ("leave", "leaves"))), len(wrong)))
    sys.exit(1 if wrong else 0)


main()
