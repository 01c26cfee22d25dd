"""Loss by length and passkey accuracy by length and depth of a state.pt of train.py.

    evaluate.py --data DATA --run RUN [--lengths 1024,...,16384] [--trials 100]

RUN gets loss.json and passkey.json in the form of `lssar score --json` and `lssar passkey --json`,
made from the same rows and the same documents; plot_lengths.py draws either.
"""

import argparse
import json
import math
import random

import numpy as np
import torch

import model
import passkey

LENGTHS = '1024,2048,4096,8192,16384'
SEED = 7
BANDS = ('0-20%', '20-40%', '40-60%', '60-80%', '80-100%')  # of the key's depth
ANSWER_TOKENS = 20  # what the answer may take of a length
HEAD_ROWS = 1024  # of logits at a time: 16K rows of a vocabulary would be a gigabyte
Z = 1.959963984540054  # 97.5% point of the standard normal


def counts(text):
    return [int(word) for word in text.split(',')]


def load_net(path):
    """The net of a state.pt on the device at hand."""
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    state = torch.load(path, map_location=device)
    net = model.GPT(model.Config(**state['config'])).to(device)
    net.load_state_dict(state['net'])
    return net.eval(), state


def evaluation_rows(val, num_rows, length):
    """num_rows rows of length + 1 ids, at equal steps through val."""
    step = (len(val) - length - 1) // num_rows
    rows = [val[i * step : i * step + length + 1].astype(np.int64) for i in range(num_rows)]
    return torch.from_numpy(np.stack(rows))


@torch.no_grad()
def row_losses(net, row):
    """Nats of every token of a row but the first, [length]."""
    row = row.to(net.wte.weight.device)
    hidden = net.hidden(row[None, :-1])[0]
    return torch.cat([
        torch.nn.functional.cross_entropy(net.logits(part), targets, reduction='none')
        for part, targets in zip(hidden.split(HEAD_ROWS), row[1:].split(HEAD_ROWS))])


def loss_at(net, val, length, num_rows=None):
    """One entry of loss.json; rows by default as `lssar score` takes them."""
    num_rows = num_rows or max(1, min(8, 32768 // length))
    rows = evaluation_rows(val, num_rows, length)
    losses = [row_losses(net, row).mean().item() for row in rows]
    loss = sum(losses) / len(losses)
    return {'length': length, 'num_rows': num_rows, 'num_tokens': num_rows * length,
            'loss': loss, 'perplexity': math.exp(loss), 'is_last_left_out': False}


@torch.no_grad()
def is_found(net, ids, answer):
    """Whether greedy decoding of ids gives every token of the answer."""
    tokens = torch.tensor([ids + answer[:-1]], device=net.wte.weight.device)
    logits = net.logits(net.hidden(tokens)[:, -len(answer):])[0]
    return logits.argmax(-1).tolist() == answer


def wilson(num_hits, num_trials):
    """95% interval of a share."""
    share = num_hits / num_trials
    denominator = 1 + Z * Z / num_trials
    centre = (share + Z * Z / (2 * num_trials)) / denominator
    half = Z * math.sqrt(share * (1 - share) / num_trials + Z * Z / (4 * num_trials**2))
    return [0.0 if num_hits == 0 else max(0.0, centre - half / denominator),
            1.0 if num_hits == num_trials else min(1.0, centre + half / denominator)]


def passkeys_at(net, documents, length, trials):
    """An entry of passkey.json's lengths, and its cells of this length."""
    rng, hits, drawn = random.Random(SEED), [0] * len(BANDS), [0] * len(BANDS)
    filler = documents.num_filler(length - ANSWER_TOKENS)
    for _ in range(trials):
        ids, answer, depth = documents.make(filler, rng)
        band = min(len(BANDS) - 1, int(depth * len(BANDS)))
        hits[band] += is_found(net, [documents.parts['eos'], *ids], answer)
        drawn[band] += 1
    return ({'length': length, 'num_hits': sum(hits), 'num_trials': trials,
             'accuracy': sum(hits) / trials, 'interval95': wilson(sum(hits), trials)},
            [{'depth': BANDS[i], 'length': length, 'num_hits': hits[i], 'num_trials': drawn[i]}
             for i in range(len(BANDS))])


def write(path, what):
    with open(path, 'w') as file:
        json.dump(what, file, indent=1)


def run(args, directory, out):
    net, _ = load_net(f'{out}/state.pt')
    val = np.memmap(f'{directory}/val.bin', dtype=np.uint16, mode='r')
    with open(f'{directory}/passkey.json') as file:
        documents = passkey.Documents(json.load(file))
    losses, found, cells = [], [], []
    for length in args.lengths:
        losses.append(loss_at(net, val, length, args.eval_rows))
        entry, bands = passkeys_at(net, documents, length, args.trials)
        found.append(entry)
        cells += bands
        low, high = entry['interval95']
        print(f'length {length}: loss {losses[-1]["loss"]:.4f}  passkeys {entry["accuracy"]:.0%} '
              f'({low:.0%} to {high:.0%}, {args.trials} trials)', flush=True)
    write(f'{out}/loss.json', {'lengths': losses})
    write(f'{out}/passkey.json', {'seed': SEED, 'lengths': found, 'depths': BANDS,
                                  'cells': sorted(cells, key=lambda cell: cell['depth'])})


def add_arguments(parser):
    parser.add_argument('--lengths', type=counts, default=LENGTHS)
    parser.add_argument('--trials', type=int, default=100, help='passkey documents of a length')
    parser.add_argument('--eval-rows', type=int, help='of a length; default 8, at most 32K tokens')


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--data', required=True)
    parser.add_argument('--run', required=True, help='directory of state.pt')
    add_arguments(parser)
    args = parser.parse_args()
    run(args, args.data, args.run)


if __name__ == '__main__':
    main()
