"""A round of examples/federated on a linear classifier equals one computed by numpy, and averaged by the package flwr
where that is installed."""

import glob
import os
import subprocess
import sys
import tempfile

FEDERATED = os.path.join(os.environ.get("TRIREME_BINARY_DIR", ""), "examples", "federated")
RATE, BATCH, ROUNDS = 0.1, 32, 4

try:
    import numpy as np
except ImportError:
    print("skipped: there is no package numpy")
    sys.exit(77)
if not os.path.exists(FEDERATED):
    print("skipped: examples/federated was not built")
    sys.exit(77)
try:
    from flwr.server.strategy.aggregate import aggregate
except ImportError:
    def aggregate(results):
        return [sum(n * np.float64(w) for (w,), n in results) / sum(n for _, n in results)]


def trained(weights, inputs, classes, start, proximal):
    """One pass of stochastic gradient descent on the cross-entropy of inputs @ w + b."""
    width, kinds = inputs.shape[1], len(weights) // (inputs.shape[1] + 1)
    b, w = weights[:kinds], weights[kinds:].reshape(width, kinds)
    for first in range(0, len(inputs), BATCH):
        x, y = inputs[first:first + BATCH], classes[first:first + BATCH]
        p = np.exp(x @ w + b)
        p /= p.sum(1, keepdims=True)
        p[np.arange(len(y)), y] -= 1
        g = np.concatenate([p.sum(0), (x.T @ p).ravel()]) / len(y)
        now = np.concatenate([b, w.ravel()])
        now = now - RATE * (g + proximal * (now - start))
        b, w = now[:kinds], now[kinds:].reshape(width, kinds)
    return np.concatenate([b, w.ravel()])


for proximal in (0, 0.5):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([FEDERATED, "--linear", "--rounds", str(ROUNDS), "--proximal", str(proximal), "--dump", folder],
                       check=True, stdout=subprocess.DEVNULL, timeout=100)
        before, after = (np.concatenate([np.fromfile(os.path.join(folder, name + part), np.float32).astype(np.float64)
                                         for part in (".layers.0.bias", ".layers.0.weight")])
                         for name in ("before", "after"))
        chosen = np.fromfile(os.path.join(folder, "chosen"), np.int64)
        assert sum(chosen > 0) == 3 and len(glob.glob(os.path.join(folder, "inputs.*"))) == 10, chosen
        results = []
        for client in np.flatnonzero(chosen):
            classes = np.fromfile(os.path.join(folder, "classes.%d" % client), np.int32)
            inputs = np.fromfile(os.path.join(folder, "inputs.%d" % client), np.float32)
            inputs = inputs.reshape(len(classes), -1).astype(np.float64)
            assert len(classes) == chosen[client]
            results.append(([trained(before, inputs, classes, before, proximal)], int(chosen[client])))
        apart = np.abs(aggregate(results)[0] - after).max()
        moved = np.abs(after - before).max()
        print("proximal %g: %d parameters moved by up to %.3f, and differ by up to %.1e" %
              (proximal, len(after), moved, apart))
        assert apart < 1e-5 < moved
