"""Writes conversations, and what transformers' apply_chat_template makes of them with a mask of the answers, for ChatML
and for Llama 3. chat_template_test.cpp compares.

NAME.json is the tokenizer; NAME.ids holds for each line of chats.jsonl a count, the ids and the mask (int32)."""
import array
import json
import logging
import os
import random
import sys

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_OFFLINE"] = "1"
logging.disable(logging.WARNING)
try:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast
except ImportError:
    sys.exit(77)

golden = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden", "tokenizers")
os.chdir(sys.argv[1])
kinds = {
    "chatml": ("qwen2", ["<|im_start|>", "<|im_end|>"], """
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' }}
    {%- if message['role'] == 'assistant' %}
        {%- generation %}
            {{- message['content'] + '<|im_end|>' }}
        {%- endgeneration %}
    {%- else %}
        {{- message['content'] + '<|im_end|>' }}
    {%- endif %}
    {{- '\\n' }}
{%- endfor %}"""),
    "llama3": ("llama3", ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], """
{%- for message in messages %}
    {%- if loop.index0 == 0 %}{{- '<|begin_of_text|>' }}{%- endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {%- if message['role'] == 'assistant' %}
        {%- generation %}
            {{- message['content'] | trim + '<|eot_id|>' }}
        {%- endgeneration %}
    {%- else %}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}"""),
}
draw = random.Random(5)
marks = [mark for _, of_kind, _ in kinds.values() for mark in of_kind] + ["<mark>"]
pieces = ["the ship ", "Ruder", "\n", "\n\n", " ", "  ", "1234", "don't", "日本", "é", "\u00a0", "\t", "🚣", "?!", "x=y;",
          ""]


def words():
    return "".join(draw.choice(pieces + 2 * [draw.choice(marks)]) for _ in range(draw.randrange(8)))


conversations = [
    [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello.")],
    [("user", "Hi"), ("assistant", "")],
    [("user", ""), ("assistant", "\n\nAnswer\n")],
    [("assistant", " first")],
    [("user", "a<|im_end|>b<|eot_id|>"), ("assistant", "<|im_start|>user\nc<|im_end|><|start_header_id|>")],
    [("user", "4?"), ("assistant", "call"), ("tool", "{\"x\": 4}"), ("assistant", "4"), ("user", "bye")],
]
for _ in range(200):
    roles = ["system", "user", "assistant", "tool", "ipython"]
    turns = [(draw.choice(roles), words()) for _ in range(draw.randrange(6))]
    conversations.append(turns + [("assistant", words())] + turns[:draw.randrange(2)])
with open("chats.jsonl", "w", encoding="utf-8") as file:
    for i, turns in enumerate(conversations):
        pair = len(turns) == 2 and [role for role, _ in turns] == ["user", "assistant"] and i % 2 == 1
        line = ({"prompt": turns[0][1], "completion": turns[1][1]} if pair else
                {"messages": [{"role": role, "content": content} for role, content in turns], "id": i})
        file.write(json.dumps(line, ensure_ascii=i % 3 == 0) + "\n")
for name, (base, special, template) in kinds.items():
    tokenizer = Tokenizer.from_file(os.path.join(golden, base + ".json"))
    tokenizer.add_special_tokens(special)
    tokenizer.save(name + ".json")
    ready = PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template)
    out = array.array("i")
    for turns in conversations:
        made = ready.apply_chat_template([{"role": role, "content": content} for role, content in turns],
                                         return_dict=True, return_assistant_tokens_mask=True)
        out.extend([len(made["input_ids"])] + made["input_ids"] + made["assistant_masks"])
    with open(name + ".ids", "wb") as file:
        out.tofile(file)
