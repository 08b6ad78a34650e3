#!/usr/bin/env python3
"""scripts/benchmark collectives [options]

Collectives on trireme's communicators, compared with Open MPI, MPICH, Gloo and the limit of memory: a table with
nccl-tests' columns, then ratios. All communicators are started, sleep, and alternate on the same machine: in each
round each makes calls for some milliseconds (large messages: one), and the first one changes from round to round.
`time` is that of the slowest rank in the best round; `median` is over all rounds. Each first call is checked.

  --operation LIST      of all_reduce,reduce_scatter,all_gather,all_to_all,broadcast (default: all)
  --communicator LIST   of those named below (default: all that are available)
  --ranks LIST          default 2,4,8; one per core if there are as many cores
  --type LIST           of f32,bf16 (default f32)
  --min-bytes N --max-bytes N --factor N    sizes, optionally with K, M or G (default 4 to 256M, times 4)
  --rounds N            at least N rounds (default 9)
  --json [FILE]         write one JSON object per row to FILE, or print them instead of the table (with the table's
                        header as comments on standard error)
  --two-hosts           ranks on two hosts connected by a link of 1 Gbit/s (scripts/two-hosts): messages, Open MPI,
                        MPICH and Gloo, 1M to 64M, 2 ranks
  --quick               a few sizes with 2 ranks in 3 rounds: a test of the benchmark, not a comparison
"""

# targets: benchmark_collectives
# needs: mpi mpich gloo iproute
import argparse
import json
import math
import os
import pathlib
import platform
import re
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

OPERATIONS = ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"]
ELEMENT_BYTES = {"f32": 4, "bf16": 2}
PATIENCE = 120  # seconds for one turn


def bytes_of(text):
    number, unit = re.fullmatch(r"(\d+)([KMG]?)(?:iB|B)?", text).groups()
    return int(number) << {"": 0, "K": 10, "M": 20, "G": 30}[unit]


def readable(count):
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << shift and count % (1 << shift) == 0:
            return f"{count >> shift} {unit}"
    return f"{count} B"


def bus_factor(operation, ranks):
    """The factor from algbw to the bandwidth of the wire, as in nccl-tests."""
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return 1 if operation == "broadcast" else (ranks - 1) / ranks


class Lost(Exception):
    pass


class Player:
    """One communicator: its processes, and the pipes to wake them by."""

    def __init__(self, name, ranks, commands, environment):
        self.name, self.ranks, self.lacks, self.lost = name, ranks, set(), None
        self.folder = tempfile.mkdtemp(prefix="collectives-")
        for pipe in [*map(str, range(ranks)), "out"]:
            os.mkfifo(os.path.join(self.folder, pipe))
        # Opened for both directions, so that opening does not wait; the ranks see the end when this process ends.
        self.turns = [os.open(f"{self.folder}/{rank}", os.O_RDWR) for rank in range(ranks)]
        self.out = os.open(f"{self.folder}/out", os.O_RDWR | os.O_NONBLOCK)
        self.rest = b""
        self.errors = open(f"{self.folder}/errors", "w+", encoding="utf-8")
        self.processes = [
            subprocess.Popen([part.replace("FOLDER", self.folder) for part in command], stdin=subprocess.DEVNULL,
                             stdout=self.errors, stderr=self.errors, start_new_session=True,
                             env={**environment, **{k: v.replace("FOLDER", self.folder) for k, v in extra.items()}})
            for command, extra in commands
        ]

    def lines(self):
        deadline = time.monotonic() + PATIENCE
        while True:
            while b"\n" in self.rest:
                line, self.rest = self.rest.split(b"\n", 1)
                yield line.decode()
            if select.select([self.out], [], [], 0.5)[0]:
                self.rest += os.read(self.out, 65536)
            elif any(process.poll() is not None for process in self.processes):
                self.errors.seek(0)
                last = [line for line in self.errors.read().splitlines() if line.strip()]
                raise Lost("it ended: " + (last[0] if last else "without a word"))
            elif time.monotonic() > deadline:
                raise Lost(f"no answer for {PATIENCE} s")

    def turn(self, operation, kind, size, calls, rounds, keep):
        """Microseconds of a call in each round, of the slowest rank; "lacks" if it has no such call, or "wrong"."""
        order = f"{operation} {kind} {size} {calls} {rounds} {int(keep)}\n".encode()
        for pipe in self.turns:
            os.write(pipe, order)
        answers = []
        for line in self.lines():
            words = line.split()
            if words[1] == "failed:":
                raise Lost(line.partition("failed: ")[2])
            answers.append(words[1:])
            if len(answers) == self.ranks:
                break
        for answer in answers:
            if answer[0] in ("lacks", "wrong"):
                return answer[0]
        return [max(map(float, times)) for times in zip(*answers)]

    def end(self):
        for pipe in (*self.turns, self.out):
            os.close(pipe)
        deadline = time.monotonic() + 10
        for process in self.processes:
            try:
                process.wait(max(0.1, deadline - time.monotonic()) if self.lost is None else 0.1)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        self.errors.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Machine:
    """Where the programs are, and how each communicator is started."""

    def __init__(self, programs, two_hosts):
        self.programs, self.two_hosts = pathlib.Path(programs), two_hosts
        self.cores = len(os.sched_getaffinity(0))
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        # Open MPI as it is configured, whatever the caller's shell says, but for the line between two hosts.
        kept = {k: v for k, v in os.environ.items() if two_hosts or not k.startswith("OMPI_MCA_")}
        self.environment = {**kept, **root}
        # Pinned by themselves: threads and Gloo know no launcher, and two hosts share the cores.
        if not two_hosts:
            self.environment["OMPI_MCA_plm"] = "isolated"

    def commands(self, name, ranks):
        """[(command, environment)], or a sentence that says what is missing."""
        program = str(self.programs / {
            "memory_limit": "collectives_memory", "mpi": "collectives_mpi", "mpi_foreign": "collectives_mpi",
            "mpi_messages": "collectives_mpi"}.get(name, "collectives_" + name))
        if not os.access(program, os.X_OK):
            return "its program was not built (is its library here?)"
        pinned = ranks <= self.cores
        pin = {"TRIREME_PIN": "1"} if pinned else {}
        if name in ("threads", "memory_limit"):
            return [([program, "FOLDER", str(ranks)], pin)]
        if name == "gloo":
            pin = {}  # its own thread needs a core too
            command = lambda rank: [program, "FOLDER", str(rank), str(ranks)]
            if not self.two_hosts:
                return [(command(rank), pin) for rank in range(ranks)]
            return [(["on-host", str(rank % 2), *command(rank), "eth0"], pin) for rank in range(ranks)]
        if name == "processes":
            return [([program, "FOLDER"], {**pin, "TRIREME_RANK": str(rank), "TRIREME_SIZE": str(ranks),
                                           "TRIREME_RENDEZVOUS": "file:FOLDER/meeting"}) for rank in range(ranks)]
        arguments = [program, "FOLDER"]
        if name == "mpich":
            if not shutil.which("mpirun.mpich"):
                return "mpirun.mpich was not found"
            binding = ["-bind-to", "core"] if pinned and not self.two_hosts else []
            return [(["mpirun.mpich", "-n", str(ranks), *binding, *arguments], pin)]
        launcher = shutil.which("mpirun.openmpi") or shutil.which("mpirun")
        if not launcher:
            return "mpirun was not found"
        if name != "openmpi":
            arguments.append({"mpi": "own", "mpi_foreign": "foreign", "mpi_messages": "messages"}[name])
        if self.two_hosts:
            binding = []
        else:
            binding = ["--bind-to", "core"] if pinned else ["--bind-to", "none", "--oversubscribe"]
        return [([launcher, "-n", str(ranks), *binding, *arguments], pin)]

    def describe(self):
        """The conditions of the measurement."""
        def first(*command):
            try:
                run = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
                return (run.stdout or run.stderr).strip().splitlines()[0].strip() if run.returncode == 0 else "none"
            except (OSError, IndexError, subprocess.TimeoutExpired):
                return "none"
        cpu = platform.processor()
        for line in open("/proc/cpuinfo"):
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
        cache = {}
        for path in (self.programs.parent / "CMakeCache.txt",):
            if path.exists():
                for line in path.read_text(encoding="utf-8").splitlines():
                    key, _, value = line.partition("=")
                    cache[key.partition(":")[0]] = value
        flags = " ".join(f"{cache.get('CMAKE_CXX_FLAGS', '')} {cache.get('CMAKE_CXX_FLAGS_RELEASE', '')}".split())
        compiler = cache.get("CMAKE_CXX_COMPILER", "c++")
        source = os.environ.get("TRIREME_SOURCE_DIR", ".")
        mpich = first("mpichversion")
        commit = first("git", "-C", source, "rev-parse", "--short", "HEAD")
        yield f"date      {time.strftime('%Y-%m-%d %H:%M')}, commit {commit}"
        yield f"machine   {cpu}, {self.cores} cores, {memory} GiB, load {os.getloadavg()[0]:.2f} before the run"
        yield f"compiler  {first(compiler, '--version')}, {flags or 'flags unknown'}"
        open_mpi = first("mpirun.openmpi" if shutil.which("mpirun.openmpi") else "mpirun", "--version")
        gloo = first("dpkg-query", "-W", "-f", "${Version}", "libgloo-dev")
        yield f"peers     Open MPI: {open_mpi}; MPICH: {' '.join(mpich.split())}; Gloo: {gloo}, TCP"
        if self.two_hosts:
            yield f"hosts     two, joined by a line of {os.environ['TRIREME_TWO_HOSTS']}; ranks in turn on both"
        yield ("pinning   one rank a core where ranks <= cores (mpirun --bind-to core), otherwise as the system likes "
               "(mpirun --oversubscribe)")


def available_memory():
    for line in open("/proc/meminfo"):
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) << 10
    return 4 << 30


def measure(players, operation, kind, size, options):
    """{communicator: microseconds of all rounds}."""
    times, calls, wrong = {}, {}, set()
    # Where not all can keep their buffers, a turn makes them anew and has three rounds.
    buffers = 2 if operation == "all_to_all" else 1
    need = sum(player.ranks for player in players) * buffers * size
    keep = need < available_memory() // 3
    rounds = 1 if keep else 3

    def take(player, count, measured):
        if player.lost or player.name in wrong or (operation, kind) in player.lacks:
            return
        try:
            found = player.turn(operation, kind, size, count, rounds if measured else 1, keep)
        except Lost as error:
            player.lost = str(error)
            print(f"# {player.name} with {player.ranks} ranks is left out from here on, in {operation} of {size} "
                  f"bytes: {player.lost}", file=sys.stderr)
            times.pop(player.name, None)
            return
        if found == "lacks":
            player.lacks.add((operation, kind))
            return
        if found == "wrong":
            wrong.add(player.name)
            print(f"# {player.name} is left out in {operation} of {size} bytes on {player.ranks} ranks: its result was "
                  "wrong", file=sys.stderr)
            times.pop(player.name, None)
            return
        if measured:
            times.setdefault(player.name, []).extend(found)
        wanted = options.milliseconds * 1000 / max(min(found), 0.01)
        calls[player.name] = int(min(max(wanted, 1), 20000))

    first = 4 if size <= 1 << 16 else 1
    if keep:
        for player in players:
            take(player, first, False)
            if calls.get(player.name, 1) > first:
                take(player, calls[player.name], False)
    for done in range(0, options.rounds, rounds):
        turn = done // rounds % max(1, len(players))
        for player in players[turn:] + players[:turn]:
            take(player, calls.get(player.name, 1), True)
    if keep:  # the buffers go
        for player in players:
            if player.name in times:
                player.turn(operation, kind, ELEMENT_BYTES[kind] * player.ranks, 1, 1, False)
    return times


CLASSES = [("under 64 KiB", 0, 1 << 16), ("64 KiB to 4 MiB", 1 << 16, (4 << 20) + 1),
           ("4 to 25 MiB", (4 << 20) + 1, 25 << 20), ("from 25 MiB", 25 << 20, 1 << 62)]
RATIOS = [(f"{name} / {'better MPI' if len(peers) > 1 else peers[0]}", name, peers) for name, peers in (
    ("threads", ["memory_limit"]), ("threads", ["openmpi", "mpich"]), ("threads", ["gloo"]), ("mpi", ["openmpi"]),
    ("mpi", ["mpich"]), ("mpi_foreign", ["openmpi"]), ("mpi_messages", ["openmpi"]), ("processes", ["openmpi"]))]


def shares(rows):
    """On two hosts: busbw as a share of the link's bandwidth in each direction."""
    number, unit = re.fullmatch(r"([\d.]+)([kmg])bit", os.environ["TRIREME_TWO_HOSTS"].lower()).groups()
    line = float(number) * {"k": 1e3, "m": 1e6, "g": 1e9}[unit] / 8e9
    names = list(dict.fromkeys(row["communicator"] for row in rows))
    yield f"busbw as a share of the line's {line * 1e3:g} MB/s in each direction (TCP/IP itself takes 5 %)"
    yield f"{'':16}{'size':>12}" + "".join(f"{name:>14}" for name in names)
    cells = {(row["operation"], row["bytes"], row["communicator"]): row["busbw"] / line for row in rows}
    for operation, size in dict.fromkeys((row["operation"], row["bytes"]) for row in rows):
        found = [cells.get((operation, size, name)) for name in names]
        yield f"{operation:16}{readable(size):>12}" + "".join(
            f"{'-' if it is None else f'{it:.1%}':>14}" for it in found)


def summary(rows):
    """Ratios of bandwidths: how many times as fast as the peer. Geometric mean, and the lowest of the class."""
    best = {}
    for row in rows:
        best[row["operation"], row["type"], row["ranks"], row["bytes"], row["communicator"]] = row["microseconds"]
    yield "times as fast (geometric mean over the sizes of a class; lowest in brackets)"
    yield f"{'':24}{'':16}{'ranks':>6}" + "".join(f"{name:>20}" for name, _, _ in CLASSES)
    for title, ours, theirs in RATIOS:
        groups = {}
        for (operation, kind, ranks, size, name), time_ours in best.items():
            peers = [best[key] for peer in theirs if (key := (operation, kind, ranks, size, peer)) in best]
            if name == ours and peers:
                where = next(i for i, (_, low, high) in enumerate(CLASSES) if low <= size < high)
                groups.setdefault((operation, kind, ranks), {}).setdefault(where, []).append(min(peers) / time_ours)
        for (operation, kind, ranks), classes in groups.items():
            cells = ""
            for i in range(len(CLASSES)):
                if ratios := classes.get(i):
                    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                    cells += f"{f'{mean:.2f} ({min(ratios):.2f})':>20}"
                else:
                    cells += f"{'-':>20}"
            label = operation if kind == "f32" else f"{operation} {kind}"
            yield f"{title:24}{label:16}{ranks:6}{cells}"


def parse():
    parser = argparse.ArgumentParser(usage=__doc__, add_help=True)
    listed = lambda text: [word for word in text.split(",") if word]
    parser.add_argument("--operation", type=listed, default=OPERATIONS)
    parser.add_argument("--communicator", type=listed)
    parser.add_argument("--ranks", type=lambda text: [int(word) for word in listed(text)])
    parser.add_argument("--type", type=listed, default=["f32"])
    parser.add_argument("--min-bytes", type=bytes_of)
    parser.add_argument("--max-bytes", type=bytes_of)
    parser.add_argument("--factor", type=int, default=4)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--milliseconds", type=float, default=2)
    parser.add_argument("--json", nargs="?", const="-")
    parser.add_argument("--two-hosts", action="store_true")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    for name in options.operation:
        if name not in OPERATIONS:
            parser.error(f"there is no operation {name}")
    for name in options.type:
        if name not in ELEMENT_BYTES:
            parser.error(f"there is no type {name}")
    communicators = (["mpi_messages", "openmpi", "mpich", "gloo"] if options.two_hosts else
                     ["memory_limit", "threads", "mpi", "mpi_foreign", "mpi_messages", "processes", "openmpi", "mpich",
                      "gloo"])
    for name in options.communicator or []:
        if name not in communicators:
            parser.error(f"there is no communicator {name}; there are {', '.join(communicators)}")
    options.communicator = options.communicator or communicators
    few = options.quick or options.two_hosts
    options.ranks = options.ranks or ([2] if few else [2, 4, 8])
    options.rounds = options.rounds or (3 if few else 9)
    if options.min_bytes is None:
        options.min_bytes = 1 << 20 if options.two_hosts else 4
    if options.max_bytes is None:
        options.max_bytes = 256 << 10 if options.quick else 64 << 20 if options.two_hosts else 256 << 20
    if options.quick:
        options.factor = max(options.factor, 256)
    if options.factor < 2 or not 1 <= options.min_bytes <= options.max_bytes or min(options.ranks) < 1:
        parser.error("--factor is at least 2, --min-bytes at most --max-bytes, --ranks at least 1")
    return options


def main():
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the players are ended
    source = pathlib.Path(os.environ.get("TRIREME_SOURCE_DIR", pathlib.Path(__file__).resolve().parent.parent))
    programs = os.path.join(os.environ.get("TRIREME_BINARY_DIR", source / "build" / "release"), "benchmarks")
    if options.two_hosts and "TRIREME_TWO_HOSTS" not in os.environ:
        os.execv(source / "scripts" / "two-hosts",
                 ["two-hosts", sys.executable, os.path.abspath(__file__), *sys.argv[1:]])
    machine = Machine(programs, options.two_hosts)
    table = sys.stderr if options.json == "-" else sys.stdout
    file = sys.stdout if options.json == "-" else open(options.json, "w", encoding="utf-8") if options.json else None
    for line in machine.describe():
        print("# " + line, file=table)
    sizes = []
    size = options.min_bytes
    while size <= options.max_bytes:
        sizes.append(size)
        size *= options.factor
    if sizes[-1] != options.max_bytes:
        sizes.append(options.max_bytes)

    rows = []
    for ranks in options.ranks:
        players = []
        for name in options.communicator:
            commands = machine.commands(name, ranks)
            if isinstance(commands, str):
                if ranks == options.ranks[0]:
                    print(f"# {name} is left out: {commands}", file=sys.stderr)
            else:
                players.append(Player(name, ranks, commands, machine.environment))
        try:
            for operation in options.operation:
                for kind in options.type:
                    heading = f"# {operation}, {ranks} ranks"
                    print(f"#\n{heading}\n"
                          f"#{'size':>11}{'count':>12}{'type':>6}{'op':>6}  {'':14}{'time':>12}{'algbw':>9}{'busbw':>9}"
                          f"{'median':>12}\n"
                          f"#{'(B)':>11}{'(elements)':>12}{'':28}{'(us)':>12}{'(GB/s)':>9}{'(GB/s)':>9}{'(us)':>12}",
                          file=table)
                    for wanted in sizes:
                        grain = ranks * ELEMENT_BYTES[kind]  # equal slices
                        size = wanted if operation in ("all_reduce", "broadcast") else -(-wanted // grain) * grain
                        size = -(-size // ELEMENT_BYTES[kind]) * ELEMENT_BYTES[kind]
                        for name, times in measure(players, operation, kind, size, options).items():
                            row = report(name, operation, kind, size, ranks, times, table)
                            rows.append(row)
                            if file:
                                print(json.dumps(row), file=file, flush=True)
        finally:
            for player in players:
                player.end()
    print("#", file=table)
    for line in shares(rows) if options.two_hosts else summary(rows):
        print("# " + line, file=table)
    return 0 if rows else 1


def report(name, operation, kind, size, ranks, times, table):
    best = min(times)
    algbw = size / best * 1e-3
    row = {"communicator": name, "operation": operation, "type": kind, "bytes": size, "ranks": ranks,
           "microseconds": round(best, 3), "algbw": round(algbw, 3),
           "busbw": round(algbw * bus_factor(operation, ranks), 3)}
    op = "sum" if operation in ("all_reduce", "reduce_scatter") else "none"
    print(f"{size:12}{size // ELEMENT_BYTES[kind]:12}{kind:>6}{op:>6}  {name:14}{best:12.2f}{row['algbw']:9.3f}"
          f"{row['busbw']:9.3f}{statistics.median(times):12.2f}", file=table, flush=True)
    return row


if __name__ == "__main__":
    sys.exit(main())
