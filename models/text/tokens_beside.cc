#include "models/text/tokens_beside.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
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

// In the order in which transformers gives ids to those that the vocabulary lacks.
constexpr std::array<const char*, 7> kSpecialTokens{
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};
// Lists of further ones, or (extra_special_tokens) an object of them by name.
constexpr std::array<const char*, 2> kSpecialLists{"additional_special_tokens",
                                                   "extra_special_tokens"};

// Null: there is no such file.
absl::StatusOr<json> ReadJsonFile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadWholeFile(path);
  if (absl::IsNotFound(text.status())) return json();
  RETURN_IF_ERROR(text.status());
  return ParseJson(*text, path);
}

// What would take spaces or words beside a token into account is refused: no reader does.
void RejectStripping(const json& token, JsonFields* fields) {
  for (const char* const name : {"single_word", "lstrip", "rstrip"}) {
    const json value = token.value(name, json(false));
    if (value == false || value.is_null()) continue;
    fields->Fail(StrCat(name, " is ", QuoteJson(value), ", must be false"));
  }
}

// A token of added_tokens_decoder.
absl::StatusOr<AddedToken> ReadToken(const std::string& key, const json& token,
                                     const std::string& path) {
  JsonFields fields(token, StrCat(path, ": added_tokens_decoder: ", Quote(key)));
  int32_t id = -1;
  const char* const end = key.data() + key.size();
  if (std::from_chars(key.data(), end, id).ptr != end || id < 0) fields.Fail("must be an id");
  const bool is_special = fields.Bool("special", true);
  AddedToken added{.content = fields.Text("content"),
                   .id = id,
                   .is_special = is_special,
                   .is_normalized = fields.Bool("normalized", !is_special)};
  RejectStripping(token, &fields);
  RETURN_IF_ERROR(fields.status());
  return added;
}

// The text of a token that is not "" or null.
std::optional<std::string> ContentOf(const json& token) {
  const json content = token.is_object() ? token.value("content", json()) : token;
  if (!content.is_string() || content.get_ref<const std::string&>().empty()) return std::nullopt;
  return content.get<std::string>();
}

// Each once.
struct SpecialTokens {
  std::vector<std::string> in_order;
  std::set<std::string, std::less<>> all;
};

absl::Status ReadSpecialTokens(const json& config, const std::string& path, SpecialTokens* tokens) {
  JsonFields fields(config, path);
  const auto add = [&](const std::string& where, const json& token) {
    const std::optional<std::string> content = ContentOf(token);
    if (!content) return;
    if (FindInvalidUtf8(*content)) fields.Fail(StrCat(where, " is not UTF-8"));
    if (token.is_object()) {
      JsonFields token_fields(token, where);
      RejectStripping(token, &token_fields);
      if (!token_fields.status().ok()) fields.Fail(StrCat(token_fields.status().message()));
    }
    if (tokens->all.insert(*content).second) tokens->in_order.push_back(*content);
  };
  for (const char* const name : kSpecialTokens) {
    if (const auto found = config.find(name); found != config.end()) add(name, *found);
  }
  for (const char* const name : kSpecialLists) {
    const auto found = config.find(name);
    if (found == config.end() || !found->is_structured()) continue;
    for (const json& token : *found) add(name, token);
  }
  return fields.status();
}

}  // namespace

absl::Status AddSpecialTokensMap(const std::string& directory, json* config) {
  if (config->is_object() && config->contains("added_tokens_decoder")) return absl::OkStatus();
  const std::string path = directory + "/special_tokens_map.json";
  ASSIGN_OR_RETURN(const json map, ReadJsonFile(path));
  if (map.is_null()) return absl::OkStatus();
  JsonFields fields(map, path);
  for (const char* const name : kSpecialTokens) {
    const auto found = map.find(name);
    if (found == map.end()) continue;
    const json content = found->is_object() ? found->value("content", json()) : *found;
    if (!content.is_string() && !found->is_null()) {
      fields.Fail(StrCat(name, " is ", QuoteJson(*found),
                         ", must be a string or an object with a string \"content\""));
    }
    RETURN_IF_ERROR(fields.status());
    (*config)[name] = *found;
  }
  for (const char* const name : kSpecialLists) {
    if (map.contains(name)) (*config)[name] = map[name];
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
  SpecialTokens special_tokens;
  const auto is_listed = [&](const std::string& content) {
    return special_tokens.all.contains(content);
  };
  if (!config.is_null()) {
    JsonFields fields(config, config_path);
    const json* const decoder = fields.Object("added_tokens_decoder");
    beside.tokenizer_class = fields.Text("tokenizer_class", "");
    beside.tiktoken_pattern = fields.Text("tiktoken_pattern", "");
    if (fields.Has("add_prefix_space")) {
      beside.add_prefix_space = fields.Bool("add_prefix_space", false);
    }
    RETURN_IF_ERROR(fields.status());
    RETURN_IF_ERROR(ReadSpecialTokens(config, config_path, &special_tokens));
    beside.has_decoder = decoder != nullptr;
    const json none = json::object();
    for (const auto& [key, token] : (decoder == nullptr ? none : *decoder).items()) {
      ASSIGN_OR_RETURN(AddedToken added, ReadToken(key, token, config_path));
      added.is_special = added.is_special || is_listed(added.content);
      RETURN_IF_ERROR(add(std::move(added), config_path));
    }
    std::ranges::stable_sort(beside.tokens, {}, &AddedToken::id);
    beside.num_in_decoder = beside.tokens.size();
  }
  const std::string path = directory + "/added_tokens.json";
  ASSIGN_OR_RETURN(const json listed, ReadJsonFile(path));
  if (!listed.is_null()) {
    JsonFields fields(listed, path);
    RETURN_IF_ERROR(fields.status());
    for (const auto& [content, id] : listed.items()) {
      const auto number = int32_t(fields.Int(content, 0, 1 << 30));
      RETURN_IF_ERROR(fields.status());
      const bool is_special = is_listed(content);
      if (is_special && beside.has_decoder) continue;  // transformers gives it an id
      RETURN_IF_ERROR(add({.content = content,
                           .id = number,
                           .is_special = is_special,
                           .is_normalized = !is_special},
                          path));
    }
    std::ranges::stable_sort(beside.tokens.begin() + ptrdiff_t(beside.num_in_decoder),
                             beside.tokens.end(), {}, &AddedToken::id);
  }
  for (const std::string& content : special_tokens.in_order) {
    RETURN_IF_ERROR(add({.content = content, .id = kNoId}, config_path));
  }
  return beside;
}

absl::Status CannotAddToken(std::string_view path, std::string_view content, int64_t id,
                            std::string_view problem) {
  return absl::InvalidArgumentError(
      StrCat(path, ": lacks ", Quote(content), ", which stands beside it, in ",
             "tokenizer_config.json, special_tokens_map.json or added_tokens.json; ",
             "transformers would add it as token ", id, ", ", problem));
}

absl::Status GiveIds(std::string_view path, int64_t num_pieces, int64_t num_ids, int vocab_size,
                     absl::FunctionRef<int32_t(std::string_view)> id_of,
                     std::vector<AddedToken>* tokens) {
  int64_t next = num_ids, num_known = num_pieces;
  for (AddedToken& token : *tokens) {
    const int32_t piece = id_of(token.content);
    if (token.id == kNoId) token.id = piece;
    if (token.id == kNoId) {
      // Some versions of transformers count the tokens, others go by the largest id.
      if (next != num_known) {
        return CannotAddToken(path, token.content, num_known,
                              StrCat("or as ", next,
                                     ", because ids below that are no token; write "
                                     "it into added_tokens_decoder of tokenizer_config.json"));
      }
      if (next >= vocab_size) {
        return CannotAddToken(path, token.content, next,
                              StrCat("but vocab_size of config.json is ", vocab_size,
                                     "; remove it there if the model does not use it"));
      }
      token.id = int32_t(next);
    }
    if (piece == kNoId) ++num_known;
    next = std::max(next, int64_t{token.id} + 1);
  }
  return absl::OkStatus();
}

}  // namespace lssar
