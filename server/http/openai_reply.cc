#include "server/http/openai_reply.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/str_cat.h"
#include "base/utf8.h"
#include "server/http/body_fields.h"
#include "server/http/json_text.h"

namespace lssar {
namespace {

constexpr int64_t kMaxReplyLogprobs = int64_t{1} << 22;

void AppendComma(std::string* list) {
  if (!list->empty()) *list += ',';
}

// The `num_top` best, and the token itself where it is none of them.
std::vector<TokenLogprob> WithItself(const v1::Token& token, int num_top) {
  std::vector<TokenLogprob> shown;
  bool has_itself = false;
  for (int i = 0; i < std::min(num_top, token.top_size()); ++i) {
    shown.push_back({.id = token.top(i).id(), .logprob = token.top(i).logprob()});
    has_itself |= shown.back().id == token.token().id();
  }
  if (!has_itself) shown.push_back({.id = token.token().id(), .logprob = token.token().logprob()});
  return shown;
}

}  // namespace

absl::Status CheckReplyLogprobs(std::string_view field, int64_t num_logprobs,
                                std::string_view advice) {
  if (num_logprobs <= kMaxReplyLogprobs) return absl::OkStatus();
  return FieldError(
      field, StrCat("asks for ", num_logprobs, " log-probabilities in one reply; it may have ",
                    kMaxReplyLogprobs, ": ", advice));
}

std::string TokenFormat::Label(int32_t id) const {
  static constexpr char kHex[] = "0123456789abcdef";
  const Tokenizer* tokenizer = GetTokenizer();
  if (as_ids || tokenizer == nullptr) return StrCat("token_id:", id);
  const std::string_view bytes = tokenizer->PieceBytes(id);
  if (bytes.empty()) {
    if (id == checkpoint->config.eos_id && !checkpoint->eos_token.empty()) {
      return checkpoint->eos_token;
    }
    if (id == checkpoint->config.bos_id && !checkpoint->bos_token.empty()) {
      return checkpoint->bos_token;
    }
    const std::string_view name = tokenizer->SpecialTokenName(id);
    return name.empty() ? StrCat("token_id:", id) : std::string(name);
  }
  if (!FindInvalidUtf8(bytes)) return std::string(bytes);
  std::string label = "bytes:";
  for (const char c : bytes) {
    label += "\\x";
    label += kHex[uint8_t(c) >> 4];
    label += kHex[uint8_t(c) & 15];
  }
  return label;
}

void LegacyLogprobs::AddToken(int32_t id) {
  for (std::string* list : {&tokens_, &logprobs_, &tops_, &offsets_}) AppendComma(list);
  AppendJsonString(format_.Label(id), &tokens_);
  AppendJsonNumber(offset_, &offsets_);
  if (format_.GetTokenizer() == nullptr) return;
  std::string_view bytes = format_.GetTokenizer()->PieceBytes(id);
  if (bytes.empty()) return;
  if (std::exchange(at_start_, false) && format_.GetTokenizer()->AddsDummyPrefix() &&
      bytes.starts_with(' ')) {
    bytes.remove_prefix(1);
  }
  offset_ += NumCharacters(bytes);
}

void LegacyLogprobs::AddFirst(int32_t id) {
  AddToken(id);
  logprobs_ += "null";
  tops_ += "null";
}

void LegacyLogprobs::AddNone() {
  for (std::string* list : {&tokens_, &logprobs_, &tops_, &offsets_}) AppendComma(list);
  tokens_ += "\"\"";
  logprobs_ += "null";
  tops_ += "null";
  AppendJsonNumber(offset_, &offsets_);
}

void LegacyLogprobs::Add(const v1::Token& token, int num_top) {
  AddToken(token.token().id());
  AppendJsonNumber(token.token().logprob(), &logprobs_);
  tops_ += '{';
  std::vector<std::string> labels;
  for (const TokenLogprob& shown : WithItself(token, num_top)) {
    std::string label = format_.Label(shown.id);
    // The list falls, so of two ids with the same text the first has the larger value. The token
    // itself comes last.
    if (std::ranges::find(labels, label) != labels.end()) continue;
    if (!labels.empty()) tops_ += ',';
    AppendJsonString(label, &tops_);
    tops_ += ':';
    AppendJsonNumber(shown.logprob, &tops_);
    labels.push_back(std::move(label));
  }
  tops_ += '}';
}

void LegacyLogprobs::Take(std::string* out) {
  *out += StrCat("{\"tokens\":[", tokens_, "],\"token_logprobs\":[", logprobs_,
                 "],\"top_logprobs\":[", tops_, "],\"text_offset\":[", offsets_, "]}");
  for (std::string* list : {&tokens_, &logprobs_, &tops_, &offsets_}) list->clear();
}

void ChatLogprobs::AppendEntry(int32_t id, float logprob) {
  content_ += "{\"token\":";
  AppendJsonString(format_.Label(id), &content_);
  content_ += ",\"logprob\":";
  AppendJsonNumber(logprob, &content_);
  content_ += ",\"bytes\":";
  if (format_.GetTokenizer() == nullptr) {
    content_ += "null";
    return;
  }
  content_ += '[';
  bool is_first = true;
  for (const char c : format_.GetTokenizer()->PieceBytes(id)) {
    if (!std::exchange(is_first, false)) content_ += ',';
    AppendJsonNumber(int(uint8_t(c)), &content_);
  }
  content_ += ']';
}

void ChatLogprobs::Add(const v1::Token& token, int num_top) {
  AppendComma(&content_);
  AppendEntry(token.token().id(), token.token().logprob());
  content_ += ",\"top_logprobs\":[";
  for (int i = 0; i < std::min(num_top, token.top_size()); ++i) {
    if (i > 0) content_ += ',';
    AppendEntry(token.top(i).id(), token.top(i).logprob());
    content_ += '}';
  }
  content_ += "]}";
}

void ChatLogprobs::Take(std::string* out) {
  *out += "{\"content\":";
  TakeList(out);
  *out += ",\"refusal\":null}";
}

void ChatLogprobs::TakeList(std::string* out) {
  *out += StrCat("[", content_, "]");
  content_.clear();
}

void PromptLogprobList::Add(const v1::Token& token, int num_top) {
  entries_ += ",{";
  int rank = 0;
  for (const TokenLogprob& shown : WithItself(token, num_top)) {
    ++rank;
    if (rank > 1) entries_ += ',';
    entries_ += StrCat("\"", shown.id, "\":{\"logprob\":");
    AppendJsonNumber(shown.logprob, &entries_);
    // Beyond the best ones the token's rank is not known.
    const bool is_known = rank <= num_top;
    entries_ += is_known ? StrCat(",\"rank\":", rank) : std::string(",\"rank\":null");
    entries_ += ",\"decoded_token\":";
    AppendJsonString(format_.Label(shown.id), &entries_);
    entries_ += '}';
  }
  entries_ += '}';
}

std::string_view FinishReasonJson(v1::FinishReason finish) {
  if (finish == v1::FINISH_REASON_UNSPECIFIED) return "null";
  // vLLM's word for a text that ends unfinished.
  if (finish == v1::FINISH_REASON_DEAD_END) return "\"abort\"";
  return finish == v1::FINISH_REASON_LENGTH ? "\"length\"" : "\"stop\"";
}

std::string UsageJson(const v1::Usage& usage) {
  return StrCat("{\"prompt_tokens\":", usage.num_prompt_tokens(),
                ",\"completion_tokens\":", usage.num_generated_tokens(),
                ",\"total_tokens\":", usage.num_prompt_tokens() + usage.num_generated_tokens(),
                ",\"prompt_tokens_details\":{\"cached_tokens\":", usage.num_cached_tokens(),
                "},\"completion_tokens_details\":{\"accepted_prediction_tokens\":",
                usage.num_accepted_tokens(), ",\"rejected_prediction_tokens\":",
                usage.num_draft_tokens() - usage.num_accepted_tokens(), "}}");
}

std::string TimingsJson(const v1::Finished& finished) {
  const v1::Usage& usage = finished.usage();
  const v1::Timings& timings = finished.timings();
  std::string json = "{";
  const auto add = [&json](std::string_view name, auto number) {
    json += StrCat(json.size() > 1 ? "," : "", "\"", name, "\":");
    AppendJsonNumber(number, &json);
  };
  const auto add_part = [&add](const std::string& name, int64_t num_tokens, int64_t time_us) {
    add(name + "_n", num_tokens);
    add(name + "_ms", double(time_us) / 1e3);
    add(name + "_per_second", time_us > 0 ? double(num_tokens) * 1e6 / double(time_us) : 0.0);
  };
  add("queue_ms", double(timings.queue_us()) / 1e3);
  add("cache_n", int64_t{usage.num_cached_tokens()});
  add_part("prompt", usage.num_prompt_tokens() - usage.num_cached_tokens(), timings.prefill_us());
  add_part("predicted", usage.num_generated_tokens(), timings.decode_us());
  return json + "}";
}

}  // namespace lssar
