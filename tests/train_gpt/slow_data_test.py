# test-waits: 15
"""A run whose data come slowly says which share of its time it waits for them: in its progress, in TensorBoard, in its
summary, and in one sentence at the end if that is over 5 %. A library that is loaded before stands for a slow disk."""

import array

from runs import *

SLOW = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
static void wait_if_slow(long number) {
  char link[64], path[4096] = {0};
  snprintf(link, sizeof link, "/proc/self/fd/%ld", number);
  if (readlink(link, path, sizeof path - 1) > 0 && strstr(path, "/tokens.bin")) usleep(1000 * atoi(getenv("SLOW")));
}
long syscall(long what, ...) {
  long given[6];
  va_list list;
  va_start(list, what);
  for (int i = 0; i < 6; ++i) given[i] = va_arg(list, long);
  va_end(list);
  if (what == SYS_pread64) wait_if_slow(given[0]);
  return ((long (*)(long, ...))dlsym(RTLD_NEXT, "syscall"))(what, given[0], given[1], given[2], given[3], given[4],
                                                            given[5]);
}
ssize_t pread(int number, void* to, size_t bytes, off_t at) {
  wait_if_slow(number);
  return ((ssize_t (*)(int, void*, size_t, off_t))dlsym(RTLD_NEXT, "pread"))(number, to, bytes, at);
}
"""

folder = work_folder()
compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
if compiler is None:
    skip("no C compiler")
with open("slow.c", "w", encoding="utf-8") as file:
    file.write(SLOW)
subprocess.run([compiler, "-shared", "-fPIC", "slow.c", "-o", "slow.so", "-ldl"], check=True)
with open("tokens.bin", "wb") as file:
    file.write(array.array("H", [i * i % 89 for i in range(3000)]).tobytes())


def run(name, milliseconds, **options):
    """Its summary, its standard error and its progress."""
    line = command(name, 1, text=None, data="tokens.bin", data_kind="u16", vocabulary=89, steps=12, **options)
    slow = {"LD_PRELOAD": os.path.abspath("slow.so"), "SLOW": str(milliseconds)}
    done = subprocess.run(line, capture_output=True, env=environment() | slow, timeout=100)
    out, err = done.stdout.decode(), done.stderr.decode()
    expect(done.returncode == 0, "%s ended with %d: %s" % (name, done.returncode, err))
    return summary(name), err, out + err


quick, err, _ = run("quick", 0)
expect("steps waited for data" not in err, "data that come at once are called slow: " + err)

slow, err, shown = run("slow", 40)  # a step has 12 samples, half a second to read
share = slow["data_waiting_share"]
expect(share > 0.3, "steps waited for %s of the time" % share)
told = [each for each in sentences(err) if "steps waited for data" in each]
expect(len(told) == 1, "the share is named %d times: %s" % (len(told), err))
found = re.fullmatch(r"train_gpt: steps waited for data (\d+) % of the time "
                     r"\(reading sample \d+( and the 11 after it)? takes [0-9.]+ m?s\); "
                     r"raise \.workers, or prepare the samples once, before the training", told[0] if told else "")
expect(found and abs(int(found[1]) - 100 * share) < 25, "the sentence is %s, the share %s" % (told, share))
expect(re.search(r"  data \d+%  ", shown), "the progress has no share: " + shown)
logged = scalars("slow", "data/waiting_share")
expect(len(logged) == 12 and max(logged.values()) > 0.3, "TensorBoard has %s" % logged)
expect(slow["state_hash"] == quick["state_hash"], "slow data gave other weights")

wide, _, _ = run("wide", 40, workers=6)
expect(wide["state_hash"] == quick["state_hash"], "six threads gave other weights")
expect(wide["seconds"] < slow["seconds"], "with six threads %s s, with one %s" % (wide["seconds"], slow["seconds"]))
finish(folder)
