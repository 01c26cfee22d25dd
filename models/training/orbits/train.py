"""Trains a GPT on orbits, then fine-tunes it to predict forces; CPU or one GPU.

    train.py --out RUN --preset cpu --attention lssar [--seed 0] [--steps N] [--no-pretraining]

Writes checkpoint directories that lssar-server serves: RUN/orbits (predicts the next id),
RUN/vector and RUN/magnitude (regression heads), and RUN/log.jsonl. The same command goes on where
it was stopped; one with other settings is refused. Runs of both kinds with one seed see the same
systems in the same order.
"""

import argparse
import contextlib
import copy
import dataclasses
import json
import os
import pathlib
import signal
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
# attention_cpu.cc has threads of its own.
os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')

import numpy as np  # noqa: E402
import torch  # noqa: E402

import checkpoint_files  # noqa: E402
import flags  # noqa: E402
import model  # noqa: E402
import optimizers  # noqa: E402
import systems  # noqa: E402

SAVE_SECONDS = 120
LOG_STEPS = 20
WARM_UP = 50  # steps
DECAY = 0.3  # the last share of the steps: learning rates fall to 0
KINDS = ('lssar', 'softmax')


@dataclasses.dataclass
class Preset:
    """Sizes and budgets."""

    name: str
    what: str
    layers: int
    heads: int
    hidden_size: int
    orbit_steps: int  # positions of a trajectory: 1 + 2 orbit_steps ids
    rows: int  # trajectories of a step
    steps: int
    force_steps: int  # of each fine-tuning
    magnitude_systems: int  # of which a tenth is held out
    bins: int = 512  # of a coordinate
    lr: float = 3e-3  # AdamW: embedding, biases, norms, heads
    muon_lr: float = 0.02  # Muon: the blocks' matrices

    @property
    def grid(self):
        return systems.Grid(self.bins)


PRESETS = {preset.name: preset for preset in (
    Preset('smoke', 'seconds: tests the whole chain', 2, 2, 32, 16, 8, 6, 4, 40),
    Preset('cpu-10min', 'one core: a look at the chain with a little learning', 2, 2, 64, 64, 16,
           2000, 300, 1000),
    Preset('cpu', 'two cores, some 35 minutes; its start has run', 4, 4, 128, 64, 32, 3000, 300,
           1000),
    Preset('gpu', "one GPU: the sizes of the paper's 109M", 12, 12, 768, 499, 64, 156250, 2000,
           10000, bins=7000, lr=6e-4, muon_lr=0.01),
)}
FORCE_LR, FORCE_MUON_LR = 1e-3, 5e-3


class ForceGPT(torch.nn.Module):
    """A GPT whose final hidden states a linear head maps to forces."""

    def __init__(self, gpt, outputs):
        super().__init__()
        self.gpt = gpt
        self.head = torch.nn.Linear(gpt.c.n_embd, outputs)
        torch.nn.init.normal_(self.head.weight, std=0.02)
        torch.nn.init.zeros_(self.head.bias)

    def forward(self, ids):
        """[rows, length] -> [rows, length, outputs]"""
        return self.head(self.gpt.hidden(ids))


def rate_scale(step, steps):
    """Factor of the learning rates: warm-up, constant, linear decay."""
    return min(1.0, (step + 1) / min(WARM_UP, max(1, steps // 4)),
               max(0.02, (1 - step / steps) / DECAY))


class Trainer:
    """A net with its optimizers. A step's rows depend on the seed and the step alone."""

    def __init__(self, net, lr, muon_lr, steps):
        self.net, self.rates, self.steps = net, (lr, muon_lr), steps
        self.optimizers = optimizers.optimizers_of(net, lr, muon_lr)
        self.step, self.spent_s = 0, 0.0

    def learn(self, loss):
        """One step down the gradient of a loss."""
        scale = rate_scale(self.step, self.steps)
        for optimizer, rate in zip(self.optimizers, self.rates):
            for group in optimizer.param_groups:
                group['lr'] = rate * scale
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        self.net.zero_grad(set_to_none=True)
        self.step += 1

    def state(self):
        return {'net': self.net.state_dict(), 'opt': [o.state_dict() for o in self.optimizers],
                'step': self.step, 'spent_s': self.spent_s}

    def load(self, state):
        self.net.load_state_dict(state['net'])
        for optimizer, saved in zip(self.optimizers, state['opt']):
            optimizer.load_state_dict(saved)
        self.step, self.spent_s = state['step'], state['spent_s']


class Run:
    """The stages of one run, with their files."""

    def __init__(self, given):
        self.out, self.seed = given.out, given.seed
        self.preset = dataclasses.replace(PRESETS[given.preset], **{
            name: getattr(given, name) for name in ('steps', 'force_steps')
            if getattr(given, name) is not None})
        self.pretraining = given.pretraining
        self.device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
        p = self.preset
        self.config = model.Config(p.grid.vocabulary, p.layers, p.heads, p.hidden_size,
                                   1 + 2 * p.orbit_steps, given.attention)
        self.signals = []
        os.makedirs(self.out, exist_ok=True)
        self.check_owner()

    def settings(self):
        """What the weights depend on, by the flag that says it. Flags without one are a preset's.
        """
        return {'--seed': self.seed, '--attention': self.config.attention,
                '--no-pretraining': not self.pretraining,
                **{'--' + name.replace('_', '-'): value
                   for name, value in dataclasses.asdict(self.preset).items()
                   if name not in ('name', 'what')}}

    def check_owner(self):
        """Writes run.json, which a run has from its first step on.

        Errors: SystemExit where the files in --out are of other settings.
        """
        path, settings = f'{self.out}/run.json', self.settings()
        if os.path.exists(path):
            with open(path) as file:
                owner = json.load(file)
            for name, value in settings.items():
                if owner.get(name) != value:
                    raise SystemExit(f'--out {self.out} has a run with {name} {owner.get(name)}, '
                                     f'not {value}: give another')
        elif list(pathlib.Path(self.out).glob('*.pt')):
            raise SystemExit(f'--out {self.out} has a run without run.json, of an earlier version: '
                             'give another')
        with open(path + '.tmp', 'w') as file:
            json.dump(settings, file, indent=1)
        os.replace(path + '.tmp', path)

    def log(self, stage, trainer, loss):
        line = {'stage': stage, 'step': trainer.step, 'seconds': round(trainer.spent_s, 1),
                'loss': round(loss, 5)}
        with open(f'{self.out}/log.jsonl', 'a') as file:
            file.write(json.dumps(line) + '\n')
        print(f'{self.config.attention} {stage} {trainer.step}/{trainer.steps}: {loss:.4f}, '
              f'{trainer.spent_s / max(1, trainer.step):.2f} s a step', flush=True)

    def save(self, name, trainer):
        path = f'{self.out}/{name}.pt'
        torch.save(trainer.state(), path + '.tmp')
        os.replace(path + '.tmp', path)

    def stage(self, name, trainer, loss_of):
        """Trains to the end of the budget, from where it was stopped. Errors: SystemExit."""
        path = f'{self.out}/{name}.pt'
        if os.path.exists(path):
            trainer.load(torch.load(path, map_location=self.device))
        before_s, start_s = trainer.spent_s, time.monotonic()
        saved_s, first = start_s, trainer.step
        while trainer.step < trainer.steps and not self.signals:
            loss = loss_of(trainer.step)
            trainer.learn(loss)
            trainer.spent_s = before_s + time.monotonic() - start_s
            if trainer.step % LOG_STEPS == 0 or trainer.step == trainer.steps:
                self.log(name, trainer, float(loss.detach()))
            if time.monotonic() - saved_s > SAVE_SECONDS:
                saved_s = time.monotonic()
                self.save(name, trainer)
        if trainer.step > first:
            self.save(name, trainer)
        if self.signals:
            raise SystemExit('stopped before the end: the same command goes on')

    def ids(self, rows):
        return torch.from_numpy(rows).to(self.device)

    def pretrain(self):
        """The net that predicts ids."""
        torch.manual_seed(self.seed)
        net = model.GPT(self.config).to(self.device)
        if not self.pretraining:
            return net
        trainer = Trainer(net, self.preset.lr, self.preset.muon_lr, self.preset.steps)

        def loss_of(step):
            drawn = systems.sample(np.random.default_rng([self.seed, 0, step]), self.preset.rows)
            places = systems.positions(drawn, self.preset.orbit_steps)
            ids = self.ids(self.preset.grid.ids_of(drawn, places))
            with self.precision():
                return net(ids[:, :-1], ids[:, 1:]).mean()

        self.stage('orbits', trainer, loss_of)
        return net

    def precision(self):
        """bfloat16 products on a GPU, as train.py of the text recipe."""
        if self.device.type == 'cpu':
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def fine_tune(self, name, net, data):
        """The net with a head for the targets; all weights learn."""
        torch.manual_seed(self.seed + 1)
        force = ForceGPT(copy.deepcopy(net), data.targets.shape[-1]).to(self.device)
        trainer = Trainer(force, FORCE_LR, FORCE_MUON_LR, self.preset.force_steps)
        places = systems.y_positions(self.preset.orbit_steps)
        rows = np.flatnonzero(data.is_labelled.any(1))
        mean = data.targets[data.is_labelled].mean(0)
        # A trained head has the data's mean and spread from the start.
        spread = data.targets[data.is_labelled].std() + 1e-9
        with torch.no_grad():
            force.head.bias.copy_(torch.from_numpy(mean))

        def loss_of(step):
            random = np.random.default_rng([self.seed, 1, step])
            chosen = rows
            if len(rows) > self.preset.rows:
                chosen = random.choice(rows, self.preset.rows, replace=False)
            with self.precision():
                predicted = force(self.ids(data.ids[chosen]))[:, places]
            error = (predicted.float() - self.ids(data.targets[chosen]).float()) / spread
            known = self.ids(data.is_labelled[chosen])
            return error[known].square().mean()

        self.stage(name, trainer, loss_of)
        return force

    def export(self, name, net, head=None, **facts):
        """A checkpoint directory."""
        checkpoint_files.write_model(net, f'{self.out}/{name}', 'F32', head=head)
        with open(f'{self.out}/{name}/training.json', 'w') as file:
            json.dump({'preset': dataclasses.asdict(self.preset), 'seed': self.seed,
                       'attention': self.config.attention, 'pretraining': self.pretraining,
                       **facts}, file, indent=1)

    def quality(self, net, rows=64):
        """How well the next position is predicted, on systems that were never trained on."""
        drawn = systems.sample(np.random.default_rng([self.seed, 2]), rows)
        places = systems.positions(drawn, self.preset.orbit_steps)
        ids = self.ids(self.preset.grid.ids_of(drawn, places))
        with torch.no_grad():
            logits = net(ids[:, :-1]).float()
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        late = 8 if self.preset.orbit_steps > 16 else 2  # steps after the motion can be known
        bins = logits.argmax(-1).cpu().numpy()
        grid = self.preset.grid
        found = grid.centre_of(np.stack((bins[:, 0::2], bins[:, 1::2] - grid.bins), -1))
        distance = np.linalg.norm(places, axis=-1)[:, late:]
        linear = 2 * places[:, late - 1:-1] - places[:, late - 2:-2]
        errors = {'model': found[:, late:], 'last_position': places[:, late - 1:-1],
                  'straight_line': linear,
                  'bin_centre': grid.centre_of(grid.bins_of(places[:, late:]))}
        return {'nats_an_id': float(loss), 'median_error_in_radii': {
            name: float(np.median(np.linalg.norm(at - places[:, late:], axis=-1) / distance))
            for name, at in errors.items()}}

    def run(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda which, frame: self.signals.append(which))
        net = self.pretrain()
        quality = self.quality(net)
        print(json.dumps(quality), flush=True)
        self.export('orbits', net, quality=quality)
        p = self.preset
        for name, data in (
                ('vector', systems.vector_data(p.grid, p.orbit_steps, self.seed)),
                ('magnitude', systems.magnitude_data(p.grid, p.orbit_steps, self.seed,
                                                     p.magnitude_systems))):
            force = self.fine_tune(name, net, data)
            self.export(name, force.gpt, force.head)


def arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    text = '; '.join(f'{name}: {preset.what}' for name, preset in PRESETS.items())
    parser.add_argument('--out', required=True)
    parser.add_argument('--preset', choices=PRESETS, default='cpu', help=text)
    parser.add_argument('--attention', choices=KINDS, default='lssar')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--steps', type=flags.count, help='of the pretraining; default: the preset')
    parser.add_argument('--force-steps', type=flags.count, help='of each fine-tuning')
    parser.add_argument('--no-pretraining', dest='pretraining', action='store_false',
                        help='the control: fine-tune a net that has seen no orbit')
    parser.add_argument('--threads', type=flags.count, help='of PyTorch')
    return parser.parse_args(words)


def main():
    given = arguments()
    if given.threads:
        torch.set_num_threads(given.threads)
    Run(given).run()


if __name__ == '__main__':
    main()
