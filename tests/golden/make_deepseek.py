#!/usr/bin/env python3
"""Writes deepseek.safetensors, deepseek_ahead.safetensors and deepseek/: what PyTorch computes for tiny DeepSeek V3, in
double precision.

    pip install torch transformers safetensors && python3 tests/golden/make_deepseek.py

An implementation that shares no line with ours: DeepseekV3ForCausalLM of transformers. What transformers computes in
float whatever the model's type is replaced by the same formula in double: the angles of rotary positions, the norms,
and the router's logits. For each MODEL of `low_rank` (queries of a low rank, values narrower than queries, experts in
groups) and `plain` (queries are one product, values wider than queries, one group, two shared experts), under the names
and in the layouts of trireme::nn::deepseek:

    MODEL/parameter/<name>    float64
    MODEL/gradient/<name>     of the loss, float64; of the bias that balances experts by how much it sinks in a step:
                              0.001 times the sign of how often the expert is chosen above the mean
    MODEL/loss                (1) float64
    tokens, targets           (B,T) int32; a target of -1 is left out of the loss

The loss is the mean cross-entropy over the targets that are not -1; target t belongs to position t (nothing is
shifted). deepseek/ is what save_pretrained writes of `low_rank` (without the configuration for generation), in F32.

deepseek_ahead.safetensors has the same of models `one` and `two`: smaller ones with one and two modules for multi-token
prediction, which transformers does not have: they are written here from equations 21 to 25 of the report, around a
decoder layer of transformers. MODEL/main_loss is the loss without them.
"""
import pathlib
import shutil

import safetensors.torch
import torch
import transformers

from make_llama import Angles, mean_loss, norm_in_double

COMMON = {"vocab_size": 41, "max_position_embeddings": 16, "hidden_size": 24, "intermediate_size": 20,
          "moe_intermediate_size": 10, "num_hidden_layers": 3, "first_k_dense_replace": 1, "num_attention_heads": 3,
          "num_key_value_heads": 3, "n_routed_experts": 8, "num_experts_per_tok": 3, "routed_scaling_factor": 2.5,
          "norm_topk_prob": True, "attention_dropout": 0.0, "bos_token_id": None, "eos_token_id": None,
          "attn_implementation": "sdpa", "experts_implementation": "eager"}
MODELS = {
    "low_rank": {"q_lora_rank": 10, "kv_lora_rank": 8, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5,
                 "n_shared_experts": 1, "n_group": 4, "topk_group": 2, "rms_norm_eps": 1e-5,
                 "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
    "plain": {"q_lora_rank": None, "kv_lora_rank": 6, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 8,
              "n_shared_experts": 2, "n_group": 1, "topk_group": 1, "rms_norm_eps": 1e-6,
              "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
}
BATCH, CONTEXT = 4, 11
AHEAD = {"one": 1, "two": 2}
AHEAD_WEIGHT = 0.3
AHEAD_SIZES = {"vocab_size": 23, "hidden_size": 12, "intermediate_size": 10, "moe_intermediate_size": 6,
               "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "n_routed_experts": 4,
               "num_experts_per_tok": 2, "q_lora_rank": None, "kv_lora_rank": 6, "qk_nope_head_dim": 4,
               "qk_rope_head_dim": 2, "v_head_dim": 4, "n_shared_experts": 1, "n_group": 2, "topk_group": 1,
               "rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}


def router_in_double(self, x):
    """As in transformers, but in double; counts how often each expert is chosen."""
    logits = x.reshape(-1, self.hidden_dim) @ self.weight.T
    scores = logits.sigmoid()
    biased = scores + self.e_score_correction_bias
    groups = biased.view(-1, self.num_group, self.num_experts // self.num_group)
    kept = groups.topk(2, dim=-1)[0].sum(-1).topk(self.topk_group, dim=-1)[1]
    mask = torch.zeros_like(groups[..., 0]).scatter_(1, kept, 1).bool()
    mask = mask[..., None].expand_as(groups).reshape(scores.shape)
    chosen = biased.masked_fill(~mask, float("-inf")).topk(self.top_k, dim=-1)[1]
    self.counts = torch.bincount(chosen.flatten(), minlength=self.num_experts).double()
    weights = scores.gather(1, chosen)
    return logits, weights / weights.sum(-1, keepdim=True) * self.routed_scaling_factor, chosen


class Module(torch.nn.Module):
    """Predicts words further ahead: equations 21 to 23, in the order and with the names of DeepSeek's files."""

    def __init__(self, config, index):
        super().__init__()
        modeling = transformers.models.deepseek_v3.modeling_deepseek_v3
        layer, width = modeling.DeepseekV3DecoderLayer(config, index), config.hidden_size
        self.enorm, self.hnorm = (modeling.DeepseekV3RMSNorm(width, config.rms_norm_eps) for _ in range(2))
        self.eh_proj = torch.nn.Linear(2 * width, width, bias=False)
        self.shared_head = torch.nn.Module()
        self.shared_head.norm = modeling.DeepseekV3RMSNorm(width, config.rms_norm_eps)
        # Names of the decoder layer's parts have no word before them.
        for name, part in layer.named_children():
            self.add_module(name, part)
        self.run = lambda *inputs, **named: layer(*inputs, **named)

    def forward(self, rows, words, angles, mask):
        x = self.eh_proj(torch.cat((self.enorm(words), self.hnorm(rows)), dim=-1))
        return self.shared_head.norm(self.run(x, position_embeddings=angles, attention_mask=mask))


def ahead_loss(model, modules, tokens, targets):
    """The whole loss (equation 25) and that of the model alone. Behind the end of a sample stands word 0."""
    rows = model.model(input_ids=tokens).last_hidden_state  # behind the norm
    counted = (targets >= 0).sum()
    angles = model.model.rotary_emb(rows, torch.arange(CONTEXT)[None])
    mask = torch.full((CONTEXT, CONTEXT), float("-inf"), dtype=rows.dtype).triu(1)[None, None]
    losses = []
    for k in range(len(modules) + 1):
        words, wanted = torch.zeros_like(tokens), torch.full_like(targets, -1)
        words[:, :CONTEXT - k], wanted[:, :CONTEXT - k] = tokens[:, k:], targets[:, k:]
        if k > 0:
            rows = modules[k - 1](rows, model.model.embed_tokens(words), angles, mask)
        some = wanted >= 0
        scores = model.lm_head(rows[some]).log_softmax(-1)
        losses.append(-scores.gather(1, wanted[some][:, None]).sum() / counted)
    return losses[0] + AHEAD_WEIGHT / len(modules) * sum(losses[1:]), losses[0]


def make_model(kind, generator):
    sizes = {**COMMON, **(AHEAD_SIZES if kind in AHEAD else MODELS[kind])}
    config = transformers.DeepseekV3Config(**sizes)
    model = transformers.DeepseekV3ForCausalLM(config).double().train()
    for k in range(AHEAD.get(kind, 0)):  # blocks behind the last one, which the model itself does not run
        model.model.layers.append(Module(config, config.num_hidden_layers + k).double().train())
    theirs, ours = model.model.rotary_emb, Angles(config.rope_parameters, config.qk_rope_head_dim)
    positions = torch.arange(CONTEXT)[None]
    for a, b in zip(theirs(torch.zeros(1).double(), positions), ours(torch.zeros(1).double(), positions)):
        assert (a - b).abs().max() < 1e-5
    model.model.rotary_emb = ours
    with torch.no_grad():
        # Far from the usual start, where norms are 1, and half of the mistakes would not show. Numbers that F32 has.
        for name, values in model.state_dict().items():
            noise = torch.randn(values.shape, generator=generator)
            values.copy_(0.3 * noise if values.dim() >= 2 else 1 + 0.2 * noise if "norm" in name else 0.1 * noise)
    for module in model.modules():
        what = type(module).__name__
        if what.endswith("RMSNorm"):
            x = torch.randn(4, module.weight.numel(), generator=generator, dtype=torch.float64)
            assert (module(x) - norm_in_double(module, x)).abs().max() < 1e-5
            module.forward = norm_in_double.__get__(module)
        if what.endswith("TopkRouter"):
            x = torch.randn(50, module.hidden_dim, generator=generator, dtype=torch.float64)
            for a, b in zip(module(x), router_in_double(module, x)):
                # Choices come in any order.
                assert (a.double().sort(-1)[0] - b.double().sort(-1)[0]).abs().max() < 1e-5
            module.forward = router_in_double.__get__(module)
    return model


def ours(tensors):
    """The names and layouts of trireme::nn::deepseek."""
    out = {}
    for name, value in tensors.items():
        name = name.replace("mlp.gate.weight", "mlp.router.weight")
        name = name.replace("mlp.gate.e_score_correction_bias", "mlp.router.bias")
        if name.endswith("gate_up_proj"):
            for part, each in zip(("gate_proj", "up_proj"), value.chunk(2, dim=1)):
                out[name.replace("gate_up_proj", part + ".weight")] = each.transpose(1, 2)
        elif name.endswith("experts.down_proj"):
            out[name + ".weight"] = value.transpose(1, 2)
        else:
            table = "embed_tokens" in name or "lm_head" in name
            out[name] = value if table or value.dim() < 2 else value.T
    return {name: value.detach().clone().contiguous() for name, value in out.items()}


def write(path, out):
    safetensors.torch.save_file(out, path)
    print(f"{path.name}: {path.stat().st_size} bytes, " + str({k: v.item() for k, v in out.items() if "loss" in k}))


def step(out, kind, model, loss):
    assert loss.dtype == torch.float64
    loss.backward()
    out[f"{kind}/loss"] = loss.detach().reshape(1)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    for name, module in model.named_modules():
        if hasattr(module, "counts"):
            gradients[name + ".e_score_correction_bias"] = 0.001 * (module.counts - module.counts.mean()).sign()
    for what, tensors in (("parameter", model.state_dict()), ("gradient", gradients)):
        out.update({f"{kind}/{what}/{name}": values for name, values in ours(tensors).items()})


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    generator = torch.Generator().manual_seed(33)

    def words(count):
        tokens, targets = (torch.randint(count, (BATCH, CONTEXT), generator=generator) for _ in range(2))
        targets[0, 0] = targets[3, 7] = targets[1, 4] = targets[1, 5] = targets[2, CONTEXT - 1] = -1
        return tokens, targets

    tokens, targets = words(COMMON["vocab_size"])
    out = {"tokens": tokens.int(), "targets": targets.int()}
    here = pathlib.Path(__file__).parent
    for kind in MODELS:
        model = make_model(kind, generator)
        step(out, kind, model, mean_loss(model, tokens, targets))
        if kind == "low_rank":
            shutil.rmtree(here / "deepseek", ignore_errors=True)
            model.float().save_pretrained(here / "deepseek")
            (here / "deepseek" / "generation_config.json").unlink(missing_ok=True)
    write(here / "deepseek.safetensors", out)

    tokens, targets = words(AHEAD_SIZES["vocab_size"])
    out = {"tokens": tokens.int(), "targets": targets.int()}
    for kind in AHEAD:
        model = make_model(kind, generator)
        modules = model.model.layers[AHEAD_SIZES["num_hidden_layers"]:]
        loss, main_loss = ahead_loss(model, modules, tokens, targets)
        out[f"{kind}/main_loss"] = main_loss.detach().reshape(1)
        step(out, kind, model, loss)
    write(here / "deepseek_ahead.safetensors", out)


if __name__ == "__main__":
    main()
