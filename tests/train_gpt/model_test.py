# test-timeout: 300
"""transformers gets the held-out loss of the summary from the model that a run leaves behind."""

from runs import *

folder = work_folder()
checker = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python", "check_model.py")
gpt, llama = {"dropout": 0.1}, {"model": "llama", "heads": 4, "kv_heads": 2, "dropout": None}
for name, options in (("fp32", gpt), ("bf16", gpt | {"precision": "bf16"}), ("llama", llama)):
    train(name, layers=2, steps=60, stop_after=25, **options)
    train(name, resume=True)
    done = subprocess.run([sys.executable, checker, "runs/" + name], capture_output=True)
    if done.returncode == 77:
        shutil.rmtree(folder)
        skip(done.stdout.decode().strip().removeprefix("skipped: "))
    print(name + ":", done.stdout.decode().strip())
    expect(done.returncode == 0, done.stderr.decode())
finish(folder)
