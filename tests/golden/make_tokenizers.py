"""Trains small tokenizers with the packages tokenizers and sentencepiece, and says what they make of texts in many
scripts.

usage: make_tokenizers.py FOLDER [--inputs N] [--text-bytes N] [--vocabulary N] [--seed N] [--lines]
                          [--kinds NAME,...]

tests/golden/tokenizers was made by:  make_tokenizers.py tests/golden/tokenizers (trainers break ties by chance: made
again, the files are other ones)
For each kind of tokenizer: FOLDER/KIND.json; FOLDER/KIND.ids, which has for each input the number of its tokens, the
tokens, the number of bytes of the decoded text, the text; FOLDER/KIND.pairs, which has for inputs 2 i and 2 i + 1
together the number of tokens, the tokens, their segments (of the last 8 inputs). FOLDER/inputs has for each input
the number of its bytes, and the bytes. Numbers are of 4 bytes. sentencepiece's files are FOLDER/KIND.model and .ids.
Exit code 77: tokenizers is missing. Without sentencepiece what it trains is left out.
"""

import argparse
import collections
import gettext
import glob
import io
import json
import os
import random
import struct
import sys
import tempfile
import unicodedata

try:
    import sentencepiece
except ImportError:
    sentencepiece = None
try:
    from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                            trainers)
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)

# Characters that every table of Unicode in use knows: those of 2002.
OLD = unicodedata.ucd_3_2_0
RANGES = [(0x41, 0x5B), (0x61, 0x7B), (0x61, 0x7B), (0xC0, 0x250), (0x370, 0x400), (0x400, 0x530), (0x531, 0x588),
          (0x5D0, 0x5EB), (0x600, 0x6FF), (0x700, 0x74B), (0x905, 0x950), (0x981, 0x9CE), (0xE01, 0xE3B),
          (0xF40, 0xFBC), (0x10A0, 0x10FA), (0x1100, 0x1200), (0x1200, 0x1380), (0x13A0, 0x13F5), (0x1780, 0x17EA),
          (0x1820, 0x1878), (0x1E00, 0x1F00), (0x1F00, 0x2000), (0x3041, 0x3097), (0x30A0, 0x3100), (0x4E00, 0x9FA5),
          (0xAC00, 0xD7A4), (0x10400, 0x10426), (0x1D400, 0x1D4A0), (0x20000, 0x2A6D6)]
RANGES = [[c for c in range(a, b) if OLD.category(chr(c)) not in ("Cn", "Cs")] for a, b in RANGES]
PIECES = ["'s", "'S", "'\u017f", "'ll", "'LL", "'re", "'vE", "'d", "'M", "'x", " ", " ", "  ", "   ", "\t", "\n",
          "\n\n", "\r\n", " \n ", "\u00a0", "\u2003", "\u3000", "\u0085", "\x1c", "\u180e", "\u200b", "\u200d",
          "\ufeff", "0", "12", "345", "678901", "\u0661\u0662", "\u00bd", "\u2167", "\u00b2", ".", ",", " ?", " !",
          "...", "--", "!?", "$", "^", "`", "+", "=", "\u3002", "\u00ab", "\u2014", "\u2026", "\u0301",
          "\u0308\u0323", "\u0327", "e\u0301", "\u00e9", "\u0130", "\u03a3", "\u1e9e", "\ufb01", "\uff21", "\u2460",
          "\u212b", "\u0958", "\u1100\u1161\u11a8", "\x00", "\x07", "\x7f", "\ufffd", "\ue000", "\u2603",
          "\U0001f600", "\U0001f468\u200d\U0001f469", "\u2764\ufe0f", "<s>", "</s>", "[CLS]", "[MASK]", "<mark>",
          " <mark> ", "a<mark>b", "<word>", "x<word>", " <word> ", "<0x41>", "\u2581", "##a", "\u24e2", "\u166d",
          "\u1734", "\u1885", "do not", "n't", " 'm ", "_", "a_b", "the", " the", " The", "THE", "ing",
          "``", "''", "\u00a9\u200d", "\u0600a", "\u00a9\u200d\u00a9", "a\u0301", "\u212b\u0301", "\u00b2\u0301",
          "\u30fd\u3099", "\uff76\uff9e", "\r\r\n", "\u00a0\u0301", "\u0ccb", "<0xE4>", "\u2581\u2581", " \u2581 "]


def word(draw):
    letters = draw.choice(RANGES)
    return "".join(chr(draw.choice(letters)) for _ in range(draw.randint(1, 9)))


def running_text(draw, size):
    """Words that come again, as in a language, with spaces and punctuation."""
    known = [[word(draw) for _ in range(800)] for _ in range(12)]
    out, length = [], 0
    while length < size:
        words = draw.choice(known)
        for _ in range(draw.randint(3, 15)):
            out.append(words[min(int(draw.expovariate(1 / 120)), 799)])
            out.append(draw.choice([" "] * 12 + [", ", ". ", ".\n", " - ", "! ", "'s ", " 19", "\u3002", "  "]))
            length += len(out[-1]) + len(out[-2].encode())
    return "".join(out)


def translations(size):
    """What the programs of this machine say in other languages, as far as it is here: the same share of each."""
    languages = {}
    for path in sorted(glob.glob("/usr/share/**/LC_MESSAGES/*.mo", recursive=True)):
        languages.setdefault(path.split("/")[-3], []).append(path)
    out = []
    for paths in languages.values():
        length = 0
        for path in paths:
            try:
                with open(path, "rb") as file:
                    sentences = gettext.GNUTranslations(file)._catalog.values()
            except (OSError, UnicodeDecodeError, LookupError):
                continue
            for sentence in sentences:
                if length < size / len(languages):
                    out.append(sentence + "\n")
                    length += len(out[-1].encode())
    return "".join(out)


def fuzz_input(draw):
    out = []
    for _ in range(draw.randint(0, 12)):
        kind = draw.random()
        if kind < 0.55:
            out.append(draw.choice(PIECES))
        elif kind < 0.9:
            out.append(word(draw))
        else:
            code = draw.randrange(0x30000)
            out.append(chr(code) if OLD.category(chr(code)) not in ("Cn", "Cs") else "?")
    return "".join(out)


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")


DEEPSEEK = (r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
            "| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")


def split(*expressions):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(each), "isolated") for each in expressions] +
                                   [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_level(text, size, normalizer, pre_tokenizer, post_processor=None, **options):
    made = Tokenizer(models.BPE(**options))
    if normalizer:
        made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizer
    made.decoder = decoders.ByteLevel()
    made.post_processor = post_processor or processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(text, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False,
                                                       special_tokens=["<s>", "</s>"]))
    made.add_tokens([AddedToken("<mark>", lstrip=True, rstrip=True, normalized=False),
                     AddedToken("<word>", single_word=True)])
    return made


def word_pieces(text, size, normalizer, post_processor=True):
    made = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20))
    made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    specials = ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made.train_from_iterator(text, trainers.WordPieceTrainer(vocab_size=size, special_tokens=specials,
                                                             limit_alphabet=180, show_progress=False))
    if post_processor:
        made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
                                                            special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    else:
        made.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return made


def characters(text, size):
    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    made.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    made.train_from_iterator(text, trainers.BpeTrainer(vocab_size=size, special_tokens=["<unk>", "<s>", "</s>"],
                                                       limit_alphabet=150, show_progress=False))
    made.pre_tokenizer = None
    made.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                      decoders.Strip(" ", 1, 0)])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1",
                                                        special_tokens=[("<s>", 1)])
    return made


def of_common(text, count):
    """The text in its most common characters: trainers of unigrams want all characters in the vocabulary."""
    common = {letter for letter, _ in collections.Counter("".join(text)).most_common(count)}
    return ["".join(letter for letter in line if letter in common) for line in text]


# What a small file replaces before it looks for tokens; a large one has NFKC and more (500 kB).
RULES = ["9\t20", "A\t20", "D\t20", "B\t", "7F\t", "3000\t20", "A0\t20", "FB01\t66 69", "FF21\t41", "65 301\tE9",
         "61 301\t61", "61\t62", "212B\tC5", "BD\t31 2044 32", "AC00\t1100 1161", "958\t915 93C", "A9 200D\t63",
         "600\t61"]


def trained(text, size, kind, **options):
    """The bytes of a file of sentencepiece."""
    made = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        rules.write("\n".join(RULES) + "\n")
        rules.flush()
        if size < 1000:
            options["normalization_rule_tsv"] = rules.name
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(of_common(text, size // 3)), model_writer=made, model_type=kind, minloglevel=2,
            vocab_size=size + 256 * options.get("byte_fallback", False), character_coverage=1.0,
            hard_vocab_limit=False, num_threads=1, **options)
    return made.getvalue()


def fields(message):
    """The strings in a message of protobuf, with their numbers."""
    at = 0

    def number():
        nonlocal at
        out = shift = 0
        while True:
            byte = message[at]
            at += 1
            out |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return out

    while at < len(message):
        key = number()
        if key & 7 == 0:
            number()
        else:
            length = number() if key & 7 == 2 else 4 if key & 7 == 5 else 8
            at += length
            if key & 7 == 2:
                yield key >> 3, message[at - length:at]


def converted(model):
    """A file of sentencepiece's unigrams as transformers makes a tokenizer of it, but for normalizer and splits."""
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
    every = range(pieces.get_piece_size())
    made = Tokenizer(models.Unigram([(pieces.id_to_piece(i), pieces.get_score(i)) for i in every], pieces.unk_id(),
                                    any(map(pieces.is_byte, every))))
    made.decoder = decoders.Metaspace()
    made.add_special_tokens([AddedToken(pieces.id_to_piece(i), special=True) for i in every if pieces.is_control(i)])
    made.add_tokens([AddedToken("<mark>", lstrip=True, rstrip=True, normalized=False),
                     AddedToken("<word>", single_word=True)])
    end = pieces.eos_id()
    made.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>",
                                                        special_tokens=[("</s>", end)])
    rules = next(value for key, value in fields(model) if key == 3)
    return made, normalizers.Precompiled(next(value for key, value in fields(rules) if key == 2))


def t5(text, size):
    made, precompiled = converted(trained(text, size, "unigram", byte_fallback=True))
    made.normalizer = normalizers.Sequence([precompiled, normalizers.Strip(left=False, right=True),
                                            normalizers.Replace(Regex(" {2,}"), "\u2581")])
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    return made


def albert(text, size):
    made, precompiled = converted(trained(text, size, "unigram"))
    made.normalizer = normalizers.Sequence(
        [normalizers.Replace("``", '"'), normalizers.Replace("''", '"'), normalizers.NFKD(),
         normalizers.StripAccents(), normalizers.Lowercase(), precompiled, normalizers.Replace(Regex(" {2,}"), " ")])
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    return made


def unigram(text, size):
    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Strip(),
                                            normalizers.Replace(Regex(" {2,}"), " ")])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.train_from_iterator(of_common(text, size // 3), trainers.UnigramTrainer(
        vocab_size=size, unk_token="<unk>", show_progress=False, special_tokens=["<unk>", "<s>", "</s>"]))
    return made


def mistral(text, size):
    """As files have it since 2024: no normalizer, and one word."""
    made = characters(text, size)
    made.normalizer = None
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return made


def save(name, made, path):
    content = json.loads(made.to_str())
    if name == "smollm2":  # as files had it before 2024
        content["model"]["merges"] = [" ".join(each) for each in content["model"]["merges"]]
    if name in ("llama2", "mistral"):  # what its BPE falls back on
        vocabulary = content["model"]["vocab"]
        vocabulary.update({"<0x%02X>" % byte: len(vocabulary) + byte for byte in range(256)})
    with open(path, "w", encoding="utf-8") as out:
        json.dump(content, out, ensure_ascii=False, separators=(",", ":"))


SENTENCEPIECE = {"pieces_unigram": dict(kind="unigram", byte_fallback=True), "pieces_bpe": dict(kind="bpe")}


def kinds(text, size, wanted=()):
    """Names, and what makes the tokenizers; all of them, or those that are wanted."""
    for name, make in all_kinds(text, size):
        if not wanted or name in wanted:
            yield name, make()


def all_kinds(text, size):
    bos = processors.Sequence([processors.ByteLevel(trim_offsets=False),
                               processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1",
                                                             special_tokens=[("<s>", 0)])])
    yield "gpt2", lambda: byte_level(text, size, None, pre_tokenizers.ByteLevel(add_prefix_space=False))
    yield "roberta", lambda: byte_level(text, size, None, pre_tokenizers.ByteLevel(add_prefix_space=True),
                                processors.RobertaProcessing(("</s>", 1), ("<s>", 0)))
    yield "llama3", lambda: byte_level(text, size, None, split(LLAMA3), bos, ignore_merges=True)
    yield "deepseek", lambda: byte_level(text, size, None, split(*DEEPSEEK))
    yield "qwen2", lambda: byte_level(text, size, normalizers.NFC(), split(QWEN2))
    yield "smollm2", lambda: byte_level(text, size, None, pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]))
    yield "llama2", lambda: characters(text, size)
    yield "bert", lambda: word_pieces(text, size, normalizers.BertNormalizer())
    yield "bert_cased", lambda: word_pieces(text, size, normalizers.BertNormalizer(lowercase=False), False)
    yield "forms", lambda: word_pieces(text, size, normalizers.Sequence(
        [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(), normalizers.NFKC(),
         normalizers.NFD()]))
    yield "unigram", lambda: unigram(text, size)
    yield "mistral", lambda: mistral(text, size)
    if sentencepiece:
        yield "t5", lambda: t5(text, size)
        yield "albert", lambda: albert(text, size)


def main():
    options = argparse.ArgumentParser()
    options.add_argument("folder")
    options.add_argument("--inputs", type=int, default=24)
    options.add_argument("--text-bytes", type=int, default=0)
    options.add_argument("--vocabulary", type=int, default=330)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--lines", action="store_true", help="the long text line by line")
    options.add_argument("--kinds", type=lambda names: names.split(","), default=())
    options = options.parse_args()
    os.makedirs(options.folder, exist_ok=True)
    draw = random.Random(options.seed)
    text = translations(options.text_bytes / 2)
    text += running_text(draw, max(options.text_bytes - len(text.encode()), 20000))
    lines = text.splitlines()
    if len(text) > 200000:
        lines = draw.sample(lines, len(lines) * 200000 // len(text))
    inputs = [] if options.text_bytes == 0 else text.splitlines() if options.lines else [text]
    inputs += [fuzz_input(draw) for _ in range(options.inputs)]
    with open(os.path.join(options.folder, "inputs"), "wb") as out:
        for each in inputs:
            data = each.encode()
            out.write(struct.pack("<I", len(data)) + data)
    for name, made in kinds(lines, options.vocabulary, options.kinds):
        path = os.path.join(options.folder, name)
        save(name, made, path + ".json")
        made = Tokenizer.from_file(path + ".json")
        with open(path + ".ids", "wb") as out:
            for begin in range(0, len(inputs), 10000):
                for each in made.encode_batch(inputs[begin:begin + 10000]):
                    decoded = made.decode(each.ids).encode()
                    out.write(struct.pack("<I%diI" % len(each.ids), len(each.ids), *each.ids, len(decoded)) + decoded)
        with open(path + ".pairs", "wb") as out:
            some = inputs[-8:]
            for first, second in zip(some[0::2], some[1::2]):
                each = made.encode(first, second)
                out.write(struct.pack("<I%di" % (2 * len(each.ids)), len(each.ids), *each.ids, *each.type_ids))
    for name, how in SENTENCEPIECE.items() if sentencepiece else ():
        if options.kinds and name not in options.kinds:
            continue
        model = trained(lines, options.vocabulary, **how)
        with open(os.path.join(options.folder, name + ".model"), "wb") as out:
            out.write(model)
        made = sentencepiece.SentencePieceProcessor(model_proto=model)
        with open(os.path.join(options.folder, name + ".ids"), "wb") as out:
            for ids in made.encode(inputs):
                decoded = made.decode(ids).encode()
                out.write(struct.pack("<I%diI" % len(ids), len(ids), *ids, len(decoded)) + decoded)


if __name__ == "__main__":
    main()
