"""Starts train_gpt with tiny models and reads what it leaves behind. Python 3 without packages."""

import glob
import json
import math
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

BINARIES = os.path.join(os.environ.get("TRIREME_BINARY_DIR", ""), "examples")
THREADS = os.path.join(BINARIES, "train_gpt")
PROCESSES = os.path.join(BINARIES, "train_gpt_mpi")
HAS_MPI = os.path.exists(PROCESSES) and shutil.which("mpirun") is not None
# (with a short text at the end: 240 bytes take a third of the time of ten steps)
TINY = {"layers": 1, "heads": 2, "channels": 32, "context": 32, "dropout": 0.1, "batch": 12, "precision": "fp32",
        "seed": 3, "text": "text.txt", "sample": 8}


def skip(reason):
    print("skipped:", reason)
    sys.exit(77)


def work_folder():
    """An empty folder with a text in it, which becomes the current one. Its path."""
    if not os.path.exists(THREADS):
        skip(THREADS + " is not built")
    folder = tempfile.mkdtemp(prefix="train_gpt.")
    os.chdir(folder)
    os.environ["TMPDIR"] = os.path.join(folder, "temp")  # for mpirun: see support/own_folder.sh
    os.mkdir("temp")
    words = ("The quick brown fox jumps over a lazy dog while rain falls on the hills \u2014 and we sleep in the sun "
             "until the river comes home again \u201cslowly\u201d").split()
    draw = random.Random(1)
    with open("text.txt", "w", encoding="utf-8") as text:
        text.write(" ".join(draw.choice(words) for _ in range(4000)))
    return folder


def command(name, ranks=2, mpi=False, resume=False, **options):
    """The command line of a run of `ranks` ranks; an option given as None is left out, one as True has no value."""
    line = [THREADS, "--ranks", str(ranks)]
    if mpi:
        line = ["mpirun", "-n", str(ranks), "--oversubscribe", PROCESSES]
    line += ["--name", name] + (["--resume"] if resume else [])
    return line + as_arguments(options if resume else TINY | {"steps": 10} | options)


def as_arguments(options):
    line = []
    for key, value in options.items():
        if value is not None:
            line += ["--" + key.replace("_", "-")] + ([] if value is True else [str(value)])
    return line


def one_process(name, **options):
    """The command line of one process of train_gpt_mpi."""
    return [PROCESSES] + command(name, **options)[3:]


def environment():
    return os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def quiet():
    """The same for an mpirun that says nothing of its own when a rank fails; that of Open MPI 5 and MPICH knows no such
    wish."""
    return environment() | {"OMPI_MCA_orte_execute_quiet": "1"}


def without_launcher(**variables):
    """As in a shell without any launcher."""
    launchers = "(OMPI|PMI|PMIX|SLURM|TRIREME|MPI)_"
    return {key: value for key, value in os.environ.items() if not re.match(launchers, key)} | variables


def as_torchrun(name, ranks, port, shell, machines=1, **options):
    """Processes as torchrun starts them in a shell: its agent owns the port."""
    out = []
    for rank in range(ranks):
        here = ranks // machines
        variables = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank % here, "LOCAL_WORLD_SIZE": here,
                     "MASTER_ADDR": "localhost" if machines == 1 else "node0", "MASTER_PORT": port,
                     "TORCHELASTIC_RUN_ID": name, "TORCHELASTIC_RESTART_COUNT": 0,
                     "TORCHELASTIC_USE_AGENT_STORE": "True"}
        out.append(subprocess.Popen(one_process(name, **options), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                    env=shell | {key: str(value) for key, value in variables.items()}))
    return out


def sentences(err):
    """What the program has said in the end, among what mpirun says."""
    return [each for each in err.splitlines() if each.startswith("train_gpt: ")]


class Job(subprocess.Popen):
    """A run, which may be one under mpirun. Open MPI 4's mpirun can lose the end of a rank that is killed early (seen
    once in some hundred programs of MPI_Init and MPI_Allreduce alone): all ranks have ended, and it waits for ever.
    communicate() ends such an mpirun with SIGKILL; ranks that still live are waited for as always."""

    def communicate(self, input=None, timeout=None):
        end = time.monotonic() + (math.inf if timeout is None else timeout)
        had_ranks, ended_since = False, None
        while True:
            left = end - time.monotonic()
            try:
                return super().communicate(input, timeout=max(0.0, min(1.0, left)))
            except subprocess.TimeoutExpired:
                if left <= 0:
                    raise
            living = any(alive(child) for child in children(self.pid))
            had_ranks = had_ranks or living
            if living or not had_ranks:
                ended_since = None
            elif ended_since is None:
                ended_since = time.monotonic()
            elif time.monotonic() > ended_since + 10 and self.args[0] == "mpirun":
                print("%s: all ranks have ended, and mpirun has not" % " ".join(self.args), flush=True)
                self.kill()


def start(*arguments, **options):
    """Starts a run in a process group of its own, so that no signal meant for it reaches the test. Not in a session of
    its own: where Linux schedules by session, one that trains can keep the others waiting for seconds."""
    return Job(command(*arguments, **options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
               preexec_fn=os.setpgrp)


def attempt(*arguments, **options):
    """Runs to the end: (exit code, stdout, stderr)."""
    done = subprocess.run(command(*arguments, **options), capture_output=True, env=environment(), timeout=240)
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def train(name, *arguments, **options):
    """Runs to the end, which must be a good one: the summary."""
    code, out, err = attempt(name, *arguments, **options)
    expect(code == 0, "%s ended with %d: %s" % (command(name, *arguments, **options), code, err))
    return summary(name)


def train_killed(name, ranks=2, mpi=False, **options):
    """Runs to the end, but killed by SIGKILL once a checkpoint is there (after each step one is begun), and resumed:
    the summary, and whether the kill came before the end."""
    process = start(name, ranks, mpi=mpi, save_every=1, **options)
    while process.poll() is None and not checkpoints(name):
        time.sleep(0.001)
    early = process.poll() is None
    if early:
        os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    return train(name, ranks, mpi=mpi, resume=True), early


def summary(name):
    with open("runs/%s/summary.json" % name, encoding="utf-8") as file:
        return json.load(file)


def bytes_of(path):
    with open(path, "rb") as file:
        return file.read()


def content(path):
    """{path: bytes} of all files below. No process may be changing them."""
    return {os.path.join(place, name): bytes_of(os.path.join(place, name))
            for place, _, files in os.walk(path) for name in files}


def tensors(path):
    """A safetensors file of F32 tensors: {name: list of numbers}."""
    content = bytes_of(path)
    length = struct.unpack_from("<Q", content)[0]
    out = {}
    for name, entry in json.loads(content[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "F32", (name, entry)
        begin, end = entry["data_offsets"]
        out[name] = struct.unpack("<%df" % ((end - begin) // 4), content[8 + length + begin : 8 + length + end])
    return out


def weights(name):
    return tensors("runs/%s/model/model.safetensors" % name)


def scalars(name, tag):
    """{step: value} of all event files of a run; a restart voids what was logged from its step on."""
    out = {}
    for path in sorted(glob.glob("runs/%s/events.out.tfevents*" % name), key=os.path.getmtime):
        content = bytes_of(path)
        at = 0
        while at + 12 <= len(content):
            length = struct.unpack_from("<Q", content, at)[0]
            if at + 16 + length > len(content):
                break  # torn by a kill
            event = dict_of(content[at + 12 : at + 12 + length])
            at += 16 + length
            step = event.get(2, [0])[0]
            if 7 in event:
                out = {earlier: value for earlier, value in out.items() if earlier < step}
            for value in (value for whole in event.get(5, []) for value in dict_of(whole).get(1, [])):
                fields = dict_of(value)
                if fields[1][0] == tag.encode():
                    out[step] = struct.unpack("<f", fields[2][0])[0]
    return out


def dict_of(message):
    """A protocol buffer message: {field: [values]}."""
    def varint(at):
        value, shift = 0, 0
        while True:
            byte = message[at]
            value |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                return value, at

    out, at = {}, 0
    while at < len(message):
        key, at = varint(at)
        if key & 7 == 0:
            value, at = varint(at)
        else:
            if key & 7 == 2:
                length, at = varint(at)
            else:
                length = {1: 8, 5: 4}[key & 7]
            value, at = message[at : at + length], at + length
        out.setdefault(key >> 3, []).append(value)
    return out


def distance(one, other, but=lambda name, index, size: False):
    """|one - other| / |other| over all tensors, without the elements that `but` names."""
    difference = norm = 0.0
    assert one.keys() == other.keys()
    for name in one:
        size = len(one[name])
        for index, (a, b) in enumerate(zip(one[name], other[name])):
            if not but(name, index, size):
                difference += (a - b) ** 2
                norm += b * b
    return math.sqrt(difference / norm)


def key_bias(name, index, size):
    """The bias of attention's keys: softmax does not see it, so its true gradient is zero."""
    return name.endswith("attn.c_attn.bias") and size // 3 <= index < 2 * size // 3


def wait_for(what, process, seconds=60):
    """Until what() is true or the process has ended; whether it is true."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if what():
            return True
        if process.poll() is not None:
            return what()
        time.sleep(0.01)
    return False


def children(pid):
    """The processes that one has started: of mpirun its ranks."""
    with open("/proc/%d/task/%d/children" % (pid, pid), encoding="ascii") as file:
        return [int(child) for child in file.read().split()]


def send_signal(pid, number):
    """Whether the process was still there to get it."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def alive(pid):
    """Whether a process has not ended yet (one that has, and that nobody has asked for its exit code, is a zombie)."""
    try:
        with open("/proc/%d/stat" % pid, encoding="ascii", errors="replace") as file:
            return file.read().rsplit(") ", 1)[1][0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def heartbeat(name):
    try:
        with open("runs/%s/heartbeat.json" % name, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return {"step": -1, "phase": "none", "process": 0}


def checkpoints(name):
    """The names of those that are there, the oldest first."""
    return sorted(os.path.basename(path) for path in glob.glob("runs/%s/checkpoint/step-*" % name))


def has_begun(name):
    """Whether the first evaluation of a run is over."""
    try:
        with open("runs/%s/history.json" % name, encoding="utf-8") as file:
            return json.load(file)["held_out_first"] is not None
    except (OSError, ValueError):
        return False


failures = []


def expect(truth, sentence):
    if not truth:
        print("FAILED:", sentence, flush=True)
        failures.append(sentence)
    return truth


def finish(folder):
    if failures:
        print(len(failures), "failed; the runs are in", folder)
        sys.exit(1)
    shutil.rmtree(folder)
