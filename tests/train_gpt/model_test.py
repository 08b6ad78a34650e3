# test-timeout: 300
"""transformers gets the held-out loss of the summary from the model that a run leaves behind."""

from runs import *

folder = work_folder()
checker = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python", "check_model.py")
for precision in ("fp32", "bf16"):
    train(precision, layers=2, dropout=0.1, precision=precision, steps=60, stop_after=25)
    train(precision, resume=True)
    done = subprocess.run([sys.executable, checker, "runs/" + precision], capture_output=True)
    if done.returncode == 77:
        shutil.rmtree(folder)
        skip(done.stdout.decode().strip().removeprefix("skipped: "))
    print(precision + ":", done.stdout.decode().strip())
    expect(done.returncode == 0, done.stderr.decode())
finish(folder)
