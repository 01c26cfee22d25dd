#include "clients/cli/prefix_key.h"

#include <algorithm>
#include <span>

#include "absl/strings/string_view.h"
#include "base/sha256.h"
#include "base/str_cat.h"

namespace lssar::cli {
namespace {

constexpr size_t kNumBytes = 256;
constexpr int kNumIds = 64;

std::string BeginningOf(absl::string_view text) { return std::string(text.substr(0, kNumBytes)); }

std::string BeginningOf(const v1::TokenIds& tokens) {
  const auto& ids = tokens.ids();
  return StrJoin(std::span(ids.data(), size_t(std::min(kNumIds, ids.size()))));
}

std::string BeginningOf(const v1::TextOrTokens& text) {
  return text.has_tokens() ? BeginningOf(text.tokens()) : BeginningOf(text.text());
}

std::string BeginningOf(const v1::Chat& chat) {
  std::string content;
  for (const v1::ChatMessage& message : chat.messages()) {
    content += message.content();
    // All turns of a conversation have one key.
    if (message.role() == "user" || content.size() >= kNumBytes) break;
  }
  return BeginningOf(content);
}

template <typename Request>
std::string BeginningOfPrompt(const Request& request) {
  if (request.has_tokens()) return BeginningOf(request.tokens());
  if (request.has_chat()) return BeginningOf(request.chat());
  return BeginningOf(request.text());
}

std::string Key(const std::string& cache_salt, const std::string& beginning) {
  Sha256 hash;
  hash.Add(cache_salt);
  hash.Add(beginning);
  return hash.ShortHex();
}

}  // namespace

std::string PrefixKey(const v1::GenerateRequest& request) {
  return Key(request.cache_salt(), BeginningOfPrompt(request));
}

std::string PrefixKey(const v1::CaptureAttentionRequest& request) {
  return Key(request.cache_salt(), BeginningOfPrompt(request));
}

std::string PrefixKey(const v1::ScoreRequest& request) {
  std::string beginning;
  if (!request.items().empty()) {
    const v1::ScoreItem& item = request.items(0);
    beginning = BeginningOf(item.context());
    if (beginning.empty() && !item.continuations().empty()) {
      beginning = BeginningOf(item.continuations(0));
    }
  }
  return Key(request.cache_salt(), beginning);
}

std::string PrefixKey(const v1::EmbedRequest& request) {
  return Key(request.cache_salt(),
             request.inputs().empty() ? std::string() : BeginningOf(request.inputs(0)));
}

}  // namespace lssar::cli
