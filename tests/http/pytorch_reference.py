"""Log-likelihoods by the PyTorch model of models/training, for foreign_clients_test.py.

    /usr/bin/python3 tests/http/pytorch_reference.py CHECKPOINT '[["context", "word"], ...]'

Prints [[log-likelihood of " word" after the context, whether all its tokens are most probable]].
Contexts have no BOS, as lm-evaluation-harness tokenizes them.
"""

import json
import pathlib
import sys

import sentencepiece
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "models" / "training"))

import checkpoint_files


def main() -> None:
    directory, rows = sys.argv[1], json.loads(sys.argv[2])
    net = checkpoint_files.read_model(directory).eval()
    tokenizer = sentencepiece.SentencePieceProcessor(f"{directory}/tokenizer.model")
    results = []
    for context, word in rows:
        first = len(tokenizer.encode(context))
        ids = tokenizer.encode(f"{context} {word}")
        with torch.no_grad():
            logprobs = torch.log_softmax(net(torch.tensor([ids]))[0].double(), -1)
        places = range(first, len(ids))
        results.append([sum(logprobs[i - 1, ids[i]].item() for i in places),
                        all(logprobs[i - 1].argmax().item() == ids[i] for i in places)])
    print(json.dumps(results))


if __name__ == "__main__":
    main()
