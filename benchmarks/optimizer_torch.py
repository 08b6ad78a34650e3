#!/usr/bin/env python3
"""torch.optim.AdamW(fused=True) on 25 million parameters, all cores of one process, no exchange: one JSON row."""
import json
import os
import time

import torch

PARAMETERS = 25_000_000
threads = len(os.sched_getaffinity(0))
torch.set_num_threads(threads)
value = torch.nn.Parameter(torch.ones(PARAMETERS))
value.grad = torch.full((PARAMETERS,), 1e-3)
optimizer = torch.optim.AdamW([value], lr=1e-4, weight_decay=0.01, fused=True)
seconds = []
for _ in range(12):
    start = time.perf_counter()
    optimizer.step()
    seconds.append(time.perf_counter() - start)
seconds = sorted(seconds[1:])
row = {"benchmark": "optimizer", "system": "pytorch", "version": torch.__version__, "method": "fused AdamW alone",
       "threads": threads, "parameters": PARAMETERS, "milliseconds": round(seconds[len(seconds) // 2] * 1e3, 2),
       "milliseconds_best": round(seconds[0] * 1e3, 2)}
print(json.dumps(row))
