#include "server/http/openapi.h"

namespace lssar {
namespace {

// tests/http/openai_shapes_test.py checks real answers against it.
constexpr std::string_view kOpenApi = R"json({
"openapi": "3.1.0",
"info": {
  "title": "lssar-server",
  "version": "1",
  "description": "OpenAI's completions API, vLLM's tokenizer API, and exact scoring, on one port. Unknown fields are ignored; fields that would change the result and are not supported are refused by name."
},
"security": [{"apiKey": []}],
"paths": {
  "/v1/completions": {"post": {
    "summary": "Continues prompts.",
    "requestBody": {"required": true, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/CompletionRequest"}}}},
    "responses": {
      "200": {"description": "The completion; where `stream` is true, events (data: CompletionChunk) that end in data: [DONE].", "content": {
        "application/json": {"schema": {"$ref": "#/components/schemas/Completion"}},
        "text/event-stream": {"schema": {"$ref": "#/components/schemas/CompletionChunk"}}}},
      "default": {"$ref": "#/components/responses/Error"}}}},
  "/v1/chat/completions": {"post": {
    "summary": "Answers a chat, rendered with the checkpoint's own template.",
    "requestBody": {"required": true, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ChatRequest"}}}},
    "responses": {
      "200": {"description": "The answer; where `stream` is true, events (data: ChatChunk) that end in data: [DONE].", "content": {
        "application/json": {"schema": {"$ref": "#/components/schemas/ChatCompletion"}},
        "text/event-stream": {"schema": {"$ref": "#/components/schemas/ChatChunk"}}}},
      "default": {"$ref": "#/components/responses/Error"}}}},
  "/v1/score": {"post": {
    "summary": "Log-probabilities of continuations after contexts. Each context is computed once.",
    "requestBody": {"required": true, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ScoreRequest"}}}},
    "responses": {
      "200": {"description": "One score for each continuation.", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Scores"}}}},
      "default": {"$ref": "#/components/responses/Error"}}}},
  "/v1/embeddings": {"post": {
    "summary": "Hidden states after the final norm, or the outputs of the checkpoint's regression head.",
    "requestBody": {"required": true, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/EmbeddingRequest"}}}},
    "responses": {
      "200": {"description": "One embedding for each input.", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Embeddings"}}}},
      "default": {"$ref": "#/components/responses/Error"}}}},
  "/v1/models": {"get": {
    "summary": "The model that is served.",
    "responses": {
      "200": {"description": "A list of one.", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ModelList"}}}},
      "default": {"$ref": "#/components/responses/Error"}}}},
  "/v1/models/{model}": {"get": {
    "summary": "The model of that name.",
    "parameters": [{"name": "model", "in": "path", "required": true, "schema": {"type": "string"}}],
    "responses": {
      "200": {"description": "The model.", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Model"}}}},
      "default": {"$ref": "#/components/responses/Error"}}}},
  "/tokenize": {"post": {
    "summary": "Token ids of a text or a chat.",
    "requestBody": {"required": true, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/TokenizeRequest"}}}},
    "responses": {
      "200": {"description": "The ids.", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Tokens"}}}},
      "default": {"$ref": "#/components/responses/Error"}}}},
  "/detokenize": {"post": {
    "summary": "The text of token ids.",
    "requestBody": {"required": true, "content": {"application/json": {"schema": {
      "type": "object", "required": ["tokens"], "properties": {
        "model": {"type": "string"}, "tokens": {"$ref": "#/components/schemas/Ids"}}}}}},
    "responses": {
      "200": {"description": "The text.", "content": {"application/json": {"schema": {
        "type": "object", "required": ["prompt"], "properties": {"prompt": {"type": "string"}}}}}},
      "default": {"$ref": "#/components/responses/Error"}}}},
  "/tokenizer_info": {"get": {
    "summary": "The checkpoint's tokenizer_config.json, with ids and lengths.",
    "responses": {
      "200": {"description": "The tokenizer.", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/TokenizerInfo"}}}},
      "default": {"$ref": "#/components/responses/Error"}}}},
  "/metrics": {"get": {
    "summary": "Metrics in Prometheus' text format. Where the server has API keys: an admin's.",
    "responses": {
      "200": {"description": "The page.", "content": {"text/plain": {"schema": {"type": "string"}}}},
      "default": {"$ref": "#/components/responses/Error"}}}},
  "/healthz": {"get": {
    "summary": "Whether the process works.", "security": [],
    "responses": {
      "200": {"description": "ok", "content": {"text/plain": {"schema": {"type": "string"}}}},
      "503": {"description": "The reason.", "content": {"text/plain": {"schema": {"type": "string"}}}}}}},
  "/readyz": {"get": {
    "summary": "Whether requests are served: not while the model loads, or while the server drains.", "security": [],
    "responses": {
      "200": {"description": "ok", "content": {"text/plain": {"schema": {"type": "string"}}}},
      "503": {"description": "The reason.", "content": {"text/plain": {"schema": {"type": "string"}}}}}}},
  "/openapi.json": {"get": {
    "summary": "This description.", "security": [],
    "responses": {"200": {"description": "OpenAPI 3.1.", "content": {"application/json": {"schema": {"type": "object"}}}}}}}
},
"components": {
  "securitySchemes": {"apiKey": {"type": "http", "scheme": "bearer"}},
  "responses": {"Error": {
    "description": "400: a field is wrong (`param` names it); 401, 403: the API key; 404: path or model; 405; 408; 413: over 32 MiB; 415; 429 with Retry-After: the server or the key is at its limit; 500; 501; 503 with Retry-After: loading, draining or failed.",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}},
  "schemas": {
    "Error": {"type": "object", "required": ["error"], "properties": {"error": {
      "type": "object", "required": ["message", "type", "param", "code"], "properties": {
        "message": {"type": "string"}, "type": {"type": "string"},
        "param": {"type": ["string", "null"]}, "code": {"type": ["string", "null"]}}}}},
    "Ids": {"type": "array", "items": {"type": "integer", "minimum": 0}},
    "Text": {"anyOf": [{"type": "string"}, {"$ref": "#/components/schemas/Ids"}]},
    "Sampling": {"type": "object", "properties": {
      "model": {"type": "string", "description": "The served model's name. May be left out."},
      "n": {"type": ["integer", "null"], "minimum": 1, "maximum": 16, "default": 1},
      "best_of": {"type": ["integer", "null"], "description": "Refused unless it is equal to n."},
      "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 100, "default": 1},
      "top_p": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1, "default": 1},
      "top_k": {"type": ["integer", "null"], "minimum": -1, "default": 0, "description": "0 and -1: off."},
      "min_p": {"type": ["number", "null"], "minimum": 0, "maximum": 1, "default": 0},
      "repetition_penalty": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 10, "default": 1},
      "presence_penalty": {"type": ["number", "null"], "minimum": -2, "maximum": 2, "default": 0},
      "frequency_penalty": {"type": ["number", "null"], "minimum": -2, "maximum": 2, "default": 0},
      "logit_bias": {"type": ["object", "null"], "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}},
      "allowed_token_ids": {"$ref": "#/components/schemas/Ids"},
      "banned_token_ids": {"$ref": "#/components/schemas/Ids"},
      "seed": {"type": ["integer", "null"], "description": "The same request with the same seed gives the same text."},
      "stop": {"anyOf": [{"type": "string"}, {"type": "array", "maxItems": 16, "items": {"type": "string"}}, {"type": "null"}]},
      "stop_token_ids": {"$ref": "#/components/schemas/Ids"},
      "min_tokens": {"type": ["integer", "null"], "minimum": 0, "default": 0},
      "ignore_eos": {"type": ["boolean", "null"], "default": false},
      "prompt_logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": 20, "description": "Not with stream."},
      "return_tokens_as_token_ids": {"type": ["boolean", "null"], "default": false},
      "stream": {"type": ["boolean", "null"], "default": false},
      "stream_options": {"type": ["object", "null"], "properties": {"include_usage": {"type": "boolean", "default": false}}},
      "stream_interval": {"type": ["integer", "null"], "minimum": 1, "maximum": 1024, "default": 1, "description": "Engine steps whose tokens go into one event."},
      "priority": {"type": ["integer", "null"], "minimum": -10, "maximum": 10, "default": 0, "description": "The lowest runs first, as in vLLM. (lssar.v1 over gRPC has it the other way round.)"},
      "cache_salt": {"type": ["string", "null"], "description": "Requests share cached pages only when their salts are equal."},
      "use_prefix_cache": {"type": ["boolean", "null"], "default": true}}},
    "CompletionRequest": {"allOf": [{"$ref": "#/components/schemas/Sampling"}, {"type": "object", "required": ["prompt"], "properties": {
      "prompt": {"anyOf": [{"$ref": "#/components/schemas/Text"}, {"type": "array", "maxItems": 1024, "items": {"$ref": "#/components/schemas/Text"}}]},
      "max_tokens": {"type": ["integer", "null"], "minimum": 0, "default": 16, "description": "0 generates nothing; with echo and logprobs it scores the prompt."},
      "echo": {"type": ["boolean", "null"], "default": false},
      "logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": 20},
      "add_special_tokens": {"type": ["boolean", "null"], "default": true}}}]},
    "ChatRequest": {"allOf": [{"$ref": "#/components/schemas/Sampling"}, {"type": "object", "required": ["messages"], "properties": {
      "messages": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["role", "content"], "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant"]},
        "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object", "required": ["type", "text"], "properties": {
          "type": {"enum": ["text"]}, "text": {"type": "string"}}}}]}}}},
      "max_tokens": {"type": ["integer", "null"], "minimum": 1, "description": "Default: what is left of the context."},
      "max_completion_tokens": {"type": ["integer", "null"], "minimum": 1},
      "logprobs": {"type": ["boolean", "null"], "default": false},
      "top_logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": 20}}}]},
    "ScoreRequest": {"type": "object", "required": ["items"], "properties": {
      "model": {"type": "string"},
      "items": {"type": "array", "minItems": 1, "maxItems": 1024, "items": {"type": "object", "required": ["continuations"], "properties": {
        "context": {"$ref": "#/components/schemas/Text"},
        "continuations": {"type": "array", "minItems": 1, "maxItems": 1024, "items": {"$ref": "#/components/schemas/Text"}}}}},
      "logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": 20, "description": "Each token's log-probability, and the N best at its place."},
      "priority": {"type": ["integer", "null"], "minimum": -10, "maximum": 10},
      "cache_salt": {"type": ["string", "null"]},
      "use_prefix_cache": {"type": ["boolean", "null"]}}},
    "TokenizeRequest": {"type": "object", "description": "Either prompt or messages.", "properties": {
      "model": {"type": "string"},
      "prompt": {"type": "string"},
      "messages": {"type": "array"},
      "add_special_tokens": {"type": ["boolean", "null"], "default": true},
      "return_token_strs": {"type": ["boolean", "null"], "default": false}}},
    "FinishReason": {"enum": ["stop", "length", null]},
    "StopReason": {"type": ["string", "integer", "null"], "description": "The stop string or stop token that ended the text."},
    "Usage": {"type": "object", "required": ["prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"], "properties": {
      "prompt_tokens": {"type": "integer"}, "completion_tokens": {"type": "integer"}, "total_tokens": {"type": "integer"},
      "prompt_tokens_details": {"type": "object", "required": ["cached_tokens"], "properties": {"cached_tokens": {"type": "integer"}}}}},
    "LegacyLogprobs": {"type": ["object", "null"], "required": ["tokens", "token_logprobs", "top_logprobs", "text_offset"], "properties": {
      "tokens": {"type": "array", "items": {"type": "string"}},
      "token_logprobs": {"type": "array", "items": {"type": ["number", "null"]}},
      "top_logprobs": {"type": "array", "items": {"type": ["object", "null"], "additionalProperties": {"type": "number"}}},
      "text_offset": {"type": "array", "items": {"type": "integer"}}}},
    "TokenLogprob": {"type": "object", "required": ["token", "logprob", "bytes"], "properties": {
      "token": {"type": "string"}, "logprob": {"type": "number"},
      "bytes": {"type": ["array", "null"], "items": {"type": "integer"}}}},
    "ChatLogprobs": {"type": ["object", "null"], "required": ["content"], "properties": {
      "content": {"type": "array", "items": {"allOf": [{"$ref": "#/components/schemas/TokenLogprob"}, {"type": "object", "required": ["top_logprobs"], "properties": {
        "top_logprobs": {"type": "array", "items": {"$ref": "#/components/schemas/TokenLogprob"}}}}]}},
      "refusal": {"type": "null"}}},
    "PromptLogprobs": {"type": "array", "items": {"type": ["object", "null"], "additionalProperties": {"type": "object", "required": ["logprob", "rank", "decoded_token"], "properties": {
      "logprob": {"type": "number"}, "rank": {"type": ["integer", "null"]}, "decoded_token": {"type": "string"}}}}},
    "ReplyHead": {"type": "object", "required": ["id", "object", "created", "model", "system_fingerprint", "choices"], "properties": {
      "id": {"type": "string"}, "object": {"type": "string"}, "created": {"type": "integer"},
      "model": {"type": "string"}, "system_fingerprint": {"type": "string"}}},
    "CompletionChoice": {"type": "object", "required": ["index", "text", "logprobs", "finish_reason", "stop_reason"], "properties": {
      "index": {"type": "integer"}, "text": {"type": "string"},
      "logprobs": {"$ref": "#/components/schemas/LegacyLogprobs"},
      "finish_reason": {"$ref": "#/components/schemas/FinishReason"},
      "stop_reason": {"$ref": "#/components/schemas/StopReason"},
      "prompt_logprobs": {"$ref": "#/components/schemas/PromptLogprobs"}}},
    "Completion": {"allOf": [{"$ref": "#/components/schemas/ReplyHead"}, {"type": "object", "required": ["usage"], "properties": {
      "object": {"enum": ["text_completion"]},
      "choices": {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/CompletionChoice"}},
      "usage": {"$ref": "#/components/schemas/Usage"}}}]},
    "CompletionChunk": {"allOf": [{"$ref": "#/components/schemas/ReplyHead"}, {"type": "object", "properties": {
      "object": {"enum": ["text_completion"]},
      "choices": {"type": "array", "items": {"$ref": "#/components/schemas/CompletionChoice"}},
      "usage": {"anyOf": [{"type": "null"}, {"$ref": "#/components/schemas/Usage"}]}}}]},
    "ChatCompletion": {"allOf": [{"$ref": "#/components/schemas/ReplyHead"}, {"type": "object", "required": ["usage"], "properties": {
      "object": {"enum": ["chat.completion"]},
      "choices": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["index", "message", "logprobs", "finish_reason", "stop_reason"], "properties": {
        "index": {"type": "integer"},
        "message": {"type": "object", "required": ["role", "content", "refusal"], "properties": {
          "role": {"enum": ["assistant"]}, "content": {"type": "string"}, "refusal": {"type": "null"}}},
        "logprobs": {"$ref": "#/components/schemas/ChatLogprobs"},
        "finish_reason": {"$ref": "#/components/schemas/FinishReason"},
        "stop_reason": {"$ref": "#/components/schemas/StopReason"}}}},
      "prompt_logprobs": {"$ref": "#/components/schemas/PromptLogprobs"},
      "usage": {"$ref": "#/components/schemas/Usage"}}}]},
    "ChatChunk": {"allOf": [{"$ref": "#/components/schemas/ReplyHead"}, {"type": "object", "properties": {
      "object": {"enum": ["chat.completion.chunk"]},
      "choices": {"type": "array", "items": {"type": "object", "required": ["index", "delta", "logprobs", "finish_reason"], "properties": {
        "index": {"type": "integer"},
        "delta": {"type": "object", "properties": {"role": {"enum": ["assistant"]}, "content": {"type": "string"}}},
        "logprobs": {"$ref": "#/components/schemas/ChatLogprobs"},
        "finish_reason": {"$ref": "#/components/schemas/FinishReason"},
        "stop_reason": {"$ref": "#/components/schemas/StopReason"}}}},
      "usage": {"anyOf": [{"type": "null"}, {"$ref": "#/components/schemas/Usage"}]}}}]},
    "Scores": {"type": "object", "required": ["id", "object", "model", "system_fingerprint", "data", "usage"], "properties": {
      "id": {"type": "string"}, "object": {"enum": ["list"]}, "model": {"type": "string"}, "system_fingerprint": {"type": "string"},
      "data": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["index", "object", "continuations"], "properties": {
        "index": {"type": "integer"}, "object": {"enum": ["score"]},
        "continuations": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["index", "logprob", "is_greedy", "num_tokens", "num_bytes"], "properties": {
          "index": {"type": "integer"}, "logprob": {"type": "number"}, "is_greedy": {"type": "boolean"},
          "num_tokens": {"type": "integer"}, "num_bytes": {"type": "integer"},
          "token_ids": {"$ref": "#/components/schemas/Ids"},
          "logprobs": {"$ref": "#/components/schemas/ChatLogprobs"}}}}}}},
      "usage": {"$ref": "#/components/schemas/Usage"}}},
    "EmbeddingRequest": {"type": "object", "required": ["input"], "properties": {
      "model": {"type": "string"},
      "input": {"description": "A text, a list of texts, a list of token ids or a list of such lists.",
        "anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "maxItems": 1024, "items": {"anyOf": [{"type": "string"}, {"type": "integer"}, {"$ref": "#/components/schemas/Ids"}]}}]},
      "encoding_format": {"enum": ["float", "base64", null], "default": "float"},
      "pooling": {"enum": ["last", "mean", "token", null], "default": "last", "description": "The last token's vector, the mean over all tokens, or every token's vector."},
      "normalize": {"type": ["boolean", "null"], "default": false, "description": "Scale each vector to L2 norm 1."},
      "apply_head": {"type": ["boolean", "null"], "default": false, "description": "Outputs of the regression head (head.weight, head.bias) in place of hidden states."},
      "priority": {"type": ["integer", "null"]}, "cache_salt": {"type": ["string", "null"]}}},
    "Embeddings": {"type": "object", "required": ["object", "model", "data", "usage"], "properties": {
      "object": {"enum": ["list"]}, "model": {"type": "string"},
      "data": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["object", "index", "embedding"], "properties": {
        "object": {"enum": ["embedding"]}, "index": {"type": "integer"},
        "embedding": {"description": "Numbers, or with base64 the little-endian float32 bytes; with pooling token a list of these.",
          "anyOf": [{"type": "string"}, {"type": "array", "items": {"anyOf": [{"type": "number"}, {"type": "string"}, {"type": "array", "items": {"type": "number"}}]}}]}}}},
      "usage": {"$ref": "#/components/schemas/Usage"}}},
    "Model": {"type": "object", "required": ["id", "object", "created", "owned_by", "root", "max_model_len", "checkpoint_hash"], "properties": {
      "id": {"type": "string"}, "object": {"enum": ["model"]}, "created": {"type": "integer"}, "owned_by": {"type": "string"},
      "root": {"type": "string"}, "max_model_len": {"type": "integer"}, "checkpoint_hash": {"type": "string"}}},
    "ModelList": {"type": "object", "required": ["object", "data"], "properties": {
      "object": {"enum": ["list"]}, "data": {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/Model"}}}},
    "Tokens": {"type": "object", "required": ["count", "max_model_len", "tokens", "token_strs"], "properties": {
      "count": {"type": "integer"}, "max_model_len": {"type": "integer"}, "tokens": {"$ref": "#/components/schemas/Ids"},
      "token_strs": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "string"}}]}}},
    "TokenizerInfo": {"type": "object", "required": ["tokenizer_class", "bos_token", "eos_token", "bos_token_id", "eos_token_id", "add_bos_token", "vocab_size", "model_max_length", "tokenizer_hash"], "properties": {
      "tokenizer_class": {"type": "string"}, "bos_token": {"type": ["string", "null"]}, "eos_token": {"type": ["string", "null"]},
      "bos_token_id": {"type": ["integer", "null"]}, "eos_token_id": {"type": ["integer", "null"]},
      "add_bos_token": {"type": "boolean"}, "vocab_size": {"type": "integer"}, "model_max_length": {"type": "integer"},
      "tokenizer_hash": {"type": "string"}, "chat_template": {"type": "string"}}}
  }
}
}
)json";

}  // namespace

std::string_view OpenApiJson() { return kOpenApi; }

}  // namespace lssar
