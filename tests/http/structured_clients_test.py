"""Structured output by openai, instructor, outlines and pydantic, and what jsonschema says of the
texts.

Run by ctest with LSSAR_SERVER, and with LSSAR_VENVS: where the packages of
tests/requirements-structured.txt are installed, once. Skipped where PyPI cannot be reached.
"""

import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import unittest
from typing import Any, Literal

from http_fixture import NAME, Server
import quick_models

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))

import environments

INSIDE = "LSSAR_INSIDE_STRUCTURED"
WORD = {"type": "string", "maxLength": 8}
SMALL = {"type": "integer", "minimum": -20, "maximum": 20}

# One of each kind: finite, so that 1,000 tokens are enough.
FINITE: list[Any] = [
    {"type": "null"}, {"type": "boolean"}, {"const": {"a": [1, None, "x\u00e9\n"]}},
    {"enum": ["a", 1, 2.5, None, [True], {"k": "v"}]}, {"type": "string", "enum": ["x", "y\"z"]},
    WORD, {"type": "string", "minLength": 3, "maxLength": 3},
    {"type": "string", "pattern": "^[A-Z][a-z]{1,6}$"}, {"pattern": "[0-9]{2}:[0-9]{2}"},
    {"type": "string", "format": "date"}, {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"}, {"type": "string", "maxLength": 5, "format": "x-own"},
    SMALL, {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3},
    {"type": "integer", "minimum": 0, "maximum": 99, "multipleOf": 7},
    {"type": ["integer", "null"], "minimum": 5, "maximum": 7},
    {"type": "array", "items": SMALL, "maxItems": 5}, {"type": "array", "maxItems": 0},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2},
    {"type": "array", "prefixItems": [WORD, SMALL], "items": False},
    {"type": "array", "prefixItems": [WORD], "items": SMALL, "minItems": 2, "maxItems": 4},
    {"type": "array", "items": {"type": "array", "items": SMALL, "maxItems": 2}, "maxItems": 3},
    {"type": "object", "properties": {}, "additionalProperties": False},
    {"type": "object", "properties": {"a": WORD, "b": SMALL}, "required": ["a", "b"]},
    {"type": "object", "properties": {"a": WORD, "b": SMALL, "c": {"type": "null"}}},
    {"type": "object", "properties": {"b": SMALL, "a": WORD}, "required": ["a"],
     "additionalProperties": False},
    {"type": "object", "properties": {"a": SMALL, "b": SMALL, "c": SMALL}, "minProperties": 2},
    {"type": "object", "properties": {"a": SMALL, "b": SMALL, "c": SMALL}, "maxProperties": 1},
    {"type": "object", "properties": {"a b": SMALL, "\u00fc\"": WORD}, "required": ["\u00fc\""]},
    {"type": "object", "additionalProperties": SMALL, "maxProperties": 2,
     "propertyNames": {"maxLength": 4}},
    {"type": "object", "patternProperties": {"^k_[a-z]{1,3}$": SMALL}, "maxProperties": 3,
     "additionalProperties": False},
    {"anyOf": [SMALL, WORD, {"type": "null"}]}, {"oneOf": [SMALL, {"type": "boolean"}]},
    {"oneOf": [{"properties": {"kind": {"const": kind}, "value": SMALL},
                "required": ["kind", "value"], "type": "object"} for kind in ("a", "b")]},
    {"allOf": [{"type": "object", "properties": {"a": SMALL}, "required": ["a"]}]},
    {"$ref": "#/$defs/pair", "$defs": {"pair": {"type": "array", "prefixItems": [SMALL, SMALL],
                                                "items": False}}},
    {"type": "object", "properties": {"p": {"type": "object", "properties": {
        "q": {"type": "object", "properties": {"r": SMALL}, "required": ["r"]}},
        "required": ["q"]}}, "required": ["p"]},
    {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "T", "description": "D",
     "type": "object", "properties": {"a": {"title": "A", "default": 1, "examples": [2], **SMALL}},
     "required": ["a"]},
]
# These may go on to the bound of tokens.
OPEN: list[Any] = [
    {}, True, {"type": "object"}, {"type": "array"}, {"type": "string"}, {"type": "number"},
    {"type": "number", "minimum": -1.5, "exclusiveMaximum": 7.25}, {"type": "integer"},
    {"type": "object", "additionalProperties": {"type": "boolean"}},
    {"type": "object", "properties": {"value": SMALL, "next": {"anyOf": [
        {"$ref": "#"}, {"type": "null"}]}}, "required": ["value", "next"]},
    {"type": "array", "items": {"anyOf": [{"$ref": "#"}, SMALL]}},
]

server: Server


def setUpModule() -> None:
    global server
    server = Server("--max-num-seqs", "32", model=quick_models.shallow())
    reply = server.request("POST", "/v1/completions", {"prompt": "x", "guided_regex": "a"})
    if reply.status != 200:
        raise unittest.SkipTest("this build has no xgrammar")


def tearDownModule() -> None:
    assert server.stop() == 0


def choices(schema: Any, seed: int, temperature: float, max_tokens: int) -> list[dict[str, Any]]:
    return server.post("/v1/completions", {
        "prompt": "Once upon a time there was", "response_format": {
            "type": "json_schema", "json_schema": {"name": "s", "strict": True,
                                                   "schema": schema}},
        "temperature": temperature, "n": 8, "seed": seed, "max_tokens": max_tokens})["choices"]


class StructuredClientsTest(unittest.TestCase):

    def test_every_text_is_valid(self) -> None:
        import jsonschema
        num_valid = num_cut = 0
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            # 1,200 texts. The higher the temperature, the less of a text is white space.
            cases = [(schema, is_finite, temperature) for temperature in (2, 5, 25)
                     for schemas, is_finite in ((FINITE, True), (OPEN, False))
                     for schema in schemas]
            replies = [pool.submit(choices, schema, seed, temperature, 1000 if is_finite else 150)
                       for seed, (schema, is_finite, temperature) in enumerate(cases)]
            for (schema, is_finite, _), reply in zip(cases, replies):
                validator = jsonschema.Draft202012Validator(schema)
                for choice in reply.result():
                    with self.subTest(schema=schema, text=choice["text"]):
                        if choice["finish_reason"] == "length" and not is_finite:
                            num_cut += 1
                            continue
                        self.assertEqual(choice["finish_reason"], "stop")
                        validator.validate(json.loads(choice["text"]))
                        num_valid += 1
        print(f"{num_valid} texts are valid, {num_cut} were cut")
        self.assertGreaterEqual(num_valid, 3 * 8 * len(FINITE))

    def test_parse_of_the_openai_package(self) -> None:
        import openai
        import pydantic

        class Pet(pydantic.BaseModel):
            kind: Literal["cat", "dog"]
            name: str = pydantic.Field(max_length=10)
            age: int = pydantic.Field(ge=0, le=30)

        class Family(pydantic.BaseModel):
            surname: str = pydantic.Field(pattern="[A-Z][a-z]{2,8}")
            pets: list[Pet] = pydantic.Field(max_length=2)
            is_big: bool | None

        with openai.OpenAI(base_url=f"http://{server.http_address}/v1", api_key="none") as client:
            for seed in range(5):
                reply = client.chat.completions.parse(
                    model=NAME, messages=[{"role": "user", "content": "A family with pets."}],
                    response_format=Family, seed=seed, max_tokens=1000)
                family = reply.choices[0].message.parsed
                assert isinstance(family, Family)
                self.assertLessEqual(len(family.pets), 2)
                response = client.responses.parse(
                    model=NAME, input="A family with pets.", text_format=Family,
                    max_output_tokens=1000, extra_body={"seed": seed})
                self.assertEqual(response.status, "completed")
                self.assertEqual(response.output_parsed, family)
            with client.responses.stream(model=NAME, input="A pet.", text_format=Pet,
                                         max_output_tokens=500, extra_body={"seed": 1}) as stream:
                self.assertIsInstance(stream.get_final_response().output_parsed, Pet)
            with client.chat.completions.stream(
                    model=NAME, messages=[{"role": "user", "content": "A pet."}],
                    response_format=Pet, seed=1, max_tokens=500) as stream:
                for _ in stream:
                    pass
                self.assertIsInstance(stream.get_final_completion().choices[0].message.parsed, Pet)

    def test_instructor(self) -> None:
        import instructor
        import openai
        import pydantic

        class Answer(pydantic.BaseModel):
            colour: Literal["red", "green", "blue"]
            amount: float = pydantic.Field(ge=0, le=10)

        with openai.OpenAI(base_url=f"http://{server.http_address}/v1", api_key="none") as client:
            wrapped = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
            for seed in range(5):
                answer = wrapped.create(
                    response_model=Answer, model=NAME, max_retries=0, max_tokens=400, seed=seed,
                    messages=[{"role": "user", "content": "A colour?"}])
                self.assertIsInstance(answer, Answer)

    def test_calls_of_functions(self) -> None:
        """instructor's own mode, and the openai package's tools: whole, parsed and streamed."""
        import instructor
        import openai
        import pydantic

        class Pet(pydantic.BaseModel):
            kind: Literal["cat", "dog"]
            age: int = pydantic.Field(ge=0, le=30)

        class Owner(pydantic.BaseModel):
            """A person with pets."""
            name: str = pydantic.Field(max_length=8)
            pets: list[Pet] = pydantic.Field(max_length=2)

        ask: Any = {"model": NAME, "max_tokens": 2000,
                    "messages": [{"role": "user", "content": "Who?"}]}
        with openai.OpenAI(base_url=f"http://{server.http_address}/v1", api_key="none") as client:
            wrapped = instructor.from_openai(client)
            self.assertEqual(wrapped.mode, instructor.Mode.TOOLS)
            for seed in range(3):
                self.assertIsInstance(wrapped.create(response_model=Owner, max_retries=0,
                                                     seed=seed, **ask), Owner)
            tools = [openai.pydantic_function_tool(kind) for kind in (Owner, Pet)]
            for seed in range(5):
                forced: Any = {**ask, "tools": tools, "tool_choice": "required", "seed": seed}
                reply = client.chat.completions.parse(**forced)
                [call] = reply.choices[0].message.tool_calls or []
                self.assertIsInstance(call.function.parsed_arguments, (Owner, Pet))
                with client.chat.completions.stream(**forced) as stream:
                    for _ in stream:
                        pass
                    [streamed] = (stream.get_final_completion().choices[0].message.tool_calls
                                  or [])
                self.assertEqual(streamed.function, call.function)
            # The result goes back, as agents send it.
            answer = client.chat.completions.create(**{**ask, "messages": [
                *ask["messages"], reply.choices[0].message.to_dict(),
                {"role": "tool", "tool_call_id": call.id, "content": "found"}]}, tools=tools,
                                                    tool_choice="none", temperature=0)
            self.assertTrue(answer.choices[0].message.content)

    def test_outlines(self) -> None:
        """Its classes for OpenAI, vLLM and SGLang, each with its own fields."""
        import openai
        import outlines
        import pydantic

        class Pet(pydantic.BaseModel):
            kind: Literal["cat", "dog"]
            age: int = pydantic.Field(ge=0, le=30)

        common = {"max_tokens": 500, "seed": 1}
        with openai.OpenAI(base_url=f"http://{server.http_address}/v1", api_key="none") as client:
            for kind in (outlines.from_openai, outlines.from_vllm, outlines.from_sglang):
                with self.subTest(kind=kind.__name__):
                    model = kind(client, NAME)
                    self.assertTrue(model("A story.", max_tokens=5, temperature=0))
                    text = model("A pet.", Pet, **common)
                    Pet.model_validate_json(text)
                    self.assertEqual("".join(model.stream("A pet.", Pet, **common)), text)
            for kind in (outlines.from_vllm, outlines.from_sglang):
                with self.subTest(kind=kind.__name__):
                    model = kind(client, NAME)
                    self.assertRegex(model("A code.", outlines.types.Regex("[A-Z]{3}-[0-9]{4}"),
                                           **common), "^[A-Z]{3}-[0-9]{4}$")
                    self.assertIn(model("A pet.", Literal["cat", "dog"], **common), ("cat", "dog"))
                    grammar = outlines.types.CFG('root ::= "yes" | "no"')
                    self.assertIn(model("Is it?", grammar, **common), ("yes", "no"))


if __name__ == "__main__":
    if INSIDE in os.environ:
        unittest.main()
    try:
        interpreter = environments.environment("structured", has_client=False)
    except unittest.SkipTest as error:
        print(error)
        sys.exit(0)
    sys.exit(subprocess.run([interpreter, *sys.argv], check=False,
                            env={**os.environ, INSIDE: "1"}).returncode)
