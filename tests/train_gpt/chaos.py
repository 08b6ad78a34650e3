"""chaos.py [--minutes M] [--seed S]: runs that are disturbed at random, and must end as if they had been left alone.

Each run has a strategy, a number of ranks, and threads or MPI, drawn at random. While it trains, it or one of its ranks
is killed (SIGKILL) or stands still for a while (SIGSTOP), or its disk is full for a while; between two attempts a file
of its newest checkpoint is cut or removed, or has a bit flipped. --resume=auto goes on. In the end its state must be
that of the same run left alone. The last line but one counts kills by what was trained; the last line counts all; the
exit code is 1 if a state was wrong or a run did not end.
Disks are filled only where a file system can be mounted (as root).
"""

import argparse
import collections
import signal
import time

from runs import *

STEPS = 1000
RUN = {"steps": STEPS, "save_every": 25, "layers": 2, "reproducible": None}
STRATEGIES = [(1, "data"), (2, "data"), (3, "data"), (2, "zero1"), (3, "zero2"), (2, "zero3"), (4, "zero3"),
              (2, "tensor"), (2, "sequence"), (2, "context"), (2, "pipeline=2:1f1b"), (2, "pipeline=2:zbv"),
              (4, "data=2,tensor=2"), (4, "zero1=2,pipeline=2:interleaved")]
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


def signalled(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def whole_checkpoints(name):
    try:
        return sorted(step for step in os.listdir("runs/%s/checkpoint" % name) if step.startswith("step-"))
    except FileNotFoundError:
        return []


def damage(name, draw, counts):
    """Of the newest checkpoint, if there is one before it."""
    steps = whole_checkpoints(name)
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


def disturbed(name, draw, disk, counts, kills, mpi, layouts, options):
    """Runs and disturbs until the run ends by itself: (exit code, stderr). kills() is called for each kill."""
    faults = 0
    while True:
        ranks, parallel = draw.choice(layouts)
        process = start(name, ranks, mpi=mpi, **({"resume=auto": True, "parallel": parallel} | options))
        counts["attempts"] += 1
        killed = False
        while faults < MOST_FAULTS and not killed:
            time.sleep(draw.uniform(0.02, 0.6 + 0.5 * mpi))
            if process.poll() is not None:
                break
            faults += 1
            fault = draw.choice(("kill", "kill", "stop", "fill"))
            victim = draw.choice(below(process.pid)) if mpi else process.pid
            if fault == "kill":
                signalled(victim, signal.SIGKILL)
                counts["killed"] += 1
                kills()
                killed = True
            elif fault == "stop":
                signalled(victim, signal.SIGSTOP)
                time.sleep(draw.uniform(0.05, 1))
                signalled(victim, signal.SIGCONT)
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
        if process.returncode == 0 or faults >= MOST_FAULTS and not killed:
            if process.returncode != 0 and (b"no space left" in err or b"another process trains here" in err):
                time.sleep(0.2)  # it ended while the disk was full, or a killed rank was not quite gone
                continue
            return process.returncode, err.decode(errors="replace")
        if draw.random() < 0.5:
            damage(name, draw, counts)


def chaos(minutes, seed):
    """Whether all went well."""
    draw = random.Random(seed)
    print("--seed %d" % seed, flush=True)
    folder = work_folder()
    disk = small_disk("runs")
    counts = dict.fromkeys(("runs", "attempts", "killed", "stopped", "filled", "cut", "flipped", "removed",
                            "wrong_states", "not_ended"), 0)
    references, struck = {}, collections.Counter()
    until = time.monotonic() + 60 * minutes
    try:
        while time.monotonic() < until:
            mpi = HAS_MPI and draw.random() < 0.4
            moving = draw.random() < 0.3
            layouts = MOVING if moving else [draw.choice(STRATEGIES)]
            options = RUN | {"reproducible": True if moving else None}
            what = "reproducible, any ranks" if moving else "%s on %d" % (layouts[0][1], layouts[0][0])
            if what not in references:
                ranks, parallel = layouts[0]
                references[what] = train("alone", ranks, parallel=parallel, **options)["state_hash"]
                shutil.rmtree("runs/alone")
            counts["runs"] += 1
            named = "%s, %s" % (what, "MPI" if mpi else "threads")
            code, err = disturbed("run", draw, disk, counts, lambda: struck.update([named]), mpi, layouts, options)
            if code != 0:
                counts["not_ended"] += 1
                expect(False, "%s: exit code %d: %s" % (named, code, err))
            elif summary("run")["state_hash"] != references[what]:
                counts["wrong_states"] += 1
                expect(False, "%s: another state" % named)
            for left in glob.glob("runs/run*"):
                shutil.rmtree(left)
        print(json.dumps(dict(sorted(struck.items()))))
        print(json.dumps(counts), flush=True)
    finally:
        disk.close()
    if not failures:
        shutil.rmtree(folder, ignore_errors=True)
    return not failures and counts["runs"] > 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    given = parser.parse_args()
    sys.exit(0 if chaos(given.minutes, given.seed) else 1)
