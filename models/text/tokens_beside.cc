#include "models/text/tokens_beside.h"

#include <array>
#include <charconv>
#include <set>
#include <utility>

#include "base/quote.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "base/utf8.h"
#include "models/json_fields.h"

namespace lssar {
namespace {

using nlohmann::json;

constexpr std::array<const char*, 4> kNamedTokens{"bos_token", "eos_token", "unk_token",
                                                  "pad_token"};

// Null: there is no such file.
absl::StatusOr<json> ReadJsonFile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadWholeFile(path);
  if (absl::IsNotFound(text.status())) return json();
  RETURN_IF_ERROR(text.status());
  return ParseJson(*text, path);
}

// A token of added_tokens_decoder.
absl::StatusOr<AddedToken> ReadToken(const std::string& key, const json& token,
                                     const std::string& path) {
  JsonFields fields(token, StrCat(path, ": added_tokens_decoder: ", Quote(key)));
  int32_t id = -1;
  const char* const end = key.data() + key.size();
  if (std::from_chars(key.data(), end, id).ptr != end || id < 0) fields.Fail("must be an id");
  AddedToken added{
      .content = fields.Text("content"), .id = id, .is_special = fields.Bool("special", true)};
  RETURN_IF_ERROR(fields.status());
  return added;
}

}  // namespace

absl::Status AddSpecialTokensMap(const std::string& directory, json* config) {
  if (config->is_object() && config->contains("added_tokens_decoder")) return absl::OkStatus();
  const std::string path = directory + "/special_tokens_map.json";
  ASSIGN_OR_RETURN(const json map, ReadJsonFile(path));
  if (map.is_null()) return absl::OkStatus();
  JsonFields fields(map, path);
  for (const char* const name : kNamedTokens) {
    const auto found = map.find(name);
    if (found == map.end()) continue;
    const json content = found->is_object() ? found->value("content", json()) : *found;
    if (!content.is_string() && !found->is_null()) {
      fields.Fail(StrCat(name, " is ", QuoteJson(*found),
                         ", must be a string or an object with a string \"content\""));
    }
    RETURN_IF_ERROR(fields.status());
    (*config)[name] = content;
  }
  return fields.status();
}

absl::StatusOr<TokensBeside> ReadTokensBeside(const std::string& directory) {
  TokensBeside beside;
  std::set<std::string> contents;
  const auto add = [&](AddedToken token, const std::string& where) -> absl::Status {
    if (token.content.empty() || FindInvalidUtf8(token.content)) {
      return absl::InvalidArgumentError(StrCat(where, ": a token must be UTF-8 and not empty"));
    }
    if (contents.insert(token.content).second) beside.tokens.push_back(std::move(token));
    return absl::OkStatus();
  };
  const std::string config_path = directory + "/tokenizer_config.json";
  ASSIGN_OR_RETURN(json config, ReadJsonFile(config_path));
  if (!config.is_null()) RETURN_IF_ERROR(JsonFields(config, config_path).status());
  RETURN_IF_ERROR(AddSpecialTokensMap(directory, &config));
  if (!config.is_null()) {
    JsonFields fields(config, config_path);
    const json* const decoder = fields.Object("added_tokens_decoder");
    beside.tokenizer_class = fields.Text("tokenizer_class", "");
    beside.tiktoken_pattern = fields.Text("tiktoken_pattern", "");
    if (fields.Has("add_prefix_space")) {
      beside.add_prefix_space = fields.Bool("add_prefix_space", false);
    }
    RETURN_IF_ERROR(fields.status());
    const json none = json::object();
    for (const auto& [key, token] : (decoder == nullptr ? none : *decoder).items()) {
      ASSIGN_OR_RETURN(AddedToken added, ReadToken(key, token, config_path));
      RETURN_IF_ERROR(add(std::move(added), config_path));
    }
    for (const char* const name : kNamedTokens) {
      const auto found = config.find(name);
      if (found == config.end()) continue;
      const json token = found->is_object() ? found->value("content", json()) : *found;
      const bool is_text = token.is_string() && !token.get_ref<const std::string&>().empty();
      if (is_text) RETURN_IF_ERROR(add({.content = token, .id = kNoId}, config_path));
    }
  }
  const std::string path = directory + "/added_tokens.json";
  ASSIGN_OR_RETURN(const json added, ReadJsonFile(path));
  if (added.is_null()) return beside;
  JsonFields fields(added, path);
  RETURN_IF_ERROR(fields.status());
  for (const auto& [content, id] : added.items()) {
    const auto number = int32_t(fields.Int(content, 0, 1 << 30));
    RETURN_IF_ERROR(fields.status());
    RETURN_IF_ERROR(add({.content = content, .id = number}, path));
  }
  return beside;
}

}  // namespace lssar
