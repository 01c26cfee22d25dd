"""Run by examples_test.py under pytest-xdist, all of it in each of two workers."""

import os

import pytest

from lssar import LLM, SamplingParams

PROMPT = 'The sea is'


@pytest.fixture(scope='session')
def llm():
    with LLM('models/zoo/lssar-6m', threads=1, max_model_len=256, kv_cache_memory='32M') as model:
        yield model


@pytest.mark.parametrize('seed', range(3))
def test_seeds_give_the_same_text_in_every_worker(llm, seed, request):
    params = SamplingParams(max_tokens=8, seed=seed, temperature=1)
    [result] = llm.generate(PROMPT, params)
    folder = os.environ['LSSAR_TEXTS']
    worker = request.config.workerinput['workerid']
    with open(f'{folder}/{seed}-{worker}', 'w', encoding='utf-8') as file:
        file.write(result.outputs[0].text)
    assert result.outputs[0].text == llm.generate(PROMPT, params)[0].outputs[0].text
