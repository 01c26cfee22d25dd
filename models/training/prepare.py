"""Prepares a corpus: packed token ids, tokenizer, and the overlap check with evaluation text.

    prepare.py --corpus DIR --out DATA [--evaluation FILE ...] [--vocabulary 8192]

Writes to DATA tokenizer.model, text.bin and dialogs.bin (training), val.bin (held out: text, then
dialogs), all uint16 ids with EOS after every document, passkey.json (the parts of passkey documents
as ids) and prepare.json (counts). Only this stage needs SentencePiece.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import time

import numpy as np

import corpus
import flags
import overlap
import passkey

SYMBOLS = ['\n', *corpus.ROLES.values(), '<|end|>']
# SentencePiece ignores longer lines.
MAX_LINE_BYTES = 4000


def split(documents, share):
    """(training, held-out) documents, without empty and duplicate ones."""
    train, held_out, seen = [], [], set()
    for document in documents:
        key = hashlib.blake2b(document.encode(), digest_size=8).digest()
        if document and key not in seen:
            seen.add(key)
            (held_out if corpus.is_held_out(document, share) else train).append(document)
    return train, held_out


def drop_overlaps(documents, evaluation):
    """(documents that share no n-gram, number of those that do, number of shared n-grams)."""
    shares = [evaluation.shares(document) for document in documents]
    clean = [document for document, share in zip(documents, shares) if share == 0]
    return clean, len(documents) - len(clean), sum(shares)


def load_tokenizer(path):
    import sentencepiece  # imported here: run.py does not need it once the ids exist

    return sentencepiece.SentencePieceProcessor(model_file=path)


def copy_tokenizer(out, args):
    """Copies --tokenizer to the prepared data. Exits if its ids do not fit the format."""
    tokenizer = load_tokenizer(args.tokenizer)
    if tokenizer.vocab_size() > 1 << 16:
        raise SystemExit(f'--tokenizer {args.tokenizer}: {tokenizer.vocab_size()} ids; the packed '
                         f'format has room for {1 << 16}')
    missing = [symbol for symbol in SYMBOLS if tokenizer.piece_to_id(symbol) == tokenizer.unk_id()]
    if missing:
        raise SystemExit(f'--tokenizer {args.tokenizer}: no piece for {missing}')
    shutil.copyfile(args.tokenizer, f'{out}/tokenizer.model')
    return tokenizer


def train_tokenizer(documents, out, args):
    """Trains BPE on random lines of the documents: byte fallback, digits split, roles as tokens."""
    import sentencepiece

    rng, lines, num_bytes = random.Random(0), [], 0
    for document in rng.sample(documents, len(documents)):
        for line in document.split('\n'):
            lines.append(line)
            num_bytes += len(line)
        if num_bytes > args.tokenizer_bytes:
            break
    path = f'{out}/lines.txt'
    with open(path, 'w', encoding='utf-8') as file:
        file.write('\n'.join(lines))
    sentencepiece.SentencePieceTrainer.train(
        input=path, model_prefix=f'{out}/tokenizer', model_type='bpe',
        vocab_size=args.vocabulary, character_coverage=0.9995, byte_fallback=True,
        split_digits=True, user_defined_symbols=SYMBOLS, normalization_rule_name='identity',
        remove_extra_whitespaces=False, max_sentence_length=MAX_LINE_BYTES,
        num_threads=args.threads, minloglevel=2)
    os.remove(path)
    os.remove(f'{out}/tokenizer.vocab')
    return load_tokenizer(f'{out}/tokenizer.model')


def pack(documents, tokenizer, path, threads):
    """Writes the documents' ids with EOS after each, and returns the number of ids."""
    num_ids, block = 0, 1000
    with open(path, 'wb') as file:
        for i in range(0, len(documents), block):
            part = tokenizer.encode(documents[i : i + block], num_threads=threads)
            ids = np.concatenate([np.array([*each, tokenizer.eos_id()], np.uint16)
                                  for each in part])
            file.write(ids.tobytes())
            num_ids += len(ids)
            print(f'\r  {os.path.basename(path)}: {num_ids:,} ids', end='', flush=True)
    print(flush=True)
    return num_ids


def add_arguments(parser):
    parser.add_argument('--corpus', help='corpus directory; its format is described in corpus.py')
    parser.add_argument('--evaluation', nargs='*', default=[],
                        help='text files that training text must not overlap')
    parser.add_argument('--tokenizer', metavar='FILE',
                        help='a tokenizer.model to use as it is; default: train one on the corpus')
    parser.add_argument('--vocabulary', type=flags.count, default=8192,
                        help='of the tokenizer that is trained')
    parser.add_argument('--tokenizer-bytes', type=flags.count, default=60_000_000,
                        help='bytes of text for training the tokenizer')
    parser.add_argument('--held-out', type=float, default=0.004, help='share of documents held out')
    parser.add_argument('--threads', type=flags.count, default=os.cpu_count())


def read(args, report):
    """({kind: training documents}, {kind: held-out documents}); adds counts to the report."""
    sources = {'text': corpus.texts(args.corpus), 'dialogs': corpus.dialogs(args.corpus)}
    train, held_out = {}, {}
    for kind, documents in sources.items():
        train[kind], held_out[kind] = split(documents, args.held_out)
    extra = []
    for path in args.evaluation:
        with open(path, encoding='utf-8') as file:
            extra.append(file.read())
    evaluation = overlap.Evaluation([*held_out['text'], *held_out['dialogs'], *extra])
    report.update(ngram_words=overlap.NGRAM, evaluation_ngrams=len(evaluation.ngrams))
    for kind in sources:
        train[kind], dropped, shared = drop_overlaps(train[kind], evaluation)
        left = sum(evaluation.shares(document) for document in train[kind])
        report[kind] = {'documents': len(train[kind]), 'held_out': len(held_out[kind]),
                        'dropped_for_overlap': dropped, 'shared_ngrams_dropped': shared,
                        'shared_ngrams_left': left,
                        'bytes': sum(len(document.encode()) for document in train[kind])}
        print(f'  {kind}: {report[kind]}', flush=True)
    return train, held_out


def run(args, out):
    if not args.corpus:
        raise SystemExit('--corpus is missing: give the corpus directory')
    os.makedirs(out, exist_ok=True)
    start_s = time.time()
    report = {'held_out_share': args.held_out}
    print('reading documents, checking overlap with evaluation text', flush=True)
    train, held_out = read(args, report)
    print('tokenizer', flush=True)
    if args.tokenizer:
        tokenizer = copy_tokenizer(out, args)
    else:
        tokenizer = train_tokenizer(train['text'] + train['dialogs'], out, args)
    report['vocabulary'] = tokenizer.vocab_size()
    print('ids', flush=True)
    for kind in train:
        report[kind]['ids'] = pack(train[kind], tokenizer, f'{out}/{kind}.bin', args.threads)
    report['val_ids'] = pack(held_out['text'] + held_out['dialogs'], tokenizer, f'{out}/val.bin',
                             args.threads)
    report.update(eos_id=tokenizer.eos_id(), seconds=round(time.time() - start_s))
    with open(f'{out}/passkey.json', 'w') as file:
        json.dump(passkey.pieces(tokenizer), file)
    with open(f'{out}/prepare.json', 'w') as file:
        json.dump(report, file, indent=2)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    parser.add_argument('--out', required=True)
    args = parser.parse_args()
    run(args, args.out)


if __name__ == '__main__':
    main()
