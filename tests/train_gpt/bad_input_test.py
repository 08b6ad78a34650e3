# test-timeout: 600
"""Whatever is wrong with the input is told in one sentence that names it, and what was there before stays as it was."""

from runs import *

folder = work_folder()


def refuses(what, *words, mpi=False, name="kept", variables={}, **options):
    """The program ends with 1 and one sentence with these words, and nothing under runs/ has changed."""
    before = content("runs")
    line = command(name, mpi=mpi, **options)
    done = subprocess.run(line, capture_output=True, env=quiet() | variables, timeout=60)
    told = done.stderr.decode(errors="replace")
    expect(done.returncode == 1, "%s: exit code %d: %s" % (what, done.returncode, told))
    expect(len(sentences(told)) == 1 and (mpi or told.count("\n") == 1), "%s: not one sentence: %s" % (what, told))
    for word in words:
        expect(word in told, "%s: \"%s\" is not in: %s" % (what, word, told))
    expect(content("runs") == before, what + ": files under runs/ have changed")


train("kept", stop_after=5)
wire = {} if not HAS_MPI else {"mpi": True}

# The text.
os.mkdir("folder")
with open("empty", "w") as file:
    pass
with open("short", "w") as file:
    file.write("forty bytes leave no window to hold out.")
good = bytes_of("text.txt")
with open("latin", "wb") as file:
    file.write(good + "na\u00efve und sch\u00f6n".encode("latin-1"))
refuses("no text", "--text", text=None)
refuses("a text that is not there", "missing.txt", "No such file", text="missing.txt")
refuses("an empty text", "empty", "the file is empty", text="empty")
refuses("a folder", "folder", "directory", text="folder")
refuses("a short text", "short", "context", text="short")
refuses("another encoding at the end", "latin", "byte %d" % (len(good) + 3), "UTF-8", text="latin")
refuses("the same under mpirun", "latin", "UTF-8", text="latin", **wire)
with open("cut", "wb") as file:
    file.write(good + "\u2014".encode()[:2])
train("cut", text="cut", steps=1)  # texts are cut at any byte

# Options.
refuses("no ranks", "--ranks", "at least 1", ranks=0)
refuses("ranks in words", "--ranks", "\"two\"", ranks="two")
refuses("less than no ranks", "--ranks", "-1", "at least 1", ranks=-1)
refuses("too many ranks", "ranks", "5000", ranks=5000)
refuses("an unknown axis", "--parallel", "\"depth\"",
        "data, zero1, zero2, zero3, diloco, parameter_server, tensor, sequence, context, pipeline and expert",
        parallel="data,depth=2")
refuses("a text of fewer than no tokens", "--sample is -1", "at least 0", sample=-1)
refuses("a share of nothing", "--shares", "2:0", "above 0", shares="2:0")
refuses("shares in words", "--shares", "\"most\"", "2:1", shares="most")
refuses("too many shares", "3 weights for 2 ranks", shares="2:1:1")
refuses("shares where they do not work", "zero<1> and zero<2>", shares="2:1", parallel="zero3")
refuses("an axis without a name", "unknown axis \"\"", parallel="data,")
refuses("an unknown schedule", "\"zigzag\"", "gpipe, 1f1b", parallel="pipeline:zigzag")
refuses("a schedule of nothing", "data has no schedule", parallel="data:1f1b")
refuses("an unknown context", "\"zigzag\"", "ring and ulysses", parallel="context:zigzag")
refuses("a degree in words", "\"two\"", "tensor", parallel="tensor=two")
refuses("no degree", "\"0\"", "at least 1", parallel="tensor=0")
refuses("a degree of sequence", "tensor", parallel="tensor=2,sequence=2")
refuses("sequence without tensor", "add tensor", parallel="data=2,sequence")
refuses("two axes of samples", "two axes", "samples", parallel="data=2,zero1=2")
refuses("a pipeline beside zero2", "zero<2>", "use parallel::zero<1>", parallel="zero2,pipeline=2")
refuses("two degrees left out", "data", "tensor", "remaining ranks", parallel="data,tensor")
refuses("another world", "data=2", "tensor=2", "has 2", parallel="data=2,tensor=2")
refuses("the same under mpirun", "data=2", "tensor=2", "has 2", parallel="data=2,tensor=2", **wire)
refuses("a world that is no multiple", "multiple of 2", "has 3", ranks=3, parallel="data,tensor=2")
refuses("more stages than units", "4 stages", "the model has 3", ranks=4, parallel="pipeline")
refuses("more chunks than units", "2 stages of 2 chunks", "the model has 3", parallel="pipeline:zbv")
refuses("more ways than heads", "2 heads", "3 ways", ranks=3, parallel="tensor")
refuses("the same under mpirun", "2 heads", "3 ways", ranks=3, parallel="sequence", **wire)
refuses("positions that are not cut evenly", "6 positions", "multiple of 4", context=6, parallel="context")
refuses("more ways than heads to deal out", "2 heads are not enough", "4 ways", ranks=4, parallel="context:ulysses")
refuses("a balance of parts of samples", "balance", "2 ranks", parallel="context", experts=4, balance=0.01)
refuses("more ways than experts", "2 experts", "3 ranks", ranks=3, parallel="expert", experts=2)
refuses("no period", "\"0\"", "at least 1", parallel="diloco:0")
refuses("a period in words", "\"often\"", "number of steps", parallel="diloco:often")
refuses("diloco beside a server", "diloco", "run state of its own", parallel="diloco,parameter_server=2")
refuses("learners that share gradients", "diloco", "has zero1", parallel="diloco,zero2=2")
refuses("a server in one tree", "--reproducible", "zero1", parallel="parameter_server", reproducible=True)
refuses("a context in one tree", "--reproducible", "context", parallel="context", reproducible=True)
refuses("compression on a mesh", "--compression", "only with", parallel="tensor", compression="bf16")
refuses("three ranks in one tree", "3 ranks", "power of two", ranks=3, micro_batches=9, reproducible=True)
refuses("micro-batches that are not shared evenly", "but 6 of them", "4 ranks", ranks=4, micro_batches=6,
        reproducible=True)
refuses("a schedule in another order", "gpipe", "pipeline:1f1b", parallel="pipeline:gpipe", reproducible=True)
refuses("a compressor in a tree", "compressor", compression="bf16", reproducible=True)
refuses("an unknown precision", "--precision", "\"fp7\"", "fp32, tf32, bf16, fp16, fp8, mxfp8 or nvfp4",
        precision="fp7")
refuses("TF32 on a CPU", "--precision tf32", "--device cuda", "--precision fp32", precision="tf32")
refuses("an unknown compression", "--compression", "\"zip\"", "top_k", compression="zip")
refuses("an unknown option", "--colour", colour="red")
refuses("heads that do not divide", "32 channels", "3 heads", heads=3)
refuses("dropout of everything", "dropout", "1", dropout=1)
refuses("a rate without end", "--rate", "inf", rate="inf")
refuses("a name that is a path", "--name", "a/b", name="a/b")
refuses("the name of the folder above", "--name", "..", name="..")
# Sizes beyond any machine are told before memory is taken for them.
for option, value in (("layers", 10**12), ("channels", 2**40), ("experts", 10**11), ("context", 10**11)):
    refuses("too many " + option, "takes at least", " for the 2 of 2 ranks on this machine, which has", "GB left",
            "--layers", **{option: value})
refuses("more micro-batches than sequences", "--micro-batches is 2147483648", "at most 256", micro_batches=2**31)
refuses("a batch that the loader cannot count", "1099511627776", batch=2**40)
if HAS_MPI:
    world = {"RANK": "0", "WORLD_SIZE": "2147483647", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for ranks, word in (("2147483647", b"takes at least"), ("257", b"at most 256")):
        done = subprocess.run([PROCESSES] + command("kept")[3:], capture_output=True, timeout=60,
                              env=os.environ | world | {"WORLD_SIZE": ranks})
        expect(done.returncode == 1 and done.stderr.count(b"\n") == 1 and ranks.encode() in done.stderr and
               word in done.stderr, "a world of %s ranks: %r" % (ranks, done))
# Words of the environment.
refuses("a level of assertions", "TRIREME_ASSERTIONS is \"bogus\"", "none, light, normal or communication",
        variables={"TRIREME_ASSERTIONS": "bogus"})
refuses("a CPU", "TRIREME_CPU is \"xyz\"", "baseline, avx2, avx512", variables={"TRIREME_CPU": "xyz"})
refuses("a log", "TRIREME_LOG is \"maybe\"", "0 or 1", variables={"TRIREME_LOG": "maybe"})
refuses("a new text without an old one", "--accept-new-text goes with --resume", accept_new_text=True)
refuses("no time to save", "--grace", "at least 1", grace=0)
for line, word in ((["--steps"], "--steps needs a value"), (["steps"], "\"steps\""),
                   (["--reproducible=maybe"], "no or yes")):
    done = subprocess.run([THREADS] + line, capture_output=True)
    expect(done.returncode == 1 and word in done.stderr.decode(), "%s: %r" % (line, done))
if HAS_MPI:
    done = subprocess.run(command("kept", ranks=2, mpi=True) + ["--ranks", "3"], capture_output=True, env=quiet())
    told = sentences(done.stderr.decode())
    expect(done.returncode == 1 and len(told) == 1 and "--ranks is 3" in told[0], repr(done))

# Where the run is to be kept.
with open("runs/file", "w") as file:
    file.write("precious")
os.mkdir("runs/data")
with open("runs/data/web.txt", "w") as file:
    file.write("precious")
refuses("a file in the run's place", "runs/file", "directory", name="file")
refuses("a folder of other things in the run's place", "runs/data", "not a run", name="data")
refuses("a file in the place of all runs", "text.txt", "not a directory", runs="text.txt")

# Resuming.
refuses("nothing to resume", "runs/nothing", name="nothing", resume=True)
refuses("another model", ".channels = 32", ".channels = 64", resume=True, channels=64)
refuses("another model under mpirun", ".channels = 32", ".channels = 64", resume=True, channels=64, **wire)
refuses("another precision", "fp32", "bf16", resume=True, precision="bf16")
refuses("another compression", "none", "top_k", resume=True, compression="top_k")
train("local", parallel="diloco", stop_after=5)
refuses("local steps of other ranks", "2 learners", name="local", resume=True, ranks=3)
train("topk", compression="top_k", stop_after=5)
train("topk", resume=True, ranks=3)  # what was not sent yet is divided among the three

checkpoints = "runs/kept/checkpoint"
shutil.copytree("runs/kept", "good")


def restored():
    shutil.rmtree("runs/kept")
    shutil.copytree("good", "runs/kept", symlinks=True)


def damaged(what, name, change, *words):
    """The newest checkpoint is passed over for the one before it, told why, and kept."""
    path = "%s/step-0000000005/%s" % (checkpoints, name)
    whole = bytes_of(path)
    os.remove(path)
    if (bytes_ := change(whole)) is not None:
        with open(path, "wb") as file:
            file.write(bytes_)
    at = content(checkpoints)
    code, out, told = attempt("kept", resume=True, stop_after=1, **mpi)
    expect(code == 0 and "resuming from step 0\n" in told, "%s: exit code %d: %s" % (what, code, told))
    for word in (path, "is damaged and was passed over", "it is kept as %s/damaged-step-0000000005\n" % checkpoints,
                 *words):
        expect(word in told, "%s: \"%s\" is not in: %s" % (what, word, told))
    expect(sorted(os.listdir(checkpoints)) == ["damaged-step-0000000005", "step-0000000000", "step-0000000001"],
           "%s: %s" % (what, os.listdir(checkpoints)))
    for file, bytes_ in at.items():
        moved = file.replace("step-0000000005", "damaged-step-0000000005")
        expect("step-0000000005" not in file or content(checkpoints)[moved] == bytes_, "%s: %s" % (what, moved))
    restored()


def flip(at):
    def change(whole):
        place = at % len(whole)
        return whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]

    return change


mpi = {}
for rank in (0, 1):
    file = "rank-%d.safetensors" % rank
    damaged("a flipped bit in the numbers", file, flip(-100), "SHA-256")
    damaged("a flipped bit in the header", file, flip(60))
    damaged("a truncated file", file, lambda whole: whole[:-1])
    damaged("a missing file", file, lambda whole: None)
    if HAS_MPI:
        mpi = {"mpi": True}
        damaged("under mpirun", file, flip(-100), "SHA-256")
        mpi = {}
damaged("a changed manifest", "manifest.json", flip(30), "SHA-256")
damaged("a missing hash", "manifest.sha256", lambda whole: None)

# None that is whole, and none at all.
for step in ("step-0000000000", "step-0000000005"):
    os.remove("%s/%s/manifest.json" % (checkpoints, step))
refuses("nothing that is whole", "no checkpoint here is whole", "step-0000000005/manifest.json", resume=True)
refuses("the same under mpirun", "no checkpoint here is whole", "step-0000000005/manifest.json", resume=True, **wire)
for step in ("step-0000000000", "step-0000000005"):
    shutil.rmtree("%s/%s" % (checkpoints, step))
os.mkdir(checkpoints + "/step-zzz")
refuses("no checkpoint", checkpoints, "start it without --resume", resume=True)
shutil.rmtree(checkpoints)
refuses("no directory of checkpoints", checkpoints, "start it without --resume", resume=True)
refuses("the same under mpirun", checkpoints, "start it without --resume", resume=True, **wire)
with open(checkpoints, "w") as file:
    file.write("precious")
refuses("a file in the checkpoints' place", checkpoints, "is not a directory", resume=True)
restored()

# Another run's checkpoints in the place of a run's own, and links that lead outside.
train("other", seed=4, stop_after=5)
os.mkdir("outside")
with open("outside/precious", "w") as file:
    file.write("precious")
os.symlink("../../../outside", checkpoints + "/.saving")
os.symlink("../../../outside", checkpoints + "/step-0000000003")
for name in ("summary.json", "history.json", "options.json"):
    os.symlink("../../outside/precious", "runs/kept/%s.partial" % name)
code, out, told = attempt("kept", resume=True, stop_after=7)
expect(code == 0 and "resuming from step 5\n" in told, "beside links: exit code %d: %s" % (code, told))
expect(content("outside") == {"outside/precious": b"precious"}, "what links lead to was changed")
restored()
shutil.rmtree("runs/kept/model", ignore_errors=True)
os.symlink("../../outside", "runs/kept/model")
code, out, told = attempt("kept", resume=True, stop_after=7)
expect(code == 1 and "runs/kept/model: is not a directory (a symbolic link" in told, "a linked model: " + told)
expect(content("outside") == {"outside/precious": b"precious"}, "the model was written outside")
restored()
shutil.move(checkpoints, "outside/checkpoint")
os.symlink("../../outside/checkpoint", checkpoints)
refuses("linked checkpoints", checkpoints, "a symbolic link", resume=True)
os.remove(checkpoints)
restored()

# What only has the name of a file.
for name in ("history.json", "checkpoint/step-0000000005/manifest.json"):
    os.remove("runs/kept/" + name)
    os.mkfifo("runs/kept/" + name)
    code, out, told = attempt("kept", resume=True, stop_after=5)
    expect(name + ": is not a regular file" in told, "a pipe: %d: %s" % (code, told))
    os.remove("runs/kept/" + name)
    restored()
for name, change in (("options.json", lambda whole: whole[:-5]), ("history.json", lambda whole: b"{}")):
    whole = bytes_of("runs/kept/" + name)
    with open("runs/kept/" + name, "wb") as file:
        file.write(change(whole))
    refuses("a broken file: " + name, name, resume=True)
    restored()
whole = train("whole")
expect(train("kept", resume=True)["state_hash"] == whole["state_hash"], "kept was harmed after all")

# A second run of a name: the first steps aside.
before = content("runs/whole")
train("whole", steps=3)
expect(list(content("runs/whole.1").values()) == list(before.values()), "the earlier run was not kept")


# Disks.
def with_tmpfs(options, script):
    return subprocess.run(["unshare", "-m", "sh", "-c", "mount -t tmpfs -o %s tmpfs disk || exit 99; %s" %
                           (options, script)], capture_output=True, env=environment())


os.mkdir("disk")
if shutil.which("unshare") is None or with_tmpfs("size=4k", "exit 0").returncode != 0:
    print("not tested: disks that are full or read-only; this needs the right to mount a tmpfs (unshare -m)")
else:
    run = " ".join(command("small", runs="disk", steps=20, save_every=5, most_failed_saves=0))
    again = " ".join(command("small", runs="disk", resume=True))
    train("reference", steps=20)
    done = with_tmpfs("size=700k", "%s; echo code $? >&2; ls -A disk/small/checkpoint >&2; "
                      "mount -o remount,size=9m disk; %s && cp -r disk/small runs/small" % (run, again))
    told = done.stderr.decode()
    error = [line for line in sentences(told) if "could not be saved" in line]
    expect(len(error) == 1 and "disk/small/checkpoint/" in error[0] and "no space left on device" in error[0] and
           "code 1\n" in told and ".saving" not in told.split("code 1\n")[-1], "a full disk: " + told)
    expect(done.returncode == 0 and summary("small")["state_hash"] == summary("reference")["state_hash"],
           "after a full disk: " + told)
    done = with_tmpfs("ro", run)
    expect(done.returncode == 1 and done.stderr.startswith(b"train_gpt: ") and
           b"disk/small: cannot make the directory: read-only" in done.stderr, "a read-only disk: %r" % done)
finish(folder)
