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
    import transformers
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)

directories, golden = sys.argv[1:]
golden = safetensors.torch.load_file(golden)


def loss_of(model, kind):
    if not kind.startswith("bert"):
        logits = model(input_ids=golden["tokens"].long()).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), golden["targets"].long().flatten())
    tokens = golden["bert/tokens"].long()
    return model(input_ids=tokens, token_type_ids=golden["bert/types"].long(), attention_mask=(tokens != 0).long(),
                 labels=golden[kind + "/targets"].long()).loss


for name in sorted(os.listdir(directories)):
    directory = os.path.join(directories, name)
    kind = name.split(".")[0]
    model_class = getattr(transformers, transformers.AutoConfig.from_pretrained(directory).architectures[0])
    model, loading = model_class.from_pretrained(directory, output_loading_info=True, dtype=torch.float32)
    assert not any(loading.values()), loading
    loss = loss_of(model.eval(), kind).item()
    wanted = golden[kind + "/loss"].item()
    print("%s: loss %.9f, golden %.9f" % (name, loss, wanted))
    assert abs(loss - wanted) <= 1e-6 * wanted, name
