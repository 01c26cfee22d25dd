"""Speed of the tokenizers on one core, and beside tiktoken's on the same text.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install tiktoken
    /tmp/venv/bin/python tests/bench/tokenizer_bench.py TEXT_FILE

TEXT_FILE is any English text of a megabyte or more. Times are CPU seconds, the median of 7
encodings that alternate between the two programs, so that other work on the machine hits both.
"""

import os
import pathlib
import statistics
import struct
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get('LSSAR_TOKENIZE_TEXTS', str(ROOT / 'build/ci/bin/tokenize_texts'))
GPT2 = ROOT / 'tests' / 'models' / 'gpt2'
ZOO = ROOT / 'models' / 'zoo' / 'lssar-6m'
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
ROUNDS = 7


def ours(directory, vocab_size, text):
    """CPU seconds of one encoding, the second of two in a new process."""
    done = subprocess.run([PROGRAM, str(directory), str(vocab_size), '--time', '2'], check=True,
                          input=struct.pack('<I', len(text)) + text, stdout=subprocess.PIPE)
    return float(done.stdout.split()[2])


def tiktoken_gpt2():
    """Encodes with tiktoken over the same vocabulary. None: it is not installed."""
    try:
        import tiktoken
        from tiktoken.load import data_gym_to_mergeable_bpe_ranks
    except ImportError:
        return None
    ranks = data_gym_to_mergeable_bpe_ranks(str(GPT2 / 'merges.txt'), str(GPT2 / 'vocab.json'))
    return tiktoken.Encoding('gpt2', pat_str=PATTERN, mergeable_ranks=ranks,
                             special_tokens={'<|endoftext|>': 50256}).encode_ordinary


def seconds_of(function, argument):
    start = time.process_time()
    function(argument)
    return time.process_time() - start


def main():
    english = pathlib.Path(sys.argv[1]).read_bytes()
    peer = tiktoken_gpt2()
    cases = [('GPT-2, English', GPT2, 50257, english),
             ('GPT-2, 72 KB of it', GPT2, 50257, english[:72_000]),
             ('GPT-2, 1 MiB of "a"', GPT2, 50257, b'a' * (1 << 20)),
             ('GPT-2, 1 MiB of the alphabet', GPT2, 50257,
              b'abcdefghijklmnopqrstuvwxyz' * ((1 << 20) // 26)),
             ('shipped SentencePiece BPE, English', ZOO, 4096, english),
             ('shipped SentencePiece BPE, 1 MiB of "a"', ZOO, 4096, b'a' * (1 << 20))]
    print('| text | ms | MB/s | tiktoken, ms | ratio |\n|---|---|---|---|---|')
    for name, directory, vocab_size, text in cases:
        # tiktoken takes minutes for long words.
        has_peer = peer is not None and directory == GPT2 and 'MiB' not in name
        decoded = text.decode(errors='ignore')
        mine, other = [], []
        for _ in range(ROUNDS):
            mine.append(ours(directory, vocab_size, text))
            if has_peer:
                other.append(seconds_of(peer, decoded))
        median = statistics.median(mine)
        row = f'| {name} | {1e3 * median:.1f} | {len(text) / 1e6 / median:.1f} |'
        if has_peer:
            other_median = statistics.median(other)
            row += f' {1e3 * other_median:.1f} | {other_median / median:.1f} |'
        else:
            row += ' | |'
        print(row, flush=True)


if __name__ == '__main__':
    main()
