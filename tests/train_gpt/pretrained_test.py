# test-timeout: 900
"""--model llama, and --from: models of others and of earlier runs are evaluated and trained on, whatever the mesh."""

from runs import *

folder = work_folder()

# A llama trains, writes its own kind of files, and is the same under every mesh.
llama = {"model": "llama", "heads": 4, "kv_heads": 2, "layers": 2, "dropout": None}
alone = train("alone", ranks=1, **llama)
expect(alone["model"].startswith("nn::llama{") and ".key_heads = 2" in alone["model"], alone["model"])
with open("runs/alone/model/config.json", encoding="utf-8") as file:
    config = json.load(file)
expect(config["architectures"] == ["LlamaForCausalLM"] and config["num_key_value_heads"] == 2, config)
for mesh in ("tensor", "zero3", "pipeline"):
    cut = train("llama." + mesh, parallel=mesh, **llama)
    expect(abs(cut["held_out_last"] - alone["held_out_last"]) < 1e-4, mesh)

# Its files give the same loss again, without training and whatever the mesh; nothing but a summary is left.
sizes = {"layers": None, "heads": None, "channels": None, "context": None, "dropout": None}
for mesh in ("data", "tensor", "zero3", "pipeline"):
    again = train("again." + mesh, parallel=mesh, steps=0, **sizes | {"from": "runs/alone/model"})
    expect(again["held_out_first"] == again["held_out_last"], again)
    expect(abs(again["held_out_last"] - alone["held_out_last"]) < 1e-6, mesh)
    expect(again["model"] == alone["model"] and again["steps"] == 0 and again["loss_first"] is None, again)
    expect(not os.path.exists("runs/again.%s/checkpoint" % mesh), "there is a checkpoint")

# Training goes on from them; so does the run when they are gone, and the model can be read from a run of that name.
begun = train("further", stop_after=6, **sizes | {"from": "runs/alone/model", "context": 16})
expect(begun["context"] == 16 and begun["held_out_last"] < begun["held_out_first"] + 0.1, begun)
os.rename("runs/alone", "runs/moved")
ended = train("further", resume=True)
expect(ended["steps"] == 10 and ended["model"] == alone["model"], ended)
train("further", steps=0, **sizes | {"from": "runs/further/model"})

# Low-rank changes alone are trained, also in a run that is resumed; model/ has them in its weights.
tuned = {}
for mesh in ("data", "tensor"):
    changes = {"from": "runs/moved/model", "lora": 2, "lora_alpha": 4, "lora_layers": "self_attn.* down_proj"}
    train("tuned." + mesh, parallel=mesh, stop_after=6, rate=0.02, **sizes | changes)
    tuned[mesh] = train("tuned." + mesh, resume=True)
    expect("nn::lora(nn::llama{" in tuned[mesh]["model"] and tuned[mesh]["steps"] == 10, tuned)
    expect(abs(tuned[mesh]["held_out_last"] - tuned["data"]["held_out_last"]) < 1e-4, tuned)
again = train("merged", steps=0, **sizes | {"from": "runs/tuned.data/model"})
expect(again["model"] == alone["model"] and again["held_out_first"] != alone["held_out_last"], again)
expect(abs(again["held_out_first"] - tuned["data"]["held_out_last"]) < 1e-6, (again, tuned))

# A DeepSeek trains, with a module that predicts words ahead, and writes its files, which give the same loss again
# without the module; its experts are dealt out. With the module it trains on.
deepseek = {"model": "deepseek", "heads": 2, "layers": 2, "experts": 4, "dropout": None}
alone = train("deepseek", ranks=1, precision="fp32", ahead=1, **deepseek)
expect(alone["model"].startswith("nn::deepseek{") and ".experts = 4" in alone["model"], alone["model"])
expect(".ahead = 1" in alone["model"], alone["model"])
again = train("deepseek.again", parallel="expert", steps=0, **sizes | {"from": "runs/deepseek/model"})
expect(abs(again["held_out_last"] - alone["held_out_last"]) < 1e-6 and ".ahead" not in again["model"], again)
again = train("deepseek.ahead", ahead=1, **sizes | {"from": "runs/deepseek/model"})
expect(again["held_out_last"] < alone["held_out_last"] and again["model"] == alone["model"], again)

# A GPT with dropout, and one without.
gpt = train("gpt", layers=1)
for more, words in (({}, ".dropout = 0.1"), ({"dropout": 0.2}, ".dropout = 0.2")):
    again = train("gpt.again", **sizes | {"from": "runs/gpt/model"} | more)
    expect(words in again["model"] and abs(again["held_out_first"] - gpt["held_out_last"]) < 1e-6, again)


def refuses(what, *words, **options):
    code, _, err = attempt("refused", **options)
    expect(code == 1 and len(sentences(err)) == 1, "%s: %d: %s" % (what, code, err))
    for word in words:
        expect(word in err, "%s: \"%s\" is not in: %s" % (what, word, err))
    expect(not os.path.exists("runs/refused"), what + " has left something")


model = sizes | {"from": "runs/gpt/model"}
refuses("an unknown model", "--model is \"bert\"", "gpt, llama or deepseek", model="bert")
refuses("grouped keys of a gpt", "--kv-heads", "--model llama", kv_heads=1)
refuses("experts of a llama", "--experts", "--model gpt", experts=2, **llama)
refuses("a balance loss of a deepseek", "--balance", "--model gpt", balance=0.1, **deepseek)
refuses("words ahead of a gpt", "--ahead", "--model deepseek", ahead=1)
refuses("dropout of a llama", "--dropout", "--model gpt", **llama | {"dropout": 0.1})
refuses("keys that do not fit", "4 heads, 3 key heads", **llama | {"kv_heads": 3})
refuses("sizes beside files", "--layers", "--from", **model | {"layers": 2})
refuses("changes of nothing", "--lora changes a model that has been trained", lora=2)
refuses("changes of rank 0", "--lora-alpha goes with --lora", lora_alpha=2)
refuses("changes of no layer", "give a pattern", **model | {"lora": 2, "lora_layers": "q_proj"})
refuses("a context that is too long", "--context is 64", "32 positions", **model | {"context": 64})
refuses("no files", "missing/config.json", "no such file", **model | {"from": "missing"})
shutil.copytree("runs/gpt/model", "damaged")
os.remove("damaged/model.safetensors")
refuses("no weights", "damaged: there is neither model.safetensors nor", **model | {"from": "damaged"})
weights = bytes_of("runs/gpt/model/model.safetensors")
with open("damaged/model.safetensors", "wb") as file:
    file.write(weights[:-4])
refuses("weights that are cut off", "damaged/model.safetensors: byte", **model | {"from": "damaged"})
with open("damaged/config.json", encoding="utf-8") as file:
    config = json.load(file)
with open("damaged/model.safetensors", "wb") as file:
    file.write(weights)
for key, value, words in (("activation_function", "relu", "which nn::gpt cannot be"),
                          ("vocab_size", 100, "100 tokens, but bytes are 256"),
                          ("n_layer", 2, "no tensor \"transformer.h.1.ln_1.weight\"")):
    with open("damaged/config.json", "w", encoding="utf-8") as file:
        json.dump(config | {key: value}, file)
    refuses(key, words, **model | {"from": "damaged"})
code, _, err = attempt("gpt", resume=True, steps=0)
expect(code == 1 and "leave out --resume" in err, err)
code, _, err = attempt("gpt", resume=True, **{"from": "damaged"})
expect(code == 1 and "--from begins a run" in err, err)
finish(folder)
