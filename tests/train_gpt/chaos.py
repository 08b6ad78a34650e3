"""chaos.py [--minutes M | --kills N] [--seed S]: runs that are disturbed at random, and must end as if they had been
left alone.

Each run has a strategy, a number of ranks, and threads or MPI. While it trains, it or one of its ranks is killed
(SIGKILL) or stands still for a while (SIGSTOP), or its disk is full for a while; between two attempts a file of its
newest checkpoint is cut or removed, or has a bit flipped. --resume=auto goes on. In the end its state must be that of
the same run left alone.

--minutes M: what is trained, and what happens to it, is drawn at random, for M minutes.
--kills N:   only kills, of all pairs of a strategy and a communicator in turn, until there were N, and each pair has
             had one at least.
The last line but one counts kills by what was trained; the last line counts all; the exit code is 1 if a state was
wrong or a run did not end. Disks are filled only where a file system can be mounted (as root).
"""

import argparse
import collections
import itertools
import signal
import time

from runs import *

STEPS = 1000
RUN = {"steps": STEPS, "save_every": 25, "layers": 2, "reproducible": None}
STRATEGIES = [(1, "data"), (2, "data"), (3, "data"), (2, "zero1"), (3, "zero2"), (2, "zero3"), (4, "zero3"),
              (2, "tensor"), (2, "sequence"), (2, "context"), (2, "context:ulysses"), (2, "expert"),
              (2, "pipeline=2:1f1b"), (2, "pipeline=2:zbv"), (2, "diloco:8"), (2, "parameter_server:1"),
              (4, "data=2,tensor=2"), (4, "zero1=2,pipeline=2:interleaved")]
OPTIONS = {"expert": {"experts": 4, "experts_a_token": 2}}
MOVING = [(1, "data"), (2, "data"), (4, "data"), (2, "zero1"), (2, "zero2"), (4, "zero3"), (2, "pipeline=2:1f1b")]
MOST_FAULTS = 6  # of a run; then it is left alone


class small_disk:
    """A file system of its own for the runs, which can be filled."""

    def __init__(self, path):
        os.makedirs(path)
        self.path = path
        self.mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", path],
                                      capture_output=True, check=False).returncode == 0
        if not self.mounted:
            print("no file system can be mounted here, so no disk is filled", flush=True)

    def fill(self, seconds):
        ballast = os.path.join(self.path, "ballast")
        try:
            with open(ballast, "wb", buffering=0) as file:
                while file.write(bytes(1 << 16)):
                    pass
        except OSError:
            pass
        time.sleep(seconds)
        os.remove(ballast)

    def close(self):
        if self.mounted:
            subprocess.run(["umount", "-l", self.path], check=False)


def below(pid):
    """The ranks of mpirun, or the program itself."""
    try:
        return children(pid) or [pid]
    except OSError:
        return [pid]


def damage(name, draw, counts):
    """Of the newest checkpoint, if there is one before it."""
    steps = checkpoints(name)
    if len(steps) < 2:
        return
    folder = "runs/%s/checkpoint/%s" % (name, steps[-1])
    path = os.path.join(folder, draw.choice(sorted(os.listdir(folder))))
    how = draw.choice(("cut", "flipped", "removed"))
    size = os.path.getsize(path)
    if how == "removed":
        os.remove(path)
    elif how == "cut":
        os.truncate(path, draw.randrange(size))
    else:
        with open(path, "r+b") as file:
            file.seek(draw.randrange(size))
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 1 << draw.randrange(8)]))
    counts[how] += 1


class subject:
    """What is trained: a layout, or several that have the same bits, as threads or under MPI."""

    def __init__(self, layouts, mpi):
        moving = len(layouts) > 1
        ranks, parallel = layouts[0]
        self.layouts = layouts
        self.mpi = mpi
        self.options = RUN | OPTIONS.get(parallel, {}) | {"reproducible": True if moving else None}
        self.what = "reproducible, any ranks" if moving else "%s on %d" % (parallel, ranks)

    def __str__(self):
        return "%s, %s" % (self.what, "MPI" if self.mpi else "threads")

    def reference(self):
        """The state hash of this run left alone, as threads."""
        ranks, parallel = self.layouts[0]
        out = train("alone", ranks, parallel=parallel, **self.options)["state_hash"]
        shutil.rmtree("runs/alone")
        return out


class anything:
    """Draws what is trained and what happens to it, for a while."""

    def __init__(self, draw, minutes):
        self.draw = draw
        self.until = time.monotonic() + 60 * minutes

    def subjects(self):
        while time.monotonic() < self.until:
            mpi = HAS_MPI and self.draw.random() < 0.4
            moving = self.draw.random() < 0.3
            yield subject(MOVING if moving else [self.draw.choice(STRATEGIES)], mpi)

    def most_faults(self):
        return MOST_FAULTS

    def fault(self):
        return self.draw.choice(("kill", "kill", "stop", "fill"))

    def wait(self, name, trained, process, since):
        time.sleep(self.draw.uniform(0.02, 0.6 + 0.5 * trained.mpi))

    def spoils(self):
        return self.draw.random() < 0.5


class only_kills:
    """All pairs in turn, most of them killed after this attempt's first step."""

    def __init__(self, draw, kills, struck):
        self.draw = draw
        self.kills = kills
        self.struck = struck
        self.visits = 0
        communicators = (False, True) if HAS_MPI else (False,)
        self.pairs = [subject(layouts, mpi) for layouts in [[each] for each in STRATEGIES] + [MOVING]
                      for mpi in communicators]

    def left(self):
        return max(self.kills - sum(self.struck.values()), 0)

    def subjects(self):
        for each in itertools.cycle(self.pairs):
            if self.left() == 0 and all(self.struck[str(pair)] for pair in self.pairs):
                return
            if self.visits > 10 * len(self.pairs) + self.kills:  # runs that end before they are killed
                expect(False, "only %d kills in %d runs" % (sum(self.struck.values()), self.visits))
                return
            self.visits += 1
            yield each

    def most_faults(self):
        """Of this run: its share of those that are left, so that all pairs get about as many."""
        pairs_left = len(self.pairs) - (self.visits - 1) % len(self.pairs)
        return max(1, min(MOST_FAULTS, -(-self.left() // pairs_left)))

    def fault(self):
        return "kill"

    def wait(self, name, trained, process, since):
        if self.draw.random() < 0.75:
            wait_for(lambda: heartbeat(name)["phase"] == "training" and heartbeat(name)["time"] > since, process)
            time.sleep(self.draw.uniform(0, 0.6))
        else:
            time.sleep(self.draw.uniform(0.02, 0.6 + 0.5 * trained.mpi))

    def spoils(self):
        return False


def disturbed(name, draw, disk, counts, struck, trained, plan):
    """Runs and disturbs until the run ends by itself: (exit code, stderr)."""
    faults = 0
    most_faults = plan.most_faults()
    while True:
        ranks, parallel = draw.choice(trained.layouts)
        since = time.time()
        process = start(name, ranks, mpi=trained.mpi,
                        **({"resume=auto": True, "parallel": parallel} | trained.options))
        counts["attempts"] += 1
        killed = False
        while faults < most_faults and not killed:
            plan.wait(name, trained, process, since)
            if process.poll() is not None:
                break
            faults += 1
            fault = plan.fault()
            victim = draw.choice(below(process.pid)) if trained.mpi else process.pid
            if fault == "kill":
                beat = heartbeat(name)
                counts["killed_in_training"] += beat["phase"] == "training" and beat["time"] > since
                send_signal(victim, signal.SIGKILL)
                counts["killed"] += 1
                struck[str(trained)] += 1
                killed = True
            elif fault == "stop":
                send_signal(victim, signal.SIGSTOP)
                time.sleep(draw.uniform(0.05, 1))
                send_signal(victim, signal.SIGCONT)
                counts["stopped"] += 1
            elif disk.mounted:
                disk.fill(draw.uniform(0.05, 0.5))
                counts["filled"] += 1
        try:
            _, err = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return -1, "it hung"
        if process.returncode == 0 or faults >= most_faults and not killed:
            if process.returncode != 0 and (b"no space left" in err or b"another process trains here" in err):
                time.sleep(0.2)  # it ended while the disk was full, or a killed rank was not quite gone
                continue
            return process.returncode, err.decode(errors="replace")
        if plan.spoils():
            damage(name, draw, counts)


def chaos(seed, minutes=1, kills=None):
    """Whether all went well."""
    draw = random.Random(seed)
    print("--seed %d" % seed, flush=True)
    folder = work_folder()
    disk = small_disk("runs")
    counts = dict.fromkeys(("pairs", "pairs_killed", "runs", "attempts", "killed", "killed_in_training", "stopped",
                            "filled", "cut", "flipped", "removed", "wrong_states", "not_ended"), 0)
    references, struck = {}, collections.Counter()
    plan = anything(draw, minutes) if kills is None else only_kills(draw, kills, struck)
    counts["pairs"] = len(only_kills(draw, 0, struck).pairs)
    try:
        for trained in plan.subjects():
            if trained.what not in references:
                references[trained.what] = trained.reference()
            counts["runs"] += 1
            code, err = disturbed("run", draw, disk, counts, struck, trained, plan)
            if code != 0:
                counts["not_ended"] += 1
                expect(False, "%s: exit code %d: %s" % (trained, code, err))
            elif summary("run")["state_hash"] != references[trained.what]:
                counts["wrong_states"] += 1
                expect(False, "%s: another state" % trained)
            for left in glob.glob("runs/run*"):
                shutil.rmtree(left)
        counts["pairs_killed"] = len(struck)
        print(json.dumps(dict(sorted(struck.items()))))
        print(json.dumps(counts), flush=True)
    finally:
        disk.close()
    if not failures:
        shutil.rmtree(folder, ignore_errors=True)
    return not failures and counts["runs"] > 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=1)
    length.add_argument("--kills", type=int)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    given = parser.parse_args()
    if given.kills is not None and given.kills < 1:
        parser.error("--kills takes a number of at least 1")
    sys.exit(0 if chaos(given.seed, given.minutes, given.kills) else 1)
