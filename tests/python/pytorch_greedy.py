"""How far answers are from PyTorch's greedy ones: pytorch_greedy.py CHECKPOINT ROWS.json

ROWS: [[ids of a prompt, ids of its answer], ...]. Prints, for each, by how much a logit is above
that of the answer's own id, at most over the answer's places; 0 where all ids are PyTorch's.
"""

import json
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / 'models' / 'training'))

import checkpoint_files  # noqa: E402


def main():
    net = checkpoint_files.read_model(sys.argv[1]).eval()
    worst = []
    for prompt, answer in json.loads(pathlib.Path(sys.argv[2]).read_text()):
        with torch.no_grad():
            logits = net(torch.tensor([prompt + answer[:-1]]))[0, len(prompt) - 1:].double()
        own = logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
        worst.append((logits.max(1).values - own).max().item())
    print(json.dumps(worst))


if __name__ == '__main__':
    main()
