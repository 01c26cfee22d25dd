"""Asks models the same questions and prints every answer in full, as Markdown; or decodes a text.

    questions.py ask MODEL_DIR... > answers.md
    questions.py decode models/zoo/lssar-6m > text.txt     the articles of its held_out.bin

Needs the Python client of clients/python and lssar-server in PATH.
"""

import os
import sys
import textwrap

import numpy as np

from lssar import LLM, SamplingParams

END = 2  # between the documents of held_out.bin: articles, then dialogs
# Chosen before any answer was seen: facts, arithmetic, writing, instructions, small talk.
QUESTIONS = (
    'What is the capital of France?',
    'What is the largest planet of the solar system?',
    'Who wrote Romeo and Juliet?',
    'What is 7 plus 5?',
    'Which is heavier, a kilogram of iron or a kilogram of feathers?',
    'Name three colours of the rainbow.',
    'How many days does a week have?',
    'What do bees make?',
    'Translate "good morning" into French.',
    'Why is the sky blue?',
    'What is photosynthesis? Answer in one sentence.',
    'Write a short poem about the sea.',
    'Give me three tips for sleeping well.',
    'Write a polite e-mail that declines an invitation.',
    'What should I cook with potatoes, eggs and onions?',
    'Explain what a computer is to a child.',
    'My name is Ada and I live in Oslo. Where do I live?',
    'The box is red and the ball is green. What colour is the ball?',
    'Correct this sentence: "She go to school yesterday."',
    'Hello! How are you today?',
)
PARAMS = SamplingParams(max_tokens=160, temperature=0)


def quoted(text):
    """A quotation in Markdown, in lines of 118 columns."""
    lines = [part for line in text.split('\n') for part in textwrap.wrap(line, 116) or ['']]
    return '\n'.join(f'> {line}'.rstrip() for line in lines)


def ask(directories):
    """Greedy answers of each model, question by question."""
    answers = []
    for directory in directories:
        with LLM(directory) as model:
            answers.append(model.chat([[{'role': 'user', 'content': question}]
                                       for question in QUESTIONS], PARAMS))
    for i, question in enumerate(QUESTIONS):
        print(f'**{i + 1}. {question}**\n')
        for directory, found in zip(directories, answers):
            name = os.path.basename(os.path.normpath(directory))
            end = ' [...]' if found[i].outputs[0].finish_reason == 'LENGTH' else ''
            print(f'{name}:\n\n{quoted(found[i].text.strip() + end)}\n')


def decode(directory):
    ids, document = np.fromfile(f'{directory}/held_out.bin', np.uint16).tolist(), []
    with LLM(directory) as model:
        for each in [*ids, END]:
            if each != END:
                document.append(each)
                continue
            text = model.decode(document) if document else ''
            if not text.startswith('<|'):
                print(text, end='\n\n')
            document = []


def main():
    command, *paths = sys.argv[1:] or ['']
    if command == 'ask' and paths:
        ask(paths)
    elif command == 'decode' and len(paths) == 1:
        decode(*paths)
    else:
        sys.exit(__doc__)


if __name__ == '__main__':
    main()
