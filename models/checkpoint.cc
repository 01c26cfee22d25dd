#include "models/checkpoint.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/quote.h"
#include "base/read_file.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "base/utf8.h"
#include "models/gpt.h"
#include "models/json_fields.h"
#include "models/safetensors.h"
#include "models/text/tokens_beside.h"

namespace lssar {
namespace {

absl::Status CheckDirectory(const std::string& directory) {
  struct stat status;
  if (stat(directory.c_str(), &status) != 0) return FileError(directory, errno);
  if (!S_ISDIR(status.st_mode)) {
    return absl::InvalidArgumentError(StrCat(
        directory, ": not a directory; a checkpoint is a directory with config.json and weights"));
  }
  if (stat(StrCat(directory, "/config.json").c_str(), &status) == 0) return absl::OkStatus();
  if (stat(StrCat(directory, "/delta.json").c_str(), &status) != 0) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat(
      directory, ": holds a delta, not the model; `lssar import --base BASE --delta ", directory,
      " --out DIR` makes the model (models/zoo/smollm2-lssar: `sh "
      "deploy/get-model.sh`, which downloads the base too)"));
}

absl::Status LoadGenerationConfig(const std::string& directory, ModelConfig* config);

absl::Status LoadModel(const std::string& directory, Backend* backend, const LoadOptions& options,
                       Checkpoint* checkpoint) {
  const std::string config_path = StrCat(directory, "/config.json");
  ASSIGN_OR_RETURN(const std::string config_text, ReadWholeFile(config_path, kMaxConfigFileBytes));
  ASSIGN_OR_RETURN(checkpoint->config, ParseConfig(config_text, config_path));
  RETURN_IF_ERROR(LoadGenerationConfig(directory, &checkpoint->config));
  RETURN_IF_ERROR(Gpt::CheckBackend(checkpoint->config, *backend));
  if (options.check != nullptr) RETURN_IF_ERROR(options.check(checkpoint->config));

  ASSIGN_OR_RETURN(const TensorFile file, TensorFile::OpenModel(directory));
  if (options.check_memory != nullptr) {
    RETURN_IF_ERROR(options.check_memory(checkpoint->config, LeastBytes(file, options.dtype)));
  }
  Sha256 hash;
  hash.Add(config_text);
  RETURN_IF_ERROR(file.AddBytesTo(&hash));
  checkpoint->hash = hash.ShortHex();

  absl::StatusOr<GptWeights> weights =
      LoadGptWeights(file, checkpoint->config, backend, options.dtype);
  RETURN_IF_ERROR(file.CheckUnchanged());  // first: what is wrong with the weights comes of it
  RETURN_IF_ERROR(weights.status());
  checkpoint->dtype = weights->NarrowestType();
  checkpoint->num_parameters = weights->num_parameters;
  checkpoint->max_num_batched_tokens = options.max_num_batched_tokens;
  ASSIGN_OR_RETURN(checkpoint->model, Gpt::Create(checkpoint->config, *std::move(weights), backend,
                                                  options.max_num_batched_tokens));
  return absl::OkStatus();
}

// A token's text: "<s>", or Hugging Face's {"content": "<s>", ...}. Absent: "".
std::string TokenText(const nlohmann::json& object, const char* name, JsonFields* fields) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_object()) return fields->Text(name, "");
  const auto content = found->find("content");
  if (content != found->end() && content->is_string()) return content->get<std::string>();
  fields->Fail(StrCat(name, " is an object, must have a string \"content\""));
  return "";
}

// transformers' classes whose add_bos_token is true where it is absent.
constexpr std::array<std::string_view, 6> kAddBosClasses = {
    "LlamaTokenizer",         "LlamaTokenizerFast", "CodeLlamaTokenizer",
    "CodeLlamaTokenizerFast", "GemmaTokenizer",     "GemmaTokenizerFast"};

// tokenizer_config.json and special_tokens_map.json: BOS, EOS, chat template and stop strings.
// Absent: no BOS, no chat.
absl::Status LoadTokenizerConfig(const std::string& directory, Checkpoint* checkpoint) {
  const std::string path = StrCat(directory, "/tokenizer_config.json");
  const absl::StatusOr<std::string> text = ReadWholeFile(path, kMaxTemplateFileBytes);
  if (!absl::IsNotFound(text.status())) RETURN_IF_ERROR(text.status());
  nlohmann::json parsed;
  if (text.ok()) {
    ASSIGN_OR_RETURN(parsed, ParseJson(*text, path));
    RETURN_IF_ERROR(JsonFields(parsed, path).status());
    checkpoint->tokenizer_config = *text;
  }
  RETURN_IF_ERROR(AddSpecialTokensMap(directory, &parsed));
  if (parsed.is_null()) return absl::OkStatus();
  JsonFields fields(parsed, path);
  const std::string tokenizer_class = fields.Text("tokenizer_class", "");
  if (!fields.Has("add_bos_token") && std::ranges::count(kAddBosClasses, tokenizer_class) > 0) {
    fields.Fail(StrCat("tokenizer_class is ", Quote(tokenizer_class),
                       ", which puts bos_token "
                       "before each text unless add_bos_token is false; write add_bos_token, true "
                       "or false"));
  }
  if (fields.Bool("add_eos_token", false)) {
    fields.Fail("add_eos_token is true, must be false: prompts would end with the end of a text");
  }
  checkpoint->add_bos = fields.Bool("add_bos_token", false);
  if (checkpoint->add_bos && !checkpoint->config.bos_id) {
    fields.Fail("add_bos_token is true, but config.json has no bos_token_id");
  }
  checkpoint->bos_token = TokenText(parsed, "bos_token", &fields);
  checkpoint->eos_token = TokenText(parsed, "eos_token", &fields);
  const auto bos_id = checkpoint->tokenizer->FindSpecialToken(checkpoint->bos_token);
  const bool puts_bos = checkpoint->add_bos && checkpoint->config.bos_id;
  if (puts_bos && bos_id && bos_id != checkpoint->config.bos_id) {
    fields.Fail(StrCat("bos_token is ", Quote(checkpoint->bos_token), ", token ", *bos_id,
                       ", but bos_token_id of config.json is ", *checkpoint->config.bos_id,
                       "; they must be equal where add_bos_token is true"));
  }
  const auto before = checkpoint->tokenizer->TokenBeforeText();
  if (puts_bos && before && before != checkpoint->config.bos_id) {
    const bool has_name = *before < checkpoint->tokenizer->VocabSize();
    const std::string_view name =
        has_name ? checkpoint->tokenizer->SpecialTokenName(*before) : std::string_view();
    fields.Fail(StrCat("add_bos_token is true, and tokenizer.json puts token ", *before,
                       name.empty() ? "" : StrCat(", ", Quote(name), ","),
                       " before each text, but bos_token_id of config.json is ",
                       *checkpoint->config.bos_id, "; they must be equal"));
  }
  checkpoint->chat_stop_strings = fields.Texts("stop_strings", kMaxChatStops, kMaxChatStopBytes);
  RETURN_IF_ERROR(fields.status());
  return absl::OkStatus();
}

// The text of the chat template: chat_template.jinja, or else chat_template of
// tokenizer_config.json; of a list of named ones, "default". "": there is none. `where` names it.
absl::StatusOr<std::string> ReadChatTemplate(const std::string& directory,
                                             const std::string& tokenizer_config,
                                             std::string* where) {
  *where = StrCat(directory, "/chat_template.jinja");
  absl::StatusOr<std::string> text = ReadWholeFile(*where, kMaxTemplateFileBytes);
  if (text.ok()) {
    RETURN_IF_ERROR(CheckUtf8(*text));
    return text;
  }
  if (!absl::IsNotFound(text.status())) return text.status();
  const std::string path = StrCat(directory, "/tokenizer_config.json");
  *where = StrCat(path, ": chat_template");
  if (tokenizer_config.empty()) return "";
  ASSIGN_OR_RETURN(const nlohmann::json parsed, ParseJson(tokenizer_config, path));
  const auto found = parsed.find("chat_template");
  if (found == parsed.end() || !found->is_array()) {
    JsonFields fields(parsed, path);
    std::string one = fields.Text("chat_template", "");
    RETURN_IF_ERROR(fields.status());
    return one;
  }
  for (const nlohmann::json& named : *found) {
    JsonFields fields(named, *where);
    const std::string name = fields.Text("name");
    std::string one = fields.Text("template");
    RETURN_IF_ERROR(fields.status());
    if (name == "default") return one;
  }
  return "";
}

// The role table beside the template, or the template itself. A template outside the subset of
// Jinja leaves the model without chat, and a warning.
absl::Status LoadChat(const std::string& directory, Checkpoint* checkpoint) {
  std::string where;
  ASSIGN_OR_RETURN(const std::string text,
                   ReadChatTemplate(directory, checkpoint->tokenizer_config, &where));
  const std::string roles_path = StrCat(directory, "/chat_roles.json");
  const absl::StatusOr<std::string> roles_text = ReadWholeFile(roles_path, kMaxConfigFileBytes);
  if (roles_text.ok()) {
    Sha256 hash;
    hash.Add(text);
    ASSIGN_OR_RETURN(ChatRoles roles, ChatRoles::Parse(*roles_text, roles_path, hash.Hex()));
    for (const std::string& stop : roles.StopStrings()) {
      auto* const stops = &checkpoint->chat_stop_strings;
      if (std::ranges::count(*stops, stop) == 0) stops->push_back(stop);
    }
    checkpoint->chat_template.emplace(ChatTemplate::FromRoles(std::move(roles)));
    return absl::OkStatus();
  }
  if (!absl::IsNotFound(roles_text.status())) return roles_text.status();
  if (text.empty()) return absl::OkStatus();
  absl::StatusOr<ChatTemplate> compiled = ChatTemplate::Parse(text);
  if (compiled.ok()) {
    checkpoint->chat_template.emplace(*std::move(compiled));
  } else {
    checkpoint->chat_warning =
        StrCat(where, ": ", compiled.status().message(),
               ". The model is served without chat: the template is outside the subset of Jinja "
               "(models/README.md), and there is no chat_roles.json; `lssar import` writes one");
  }
  return absl::OkStatus();
}

// generation_config.json's eos_token_id ends texts too. Absent: nothing.
absl::Status LoadGenerationConfig(const std::string& directory, ModelConfig* config) {
  const std::string path = StrCat(directory, "/generation_config.json");
  const absl::StatusOr<std::string> text = ReadWholeFile(path, kMaxConfigFileBytes);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  RETURN_IF_ERROR(text.status());
  return config->AddEosIds(*text, path);
}

// Leaves a checkpoint without tokenizer files as it is: it serves token ids.
absl::Status LoadText(const std::string& directory, Checkpoint* checkpoint) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      LoadTokenizer(directory, checkpoint->config.vocab_size);
  if (absl::IsNotFound(tokenizer.status())) return absl::OkStatus();
  ASSIGN_OR_RETURN(checkpoint->tokenizer, std::move(tokenizer));
  RETURN_IF_ERROR(LoadTokenizerConfig(directory, checkpoint));
  return LoadChat(directory, checkpoint);
}

// Every file that a reply can depend on counts, but for the weights and the tokenizer's own. Those
// that are absent or cannot be read were not used either.
std::string HashOfConfig(const std::string& directory) {
  Sha256 hash;
  for (const std::string_view name :
       {"config.json", "added_tokens.json", "chat_roles.json", "chat_template.jinja",
        "generation_config.json", "special_tokens_map.json", "tokenizer_config.json"}) {
    const absl::StatusOr<std::string> text = ReadWholeFile(StrCat(directory, "/", name));
    if (!text.ok()) continue;
    if (name != "config.json") hash.Add(StrCat("\n", name, " ", text->size(), "\n"));
    hash.Add(*text);
  }
  return hash.ShortHex();
}

}  // namespace

absl::StatusOr<Checkpoint> LoadCheckpoint(const std::string& directory, Backend* backend,
                                          const LoadOptions& options) {
  RETURN_IF_ERROR(CheckDirectory(directory));
  Checkpoint checkpoint;
  checkpoint.name =
      std::filesystem::path(directory + "/").lexically_normal().parent_path().filename();
  RETURN_IF_ERROR(LoadModel(directory, backend, options, &checkpoint));
  RETURN_IF_ERROR(LoadText(directory, &checkpoint));
  checkpoint.config_hash = HashOfConfig(directory);
  return checkpoint;
}

}  // namespace lssar
