"""Loads a model that trireme wrote with transformers and compares its loss with the golden one.

usage: check_pretrained.py DIRECTORY golden.safetensors KIND
Exit code 77: torch, transformers or safetensors is missing.
"""

import sys

try:
    import safetensors.torch
    import torch
    from transformers import AutoModelForCausalLM
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)

directory, golden, kind = sys.argv[1:]
golden = safetensors.torch.load_file(golden)
model, loading = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True, dtype=torch.float32)
assert not any(loading.values()), loading
logits = model.eval()(input_ids=golden["tokens"].long()).logits
loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), golden["targets"].long().flatten()).item()
wanted = golden[kind + "/loss"].item()
print("%s: loss %.9f, golden %.9f" % (kind, loss, wanted))
sys.exit(abs(loss - wanted) > 1e-6 * wanted)
