"""Loss by length and passkey accuracy by length and depth.

    evaluate.py --data DATA --run RUN [--lengths 1024,...,16384] [--trials 100]    a state.pt
    evaluate.py --model DIR [--ids FILE] --out DIR ...           a checkpoint

Writes loss.json and passkey.json to RUN or --out, in the format of `lssar score --json` and
`lssar passkey --json` and from the same rows and documents. plot_lengths.py draws either.
RUN/evaluation.json says of which step they are, and with which lengths.
"""

import argparse
import json
import math
import os
import statistics

import numpy as np
import torch

import checkpoint_files
import flags
import model
import passkey

LENGTHS = '1024,2048,4096,8192,16384'
SEED = 7
BANDS = ('0-20%', '20-40%', '40-60%', '60-80%', '80-100%')  # of the key's depth
ANSWER_TOKENS = 20  # reserved for the answer within a length
HEAD_ROWS = 1024  # of logits at a time: 16K rows would take a gigabyte
Z = 1.959963984540054  # 97.5% point of the standard normal


def device_at_hand():
    return torch.device('cuda' if torch.cuda.is_available() else 'cpu')


def load_net(path):
    """The net of a state.pt on the device at hand, and the state."""
    state = torch.load(path, map_location=device_at_hand())
    net = model.GPT(model.Config(**state['config'])).to(device_at_hand())
    net.load_state_dict(state['net'])
    return net.eval(), state


def load_checkpoint(directory, ids=None):
    """(net, held-out ids, passkey documents) of an exported checkpoint.

    ids: a file of uint16 ids, instead of the checkpoint's held_out.bin.
    """
    import sentencepiece  # imported here: evaluating a state.pt does not need it

    tokenizer = sentencepiece.SentencePieceProcessor(model_file=f'{directory}/tokenizer.model')
    net = checkpoint_files.read_model(directory).to(device_at_hand()).eval()
    return (net, np.fromfile(ids or f'{directory}/held_out.bin', np.uint16),
            passkey.Documents(passkey.pieces(tokenizer)))


def check_length(length, num_ids, what='the held-out text'):
    """Exits unless so many ids hold a row of that length."""
    if num_ids < length + 1:
        raise SystemExit(f'{what} has {num_ids} ids; a row of {length} tokens takes {length + 1}: '
                         'give smaller --lengths, or hold more out')


def most_rows(length, num_ids):
    """The most rows that evaluation_rows takes from so many ids without an overlap; at least 1."""
    return max(1, (num_ids - 1) // length - 1)


def evaluation_rows(val, num_rows, length):
    """num_rows rows of length + 1 ids, evenly spaced in val. Exits where val is shorter, and where
    rows overlap: tokens would count twice, and the standard error be too small."""
    check_length(length, len(val))
    most = most_rows(length, len(val))
    if num_rows > most:
        raise SystemExit(f'{num_rows} rows of {length} tokens overlap in the held-out text\'s '
                         f'{len(val)} ids: give --eval-rows {most} or less')
    step = (len(val) - length - 1) // num_rows
    rows = [val[i * step : i * step + length + 1].astype(np.int64) for i in range(num_rows)]
    return torch.from_numpy(np.stack(rows))


@torch.no_grad()
def row_losses(net, row):
    """Loss of every token of a row except the first, nats, [length]."""
    row = row.to(net.wte.weight.device)
    hidden = net.hidden(row[None, :-1])[0]
    return torch.cat([
        torch.nn.functional.cross_entropy(net.logits(part), targets, reduction='none')
        for part, targets in zip(hidden.split(HEAD_ROWS), row[1:].split(HEAD_ROWS))])


def loss_at(net, val, length, num_rows=None):
    """One entry of loss.json; by default over the rows of `lssar score`."""
    num_rows = num_rows or min(max(1, min(8, 32768 // length)), most_rows(length, len(val)))
    rows = evaluation_rows(val, num_rows, length)
    losses = [row_losses(net, row).mean().item() for row in rows]
    loss = sum(losses) / len(losses)
    error = statistics.stdev(losses) / math.sqrt(num_rows) if num_rows > 1 else None
    return {'length': length, 'num_rows': num_rows, 'num_tokens': num_rows * length,
            'loss': loss, 'standard_error': error, 'row_losses': losses,
            'perplexity': math.exp(loss), 'is_last_left_out': False}


@torch.no_grad()
def is_found(net, ids, answer):
    """True if greedy decoding after ids gives every token of the answer."""
    tokens = torch.tensor([ids + answer[:-1]], device=net.wte.weight.device)
    logits = net.logits(net.hidden(tokens)[:, -len(answer):])[0]
    return logits.argmax(-1).tolist() == answer


def wilson(num_hits, num_trials):
    """95% Wilson interval of a share."""
    share = num_hits / num_trials
    denominator = 1 + Z * Z / num_trials
    centre = (share + Z * Z / (2 * num_trials)) / denominator
    half = Z * math.sqrt(share * (1 - share) / num_trials + Z * Z / (4 * num_trials**2))
    return [0.0 if num_hits == 0 else max(0.0, centre - half / denominator),
            1.0 if num_hits == num_trials else min(1.0, centre + half / denominator)]


def passkeys_at(net, documents, length, trials):
    """One entry of passkey.json's lengths, and the cells of this length."""
    rng, hits, drawn = passkey.Random(SEED), [0] * len(BANDS), [0] * len(BANDS)
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


def settings_of(args, state):
    """What the files of run() depend on, beside the data: lists and numbers, as JSON keeps them."""
    return {'step': state['step'], 'lengths': args.lengths, 'trials': trials_of(args),
            'eval_rows': args.eval_rows}


def is_current(args, out):
    """Whether run() has measured the state.pt of `out` with these settings."""
    path = f'{out}/evaluation.json'
    if not os.path.exists(path):
        return False
    with open(path) as file:
        return json.load(file) == settings_of(args, torch.load(f'{out}/state.pt', 'cpu'))


def run(args, directory, out):
    net, state = load_net(f'{out}/state.pt')
    with open(f'{directory}/passkey.json') as file:
        documents = passkey.Documents(json.load(file))
    measure(args, net, np.fromfile(f'{directory}/val.bin', np.uint16), documents, out)
    write(f'{out}/evaluation.json', settings_of(args, state))


def trials_of(args):
    """A number of trials for each length."""
    if len(args.trials) not in (1, len(args.lengths)):
        raise SystemExit('--trials: one number, or one for each of --lengths')
    return args.trials * len(args.lengths) if len(args.trials) == 1 else args.trials


def measure(args, net, val, documents, out):
    """Writes loss.json and passkey.json."""
    check_length(max(args.lengths), len(val))  # before the first is measured
    losses, found, cells = [], [], []
    for length, trials in zip(args.lengths, trials_of(args)):
        losses.append(loss_at(net, val, length, args.eval_rows))
        entry, bands = passkeys_at(net, documents, length, trials)
        found.append(entry)
        cells += bands
        low, high = entry['interval95']
        print(f'length {length}: loss {losses[-1]["loss"]:.4f}  passkeys {entry["accuracy"]:.0%} '
              f'({low:.0%} to {high:.0%}, {trials} trials)', flush=True)
    write(f'{out}/loss.json', {'lengths': losses})
    write(f'{out}/passkey.json', {'seed': SEED, 'lengths': found, 'depths': BANDS,
                                  'cells': sorted(cells, key=lambda cell: cell['depth'])})


def add_arguments(parser):
    parser.add_argument('--lengths', type=flags.counts, default=LENGTHS)
    parser.add_argument('--trials', type=flags.counts, default='100',
                        help='passkey documents of each length, or one number for all lengths')
    parser.add_argument('--eval-rows', type=flags.count,
                        help='rows of each length; default 8, or as many as 32K tokens and the '
                             'held-out text hold')


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--data', help='directory that prepare.py wrote')
    parser.add_argument('--run', help='directory of state.pt')
    parser.add_argument('--model', help='checkpoint directory, instead of --data and --run')
    parser.add_argument('--ids', help='uint16 ids to score; default: held_out.bin of --model')
    parser.add_argument('--out', default='.', help='output directory for --model')
    add_arguments(parser)
    args = parser.parse_args()
    if args.model:
        os.makedirs(args.out, exist_ok=True)
        measure(args, *load_checkpoint(args.model, args.ids), args.out)
    elif args.data and args.run:
        run(args, args.data, args.run)
    else:
        parser.error('give --data and --run, or --model')


if __name__ == '__main__':
    main()
