#include "server/http/request_fields.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/quote.h"
#include "base/str_cat.h"
#include "server/api/sampling_fields.h"
#include "server/config/flags.h"

namespace lssar {
namespace {

using Json = nlohmann::json;

// Rows with the same verdict. `names` are separated by spaces.
struct Group {
  RequestField::Verdict verdict;
  BodyKinds kinds;
  std::string_view names;
  std::string_view reason = {};
  std::string_view neutral = R"([false, 0, "", "none", [], {}])";
};

constexpr auto kServed = RequestField::Verdict::kServed;
constexpr auto kHarmless = RequestField::Verdict::kHarmless;
constexpr auto kRefused = RequestField::Verdict::kRefused;
constexpr BodyKinds kGenerateBody = kCompletionBody | kChatBody;
constexpr BodyKinds kAnswerBody = kResponsesBody | kMessagesBody;
constexpr BodyKinds kTextBody = kGenerateBody | kAnswerBody;
constexpr BodyKinds kEngineBody = kTextBody | kScoreBody | kEmbeddingBody | kAttentionBody;
constexpr std::string_view kNothing = "[]";

// Sources, read on 2026-11-25:
//   OpenAI     package openai 3.57.0, types/{completion,chat/completion,embedding}_create_params
//   vLLM       commit 002032ee, entrypoints/openai/{completion,chat_completion}/protocol.py;
//              guided_* and logits_processors of earlier versions
//   SGLang     commit 004c82e0, srt/entrypoints/openai/protocol.py
//   llama.cpp  commit 00dc8057, tools/server/README.md
//   OpenAI     types/{responses/response,batch}_create_params of the same package
//   Anthropic  package anthropic 2.14.0, types/message_create_params; temperature, top_k, top_p of
//              earlier versions
// The numbers of server/api/sampling_fields.h are served, too.
constexpr std::array kGroups = std::to_array<Group>({
    // What the readers of openai_request.cc and tokenizer_calls.cc read.
    {kServed, kAnyBody, "model"},
    {kServed, kEngineBody,
     "attention_override steering checkpoint_hash priority cache_salt use_prefix_cache"},
    {kServed, kTextBody,
     "seed logit_bias allowed_token_ids banned_token_ids bad_words stop_token_ids min_tokens "
     "ignore_eos include_stop_str_in_output skip_special_tokens stream stream_interval "
     "speculative_tokens"},
    {kServed, kGenerateBody,
     "n best_of stop max_tokens max_completion_tokens logprobs prompt_logprobs "
     "return_tokens_as_token_ids stream_options "
     "response_format structured_outputs guided_json guided_regex guided_choice guided_grammar "
     "json_schema grammar regex ebnf"},
    {kServed, kResponsesBody,
     "input instructions max_output_tokens top_logprobs include metadata text stop stream_options"},
    {kServed, kMessagesBody, "messages system max_tokens stop_sequences"},
    {kServed, kCompletionBody, "prompt echo add_special_tokens"},
    {kServed, kChatBody, "messages top_logprobs"},
    {kServed, kChatBody | kAnswerBody, "tools tool_choice"},
    {kServed, kChatBody | kTokenizeBody, "add_generation_prompt continue_final_message"},
    {kServed, kScoreBody, "items logprobs logprob_token_ids"},
    {kServed, kEmbeddingBody,
     "input encoding_format pooling normalize apply_head layers positions embed_dtype"},
    {kServed, kAttentionBody, "prompt messages layers heads rows top_k statistics stream"},
    {kServed, kTokenizeBody, "prompt messages add_special_tokens return_token_strs"},
    {kServed, kBatchBody, "input_file_id endpoint completion_window metadata"},
    {kServed, kDetokenizeBody, "tokens skip_special_tokens"},
    {kServed, kMessage | kAnthropicMessage, "role content"},
    {kServed, kMessage, "tool_calls tool_call_id"},
    {kServed, kTool | kToolCall, "type function"},
    {kServed,
     kResponsesTool | kResponsesChoice | kMessagesTool | kMessagesChoice | kCallItem | kOutputItem |
         kToolUse | kToolResult,
     "type"},
    {kServed,
     kFunction | kChosenFunction | kCalledFunction | kResponsesTool | kResponsesChoice |
         kMessagesTool | kMessagesChoice | kCallItem | kToolUse,
     "name"},
    {kServed, kFunction | kResponsesTool, "description parameters strict"},
    // The model reads examples and the schema of the output with the description.
    {kServed, kResponsesTool, "output_schema"},
    {kServed, kMessagesTool, "description input_schema strict input_examples"},
    {kServed, kToolCall | kToolUse, "id"},
    {kServed, kCallItem | kOutputItem, "call_id"},
    {kServed, kCalledFunction | kCallItem, "arguments"},
    {kServed, kOutputItem, "output"},
    {kServed, kToolUse, "input"},
    {kServed, kToolResult, "tool_use_id content is_error"},
    {kServed, kContentPart, "type text"},
    {kServed, kScoreItem, "context continuations"},
    {kServed, kInputItem, "type role content"},
    {kServed, kTextConfig, "format"},
    {kServed, kStreamOptions, "include_usage continuous_usage_stats"},

    // Labels, storage, caches and placement: the answer is the same without them.
    {kHarmless, kAnyBody & ~kResponsesBody, "metadata"},
    {kHarmless, kAnyBody,
     "user store safety_identifier service_tier prompt_cache_key prompt_cache_options "
     "prompt_cache_retention request_id session_id rid extra_key custom_labels routed_dp_rank "
     "disagg_prefill_dp_rank data_parallel_rank id_slot cache_prompt"},
    // Drafts that the bits do not depend on, and comments in a stream.
    {kHarmless, kGenerateBody,
     "prediction ngram_corpus_id speculative.n_max speculative.n_min speculative.p_min "
     "backend_sampling sse_ping_interval"},
    // They change nothing without another field, which is refused.
    {kHarmless, kGenerateBody,
     "parallel_tool_calls parse_tool_calls include_reasoning separate_reasoning stream_reasoning "
     "spaces_between_special_tokens truncation_side return_token_offsets return_mm_kwargs "
     "guided_decoding_backend dynatemp_exponent n_keep dry_base "
     "dry_allowed_length dry_penalty_last_n dry_sequence_breakers xtc_threshold mirostat_tau "
     "mirostat_eta"},
    {kHarmless, kEmbeddingBody, "truncation_side"},
    // A template that reads `name` is refused when the checkpoint is loaded.
    {kHarmless, kMessage | kAnthropicMessage, "name annotations cache_control"},
    {kHarmless, kToolCall, "index"},
    // What openai's parse() leaves in the messages that go back.
    {kHarmless, kMessage, "parsed"},
    {kHarmless, kCalledFunction, "parsed_arguments"},
    {kHarmless, kInputItem | kCallItem | kOutputItem, "id status phase"},
    {kHarmless, kCallItem, "parsed_arguments async"},
    {kHarmless, kOutputItem, "name"},
    // An answer has one call at most.
    {kHarmless, kMessagesChoice, "disable_parallel_tool_use"},
    {kHarmless, kMessagesTool | kToolUse | kToolResult, "cache_control"},
    {kHarmless, kMessagesTool, "eager_input_streaming"},
    {kHarmless, kContentPart, "annotations cache_control citations logprobs"},
    {kHarmless, kResponsesBody,
     "parallel_tool_calls max_tool_calls background_options image access_programs"},
    {kHarmless, kMessagesBody,
     "cache_control diagnostics inference_geo user_profile_id workspace_id"},
    {kHarmless, kStreamOptions, "include_obfuscation"},

    {kRefused, kGenerateBody, "guided_whitespace_pattern structural_tag",
     "a constraint is a JSON Schema, a regex, a grammar or a list of choices"},
    {kRefused, kCompletionBody, "tools", "a text calls no functions; send a chat"},
    {kRefused, kResponsesTool | kMessagesTool, "defer_loading", "there is no search for tools"},
    {kRefused, kResponsesTool | kMessagesTool, "allowed_callers",
     "the answer alone calls functions", R"([["direct"]])"},
    {kRefused, kCallItem | kOutputItem | kToolUse, "caller", "the answer alone calls functions",
     R"([{"type": "direct"}])"},
    {kRefused, kCallItem | kOutputItem, "namespace", "functions have no namespaces"},
    {kRefused, kToolUse | kToolResult, "toolset_name", "there are no sets of tools"},
    {kRefused, kTokenizeBody, "tools", "count the tokens in the usage of a chat with them"},
    {kRefused, kGenerateBody | kTokenizeBody, "functions", "its name here is tools"},
    {kRefused, kCompletionBody, "tool_choice", "a text calls no functions; send a chat",
     R"(["none", "auto"])"},
    {kRefused, kMessagesBody, "mcp_servers container context_management",
     "this server runs no tools"},
    {kRefused, kGenerateBody, "function_call", "its name here is tool_choice",
     R"(["none", "auto"])"},
    {kRefused, kResponsesBody, "previous_response_id conversation context_management",
     "this server keeps no responses; send the whole input"},
    {kRefused, kResponsesBody, "background", "this server keeps no responses", "[false]"},
    {kRefused, kBatchBody, "output_expires_after", "files stay until they are deleted", kNothing},
    {kRefused, kResponsesBody, "prompt", "this server keeps no prompts; send input", kNothing},
    {kRefused, kResponsesBody, "truncation", "an input that is too long is refused, not cut",
     R"(["disabled"])"},
    {kRefused, kMessagesBody, "thinking", "this server's models have no mode of reasoning",
     R"([{"type": "disabled"}])"},
    {kRefused, kMessagesBody, "output_config output_format", "the output cannot be constrained"},
    {kRefused, kMessagesBody, "speed", "this server's models have no such mode", R"(["standard"])"},
    {kRefused, kResponsesBody, "max_tokens max_completion_tokens",
     "its name here is max_output_tokens", kNothing},
    {kRefused, kMessagesBody, "stop", "its name here is stop_sequences", kNothing},
    {kRefused, kGenerateBody, "web_search_options", "this server runs no tools", kNothing},
    {kRefused, kGenerateBody, "modalities", "this server's models read and write text alone",
     R"([["text"]])"},
    {kRefused, kGenerateBody | kTokenizeBody,
     "audio mm_processor_kwargs media_io_kwargs images_config use_audio_in_video max_dynamic_patch "
     "min_dynamic_patch",
     "this server's models read and write text alone"},
    {kRefused, kGenerateBody | kResponsesBody, "moderation", "this server moderates nothing"},
    {kRefused, kGenerateBody | kTokenizeBody, "documents chat_template task",
     "a chat is rendered with the checkpoint's own template"},
    // What models without a mode of reasoning do anyway.
    {kRefused, kGenerateBody | kTokenizeBody, "chat_template_kwargs",
     "no template that this server reads has variables of its own",
     R"([false, 0, "", "none", [], {}, {"enable_thinking": false}, {"thinking": false}])"},
    {kRefused, kGenerateBody, "reasoning reasoning_effort enable_thinking",
     "this server's models have no mode of reasoning"},
    {kRefused, kResponsesBody, "reasoning", "this server's models have no mode of reasoning",
     R"([{}, {"effort": null}, {"effort": "none"}, {"effort": null, "summary": null}])"},
    {kRefused, kGenerateBody, "reasoning_format", "this server's models have no mode of reasoning",
     R"(["none", "auto"])"},
    {kRefused, kGenerateBody, "thinking_token_budget",
     "this server's models have no mode of reasoning", "[-1]"},
    {kRefused, kGenerateBody | kTextConfig, "verbosity", "this server's models have no such mode",
     R"(["medium"])"},
    {kRefused, kGenerateBody, "suffix", "a text is continued at its end"},
    {kRefused, kGenerateBody, "use_beam_search early_stopping", "there is no beam search"},
    {kRefused, kGenerateBody, "length_penalty num_beams", "there is no beam search", "[1]"},
    {kRefused, kGenerateBody,
     "mirostat dry_multiplier xtc_probability dynatemp_range top_a min_keep samplers",
     "tokens are sampled by temperature, top_k, top_p and min_p"},
    {kRefused, kGenerateBody, "typical_p tfs_z",
     "tokens are sampled by temperature, top_k, top_p and min_p", "[1]"},
    {kRefused, kGenerateBody, "top_n_sigma",
     "tokens are sampled by temperature, top_k, top_p and min_p", "[-1]"},
    {kRefused, kGenerateBody, "do_sample", "temperature 0 is greedy", "[true]"},
    {kRefused, kGenerateBody, "repeat_penalty", "its name here is repetition_penalty", "[1]"},
    {kRefused, kGenerateBody, "repeat_last_n", "penalties cover the whole text", "[-1]"},
    {kRefused, kGenerateBody,
     "no_repeat_ngram_size repetition_detection watermarking logits_processors "
     "logits_processor_pattern custom_logit_processor custom_params vllm_xargs",
     "this server changes logits by its documented fields alone"},
    {kRefused, kGenerateBody, "n_predict max_new_tokens", "its name here is max_tokens", kNothing},
    {kRefused, kGenerateBody, "n_cmpl", "its name here is n", "[1]"},
    {kRefused, kGenerateBody, "n_probs", "its name here is logprobs"},
    {kRefused, kCompletionBody, "top_logprobs", "its name here is logprobs", kNothing},
    {kRefused, kGenerateBody, "bad_words_ids", "its name here is banned_token_ids"},
    {kRefused, kGenerateBody, "stop_regex", "only stop and stop_token_ids end a text"},
    {kRefused, kGenerateBody, "no_stop_trim", "its name here is include_stop_str_in_output"},
    {kRefused, kGenerateBody, "n_indent", "lines are not indented"},
    {kRefused, kGenerateBody, "t_max_predict_ms",
     "the header X-Request-Timeout limits the time of a call"},
    {kRefused, kCompletionBody, "add_generation_prompt", "a text is no chat", "[true]"},
    {kRefused, kCompletionBody, "continue_final_message", "a text is no chat"},
    {kRefused, kChatBody, "echo", "a chat has no echo"},
    {kRefused, kChatBody, "add_special_tokens",
     "the chat template says which special tokens there are", "[false]"},
    {kRefused, kGenerateBody | kEmbeddingBody, "truncate_prompt_tokens",
     "a text that is too long is refused, not cut", kNothing},
    {kRefused, kGenerateBody, "prompt_embeds", "a prompt is text or token ids"},
    {kRefused, kChatBody, "input_ids", "POST /v1/completions takes token ids"},
    {kRefused, kGenerateBody | kEmbeddingBody, "lora lora_path lora_request",
     "there are no adapters"},
    {kRefused, kGenerateBody,
     "kv_transfer_params ec_transfer_params session_params bootstrap_host bootstrap_port "
     "bootstrap_room n_cache_reuse",
     "this server computes the whole request"},
    {kRefused, kGenerateBody,
     "return_token_ids return_prompt_text return_prompt_token_ids return_hidden_states "
     "return_routed_experts routed_experts_start_len routed_experts_prompt_start "
     "return_cached_tokens_details return_meta_info return_tokens timings_per_token "
     "return_progress post_sampling_probs response_fields logprob_token_ids",
     "the reply has no such part"},
    {kRefused, kEngineBody, "attention_p attention_kind",
     "send attention_override, as in {\"p\": 5, \"kind\": \"lssar\"}", kNothing},
    {kRefused, kScoreBody | kEmbeddingBody, "stream", "this reply is not streamed"},
    {kRefused, kScoreBody, "full_distribution", "only gRPC streams it; send logprob_token_ids",
     "[false]"},
    {kRefused, kEmbeddingBody, "dimensions", "the checkpoint decides on them", kNothing},
    {kRefused, kEmbeddingBody, "endianness", "base64 is of little-endian numbers",
     R"(["native", "little"])"},
    {kRefused, kEmbeddingBody, "add_special_tokens",
     "the checkpoint says which special tokens a text gets; send ids", "[true]"},
    {kRefused, kTokenizeBody, "content", "its name here is prompt", kNothing},
    {kRefused, kTokenizeBody, "add_special", "its name here is add_special_tokens", kNothing},
    {kRefused, kTokenizeBody, "with_pieces", "its name here is return_token_strs"},
    {kRefused, kMessage, "function_call", "its name here is tool_calls"},
    {kRefused, kMessage, "tools", "tools stand beside messages"},
    {kRefused, kMessage, "refusal", "a chat template gets role and content alone", R"([""])"},
    {kRefused, kMessage, "audio", "this server's models read text alone"},
    {kRefused, kMessage, "reasoning reasoning_content",
     "this server's models have no mode of reasoning"},
    {kRefused, kMessage, "prefix partial", "send continue_final_message beside messages"},
});

std::vector<RequestField> MakeRows() {
  std::vector<RequestField> rows;
  for (const SamplingField& field : SamplingFields()) {
    rows.push_back({.kinds = kTextBody, .name = field.name});
  }
  for (const Group& group : kGroups) {
    for (std::string_view names = group.names; !names.empty();) {
      const size_t end = std::min(names.find(' '), names.size());
      rows.push_back({.kinds = group.kinds,
                      .name = names.substr(0, end),
                      .verdict = group.verdict,
                      .reason = group.reason,
                      .neutral = group.neutral});
      names.remove_prefix(std::min(end + 1, names.size()));
    }
  }
  return rows;
}

// Null: there is none.
const RequestField* FindRow(BodyKinds kind, std::string_view name) {
  static const std::multimap<std::string_view, const RequestField*> rows = [] {
    std::multimap<std::string_view, const RequestField*> by_name;
    for (const RequestField& row : RequestFields()) by_name.emplace(row.name, &row);
    return by_name;
  }();
  for (auto [row, end] = rows.equal_range(name); row != end; ++row) {
    if ((row->second->kinds & kind) != 0) return row->second;
  }
  return nullptr;
}

// The served field with the nearest name; empty: none is near.
std::string Nearest(BodyKinds kind, const std::string& name) {
  if (name.size() > kMaxQuotedBytes) return {};
  std::vector<std::string> served;
  for (const RequestField& row : RequestFields()) {
    if (row.verdict == kServed && (row.kinds & kind) != 0) served.emplace_back(row.name);
  }
  return NearestName(name, served);
}

std::string Shown(const Json& value) {
  if (value.is_string()) return Quote(value.get_ref<const std::string&>());
  return value.is_primitive() ? value.dump() : std::string(TypeName(value));
}

}  // namespace

std::span<const RequestField> RequestFields() {
  static const std::vector<RequestField> rows = MakeRows();
  return rows;
}

absl::Status CheckFields(BodyKinds kind, const BodyFields& object) {
  for (const auto& [name, value] : object.Object().items()) {
    if (value.is_null()) continue;
    const RequestField* const row = FindRow(kind, name);
    if (row == nullptr) {
      const std::string nearest = Nearest(kind, name);
      return FieldError(
          object.Name(name),
          StrCat("is no field of this request; ",
                 nearest.empty() ? "leave it out" : StrCat("did you mean ", nearest, "?")));
    }
    if (row->verdict != kRefused) continue;
    const Json neutral = Json::parse(row->neutral);
    if (std::ranges::find(neutral, value) != neutral.end()) continue;
    return FieldError(object.Name(name), StrCat("is ", Shown(value), "; ", row->reason));
  }
  return absl::OkStatus();
}

}  // namespace lssar
