"""Trains a small LSSAR-GPT on packed tokens plus passkey documents; CPU or one GPU.

    train.py --data DIR --out DIR [--attention lssar|softmax] [--minutes 120]

DIR holds tokens.bin (uint16 ids, documents joined by EOS), val.bin and tokenizer.model. Writes
state.pt (for --resume, export.py and evaluate.py), model.safetensors, config.json and log.csv.
"""

import argparse
import csv
import os
import random
import time

import numpy as np
import sentencepiece
import torch

import checkpoint_files
import model
import passkey


class Muon(torch.optim.Optimizer):
    """Momentum orthogonalised by Newton-Schulz (Jordan et al. 2024), for the blocks' matrices."""

    def __init__(self, params, lr=0.02, momentum=0.95, weight_decay=0.1):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for g in self.param_groups:
            for w in g['params']:
                if w.grad is None:
                    continue
                m = self.state[w].setdefault('m', torch.zeros_like(w))
                m.lerp_(w.grad, 1 - g['momentum'])
                x = w.grad.lerp(m, g['momentum'])
                tall = x.shape[0] > x.shape[1]
                x = (x.T if tall else x) / (x.norm() + 1e-7)
                for _ in range(5):
                    a = x @ x.T
                    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
                x = x.T if tall else x
                w.mul_(1 - g['lr'] * g['weight_decay']).add_(
                    x, alpha=-g['lr'] * max(1, w.shape[0] / w.shape[1]) ** 0.5
                )


class Batches:
    """Rows of text, passkey documents and repeated segments."""

    def __init__(self, a, sp, seed):
        self.tok = np.memmap(f'{a.data}/tokens.bin', dtype=np.uint16, mode='r')
        self.sp, self.a, self.rng, self.np = sp, a, random.Random(seed), np.random.default_rng(seed)
        self.fill = len(sp.encode(passkey.FILL))

    def text_unit(self):
        """A line from the training text, as filler."""
        start = self.rng.randrange(len(self.tok) - 64)
        ids = self.tok[start : start + self.rng.randint(10, 40)].astype(int).tolist()
        return self.sp.decode(ids).replace('\n', ' ')

    def passkey_doc(self, length):
        """One passkey document of at most about `length` tokens.

        Returns its ids, and how many at its end are the answer.
        """
        n = max(0, (length - 110) // self.fill)
        filler = self.text_unit if self.rng.random() < 0.5 else None
        text, key = passkey.make(n, self.rng, filler=filler)
        ids = self.sp.encode(text)
        answer = self.sp.encode(text + ' ' + key + '.')[len(ids) :] + [self.sp.eos_id()]
        return ids + answer, len(answer)

    def passkey_row(self, L):
        """Documents of log-uniform lengths until the row is full.

        Answers weigh more than the filler around them.
        """
        ids, weight = [], []
        while True:
            room = L + 1 - len(ids)
            doc, n = self.passkey_doc(int(120 * (L / 120) ** self.rng.random()))
            if len(doc) > room:
                break
            ids += doc
            weight += [1.0] * (len(doc) - n) + [self.a.answer_weight] * (n - 1) + [1.0]
        start = self.rng.randrange(len(self.tok) - room - 1)
        return (
            np.array(self.tok[start : start + room].astype(int).tolist() + ids, dtype=np.int64),
            np.array([1.0] * room + weight, dtype=np.float32),
        )

    def repeat_row(self, L):
        """A random segment over and over: what teaches copying from context early.

        Only the copies are scored.
        """
        n = int(8 * (L / 16) ** self.rng.random())
        seg = self.np.permutation(self.tok[self.np.integers(0, len(self.tok), n)].astype(np.int64))
        if self.rng.random() < 0.5:  # numbers between words, as passkeys stand
            digits = np.array([self.sp.piece_to_id(str(d)) for d in range(10)])
            seg = np.where(self.np.random(n) < 0.7, digits[self.np.integers(0, 10, n)], seg)
        row = np.tile(seg, L // n + 2)[: L + 1]
        w = np.ones(L + 1, np.float32)
        w[: n + 1] = 0
        return row, w

    def train(self, B, L):
        rows, weights = [], []
        for _ in range(B):
            draw = self.rng.random()
            if draw < self.a.passkey:
                row, w = self.passkey_row(L)
            elif draw < self.a.passkey + self.a.repeat:
                row, w = self.repeat_row(L)
            else:
                i = self.rng.randrange(len(self.tok) - L - 1)
                row, w = self.tok[i : i + L + 1].astype(np.int64), np.ones(L + 1, np.float32)
            rows.append(row)
            weights.append(w)
        return torch.from_numpy(np.stack(rows)), torch.from_numpy(np.stack(weights))


def validation_rows(val, B, L):
    """B rows of L + 1 tokens, at equal steps through val."""
    step = (len(val) - L - 1) // B
    rows = [val[i * step : i * step + L + 1].astype(np.int64) for i in range(B)]
    return torch.from_numpy(np.stack(rows))


@torch.no_grad()
def evaluate(net, val, device, lengths, rows=8):
    """{length: mean loss in nats a token}."""
    losses = {}
    for L in lengths:
        tokens = validation_rows(val, max(1, min(rows, 32768 // L)), L).to(device)
        parts = [
            net(part[:, :-1], part[:, 1:], fused=device.type == 'cpu').float().mean().item()
            for part in tokens.split(max(1, 4096 // L))
        ]
        losses[L] = sum(parts) / len(parts)
    return losses


@torch.no_grad()
def probe(net, sp, device, length, trials=20, seed=7):
    """Greedy passkey accuracy at about `length` tokens."""
    rng, ok = random.Random(seed), 0
    unit = len(sp.encode(passkey.FILL))
    for _ in range(trials):
        n = max(0, (length - 110) // unit)
        text, key = passkey.make(n, rng)
        ids = [sp.eos_id()] + sp.encode(text)
        want = sp.encode(text + ' ' + key + '.')[len(ids) - 1 :]
        tokens = torch.tensor([ids + want[:-1]], device=device)
        logits = net(tokens, fused=device.type == 'cpu')[0, -len(want) :]
        ok += logits.argmax(-1).tolist() == want
    return ok / trials


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--data', required=True)
    parser.add_argument('--out', required=True)
    model.add_arguments(parser, n_ctx=512)
    parser.add_argument('--batch', type=int, default=16, help='rows of --ctx tokens')
    parser.add_argument('--accum', type=int, default=1, help='batches of one step')
    parser.add_argument('--lr', type=float, default=3e-3, help='of AdamW')
    parser.add_argument('--muon-lr', type=float, default=0.02, help='of the matrices in the blocks')
    parser.add_argument('--warmup', type=int, default=100, help='steps')
    parser.add_argument('--minutes', type=float, default=60)
    parser.add_argument('--passkey', type=float, default=0.15, help='share of the rows')
    parser.add_argument('--answer-weight', type=float, default=8.0)
    parser.add_argument('--repeat', type=float, default=0.0, help='share of the rows')
    parser.add_argument('--dtype', default='F32', choices=('F32', 'F16', 'BF16'))
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--resume', action='store_true')
    return parser.parse_args()


class Run:
    """A net, its optimizers and how far it has come."""

    def __init__(self, args):
        self.args = args
        self.device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
        path = f'{args.data}/tokenizer.model'
        self.tokenizer = sentencepiece.SentencePieceProcessor(model_file=path)
        config = model.config_of(args, self.tokenizer.vocab_size())
        self.net = model.GPT(config).to(self.device)
        named = list(self.net.named_parameters())
        inner = [w for name, w in named if w.dim() == 2 and name.startswith('h.')]
        other = [w for name, w in named if w.dim() < 2 or not name.startswith('h.')]
        adam = torch.optim.AdamW(other, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0)
        self.optimizers = [adam, Muon(inner, lr=args.muon_lr)]
        self.step = self.tokens = 0
        self.spent_s = 0.0
        self.path = f'{args.out}/state.pt'
        if args.resume and os.path.exists(self.path):
            self.load()
        seed = args.seed + int(time.time() if args.resume else 0)
        self.batches = Batches(args, self.tokenizer, seed)
        self.val = np.memmap(f'{args.data}/val.bin', dtype=np.uint16, mode='r')

    def load(self):
        state = torch.load(self.path, map_location=self.device)
        self.net.load_state_dict(state['net'])
        for optimizer, saved in zip(self.optimizers, state['opt']):
            optimizer.load_state_dict(saved)
        self.step, self.tokens, self.spent_s = state['step'], state['tokens'], state['spent']

    def save(self, spent_s):
        torch.save({'net': self.net.state_dict(), 'opt': [o.state_dict() for o in self.optimizers],
                    'step': self.step, 'tokens': self.tokens, 'spent': spent_s}, self.path)

    def set_rates(self, progress):
        """Warm-up, flat to the middle, then down in a line."""
        scale = min(1, (self.step + 1) / self.args.warmup)
        if progress >= 0.5:
            scale *= max(0.02, (1 - progress) / 0.5)
        for optimizer, peak in zip(self.optimizers, (self.args.lr, self.args.muon_lr)):
            for group in optimizer.param_groups:
                group['lr'] = peak * scale

    def train_step(self):
        """Returns the loss and the answers' own loss, nats a token."""
        args, total = self.args, 0.0
        self.net.train()
        for _ in range(args.accum):
            tokens, weight = (x.to(self.device) for x in self.batches.train(args.batch, args.ctx))
            weight = weight[:, 1:].reshape(-1)
            each = self.net(tokens[:, :-1], tokens[:, 1:], fused=self.device.type == 'cpu')
            loss = (each * weight).sum() / weight.sum() / args.accum
            loss.backward()
            total += loss.item()
            answers = each.detach()[weight > 1]
            self.tokens += args.batch * args.ctx
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        self.net.zero_grad(set_to_none=True)
        self.step += 1
        return total, answers.mean().item()

    def evaluate(self, lengths, trials):
        """Loss and passkey accuracy by length."""
        self.net.eval()
        losses = evaluate(self.net, self.val, self.device, lengths)
        hits = {L: probe(self.net, self.tokenizer, self.device, L - 20, trials) for L in lengths}
        for L in lengths:
            print(f'  length {L}: loss {losses[L]:.4f} passkey {hits[L]:.2f}', flush=True)
        return [*losses.values(), *hits.values()]


def main():
    args = arguments()
    os.makedirs(args.out, exist_ok=True)
    torch.manual_seed(args.seed)
    run = Run(args)
    num_parameters = sum(w.numel() for w in run.net.parameters())
    print(f'{num_parameters / 1e6:.2f}M parameters, {run.device}', flush=True)
    start_s = saved_s = time.time()
    with open(f'{args.out}/log.csv', 'a') as file:
        log = csv.writer(file)
        while True:
            spent_s = run.spent_s + time.time() - start_s
            progress = spent_s / (args.minutes * 60)
            if progress >= 1:
                break
            run.set_rates(progress)
            loss, answers = run.train_step()
            if run.step % 20 == 1:
                rate = run.tokens / max(1e-9, spent_s)
                print(f'step {run.step} loss {loss:.4f} answers {answers:.3f} tok/s {rate:.0f} '
                      f'progress {progress:.3f}', flush=True)
            if run.step % 200 == 0:
                scores = run.evaluate([args.ctx, 4 * args.ctx], trials=8)
                log.writerow([run.step, run.tokens, spent_s, loss, *scores])
            if time.time() - saved_s > 600:
                saved_s = time.time()
                run.save(spent_s)
    run.save(args.minutes * 60)
    checkpoint_files.write_model(run.net, args.out, args.dtype,
                                 bos_token_id=run.tokenizer.eos_id(),
                                 eos_token_id=run.tokenizer.eos_id())
    run.evaluate([args.ctx * m for m in (1, 2, 4, 8, 16)], trials=8)


if __name__ == '__main__':
    main()
