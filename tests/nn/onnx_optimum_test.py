"""optimum's ORTModelForCausalLM loads what export writes, and goes on with the tokens of our generate."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "formats"))
from gguf_models import *

try:
    import torch
    from optimum.onnxruntime import ORTModelForCausalLM
except ImportError as missing:
    skip(missing)
if not os.path.exists(GENERATE):
    skip(GENERATE + " is not built")

PROMPT = "The ferry "
for name, make in (("gpt", gpt), ("llama", llama), ("qwen2", lambda name: llama(name, "qwen2")),
                   ("mistral", lambda name: llama(name, "mistral", sliding_window=16))):
    make(name)
    code, said = export(path(name), "--to", "onnx", "--out", path(name, "onnx") + "/")
    expect(code == 0, said)
    ours = subprocess.run([GENERATE, path(name), "--prompt", PROMPT, "--tokens", "50", "--temperature", "0"],
                          capture_output=True, text=True, check=True).stdout[len(PROMPT):-1]
    model = ORTModelForCausalLM.from_pretrained(path(name, "onnx"), use_io_binding=False)
    prompt = torch.tensor([list(PROMPT.encode())])
    tokens = model.generate(prompt, max_new_tokens=50, do_sample=False, eos_token_id=None, pad_token_id=0)
    tokens = tokens[0, len(PROMPT):]
    theirs = bytes(tokens.tolist()).decode(errors="replace")
    expect(len(ours) == 50 and ours == theirs, "%s wrote %r, optimum %r" % (name, ours, theirs))
    print("%s: %d of 50 tokens are equal" % (name, sum(a == b for a, b in zip(ours, theirs))))
finish()
