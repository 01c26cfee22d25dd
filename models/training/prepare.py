"""A corpus directory -> packed token ids, tokenizer, and the check against evaluation text.

    prepare.py --corpus DIR --out DATA [--evaluation FILE ...] [--vocabulary 8192]

DATA gets tokenizer.model, text.bin and dialogs.bin (to train on), val.bin (held out; text, then
dialogs), all uint16 ids with every document ended by EOS, passkey.json (the pieces of passkey
documents as ids) and prepare.json (what was done, in numbers). Only this stage needs SentencePiece.
"""

import argparse
import hashlib
import json
import os
import random
import time

import numpy as np

import corpus
import overlap
import passkey

SYMBOLS = ['\n', *corpus.ROLES.values(), '<|end|>']
# The longest line that SentencePiece learns from, in bytes; longer ones are left out.
MAX_LINE_BYTES = 4000


def split(documents, share):
    """(to train on, held out), empty documents and repetitions left out."""
    train, held_out, seen = [], [], set()
    for document in documents:
        key = hashlib.blake2b(document.encode(), digest_size=8).digest()
        if document and key not in seen:
            seen.add(key)
            (held_out if corpus.is_held_out(document, share) else train).append(document)
    return train, held_out


def drop_overlaps(documents, evaluation):
    """(documents without a run of evaluation text, how many had one, shared runs in them)."""
    shares = [evaluation.shares(document) for document in documents]
    kept = [document for document, share in zip(documents, shares) if share == 0]
    return kept, len(documents) - len(kept), sum(shares)


def train_tokenizer(documents, out, args):
    """BPE on lines drawn from the documents: byte fallback, digits split, roles as one token."""
    import sentencepiece  # here: where the ids are there already, run.py needs none

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
    return sentencepiece.SentencePieceProcessor(model_file=f'{out}/tokenizer.model')


def pack(documents, tokenizer, path, threads):
    """Writes the documents' ids, each ended by EOS; returns how many ids."""
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
    parser.add_argument('--corpus', help='directory: see corpus.py')
    parser.add_argument('--evaluation', nargs='*', default=[],
                        help='text files that nothing of may be trained on')
    parser.add_argument('--vocabulary', type=int, default=8192)
    parser.add_argument('--tokenizer-bytes', type=int, default=60_000_000,
                        help='text that the tokenizer learns from')
    parser.add_argument('--held-out', type=float, default=0.004, help='share of the documents')
    parser.add_argument('--threads', type=int, default=os.cpu_count())


def read(args, report):
    """{'text' and 'dialogs': documents to train on}, {the same: held out}; counts to the report."""
    sources = {'text': corpus.texts(args.corpus), 'dialogs': corpus.dialogs(args.corpus)}
    train, held_out = {}, {}
    for kind, documents in sources.items():
        train[kind], held_out[kind] = split(documents, args.held_out)
    apart = []
    for path in args.evaluation:
        with open(path, encoding='utf-8') as file:
            apart.append(file.read())
    evaluation = overlap.Evaluation([*held_out['text'], *held_out['dialogs'], *apart])
    report.update(ngram_words=overlap.NGRAM, evaluation_ngrams=len(evaluation.runs))
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
        raise SystemExit('--corpus is missing: which directory has the text?')
    os.makedirs(out, exist_ok=True)
    start_s = time.time()
    report = {'vocabulary': args.vocabulary, 'held_out_share': args.held_out}
    print('documents, and the check against evaluation text', flush=True)
    train, held_out = read(args, report)
    print('tokenizer', flush=True)
    tokenizer = train_tokenizer(train['text'] + train['dialogs'], out, args)
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
