"""Loads models that trireme wrote with transformers and compares their losses with the golden ones.

usage: check_pretrained.py DIRECTORY golden.safetensors
A model of KIND lies in DIRECTORY/KIND or DIRECTORY/KIND.anything.
Exit code 77: torch, transformers or safetensors is missing.
"""

import os
import sys

try:
    import safetensors.torch
    import torch
    from transformers import AutoModelForCausalLM
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)

directories, golden = sys.argv[1:]
golden = safetensors.torch.load_file(golden)
for name in sorted(os.listdir(directories)):
    directory = os.path.join(directories, name)
    model, loading = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True, dtype=torch.float32)
    assert not any(loading.values()), loading
    logits = model.eval()(input_ids=golden["tokens"].long()).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), golden["targets"].long().flatten()).item()
    wanted = golden[name.split(".")[0] + "/loss"].item()
    print("%s: loss %.9f, golden %.9f" % (name, loss, wanted))
    assert abs(loss - wanted) <= 1e-6 * wanted, name
