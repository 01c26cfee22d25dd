#include "models/checkpoint.h"

#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/read_file.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "models/gpt.h"
#include "models/json_fields.h"
#include "models/safetensors.h"

namespace lssar {
namespace {

absl::Status CheckDirectory(const std::string& directory) {
  struct stat status;
  if (stat(directory.c_str(), &status) != 0) return FileError(directory, errno);
  if (S_ISDIR(status.st_mode)) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat(
      directory, ": not a directory; a checkpoint is a directory with config.json and weights"));
}

absl::Status LoadModel(const std::string& directory, Backend* backend, const LoadOptions& options,
                       Checkpoint* checkpoint) {
  const std::string config_path = StrCat(directory, "/config.json");
  ASSIGN_OR_RETURN(const std::string config_text, ReadWholeFile(config_path, kMaxConfigFileBytes));
  ASSIGN_OR_RETURN(checkpoint->config, ParseConfig(config_text, config_path));
  RETURN_IF_ERROR(Gpt::CheckBackend(checkpoint->config, *backend));

  ASSIGN_OR_RETURN(const TensorFile file, TensorFile::OpenModel(directory));
  Sha256 config_hash;
  config_hash.Add(config_text);
  checkpoint->config_hash = config_hash.ShortHex();
  Sha256 hash;
  hash.Add(config_text);
  RETURN_IF_ERROR(file.AddBytesTo(&hash));
  checkpoint->hash = hash.ShortHex();

  ASSIGN_OR_RETURN(GptWeights weights,
                   LoadGptWeights(file, checkpoint->config, backend, options.dtype));
  RETURN_IF_ERROR(file.CheckUnchanged());
  checkpoint->dtype = weights.NarrowestType();
  checkpoint->num_parameters = weights.num_parameters;
  checkpoint->max_num_batched_tokens = options.max_num_batched_tokens;
  ASSIGN_OR_RETURN(checkpoint->model, Gpt::Create(checkpoint->config, std::move(weights), backend,
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

// tokenizer_config.json: BOS, EOS, chat template and stop strings. Absent: no BOS, no chat.
absl::Status LoadTokenizerConfig(const std::string& directory, Checkpoint* checkpoint) {
  const std::string path = StrCat(directory, "/tokenizer_config.json");
  const absl::StatusOr<std::string> text = ReadWholeFile(path, kMaxTemplateFileBytes);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  RETURN_IF_ERROR(text.status());
  ASSIGN_OR_RETURN(const nlohmann::json parsed, ParseJson(*text, path));

  checkpoint->tokenizer_config = *text;
  JsonFields fields(parsed, path);
  checkpoint->add_bos = fields.Bool("add_bos_token", false);
  if (checkpoint->add_bos && !checkpoint->config.bos_id) {
    fields.Fail("add_bos_token is true, but config.json has no bos_token_id");
  }
  checkpoint->bos_token = TokenText(parsed, "bos_token", &fields);
  checkpoint->eos_token = TokenText(parsed, "eos_token", &fields);
  if (const nlohmann::json* stops = fields.Array("stop_strings")) {
    for (const nlohmann::json& stop : *stops) {
      if (!stop.is_string() || stop.get_ref<const std::string&>().empty()) {
        fields.Fail("stop_strings must be an array of non-empty strings");
        break;
      }
      checkpoint->chat_stop_strings.push_back(stop.get<std::string>());
    }
  }
  const std::string chat_template = fields.Text("chat_template", "");
  RETURN_IF_ERROR(fields.status());
  if (chat_template.empty()) return absl::OkStatus();
  absl::StatusOr<ChatTemplate> compiled = ChatTemplate::Parse(chat_template);
  if (!compiled.ok()) {
    return absl::InvalidArgumentError(
        StrCat(path, ": chat_template: ", compiled.status().message(),
               " (models/README.md lists the supported subset of Jinja; remove chat_template to "
               "serve the model without chat)"));
  }
  checkpoint->chat_template.emplace(*std::move(compiled));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Checkpoint> LoadCheckpoint(const std::string& directory, Backend* backend,
                                          const LoadOptions& options) {
  RETURN_IF_ERROR(CheckDirectory(directory));
  Checkpoint checkpoint;
  checkpoint.name =
      std::filesystem::path(directory + "/").lexically_normal().parent_path().filename();
  RETURN_IF_ERROR(LoadModel(directory, backend, options, &checkpoint));

  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      LoadTokenizer(directory, checkpoint.config.vocab_size);
  if (absl::IsNotFound(tokenizer.status())) return checkpoint;  // serves token ids
  ASSIGN_OR_RETURN(checkpoint.tokenizer, std::move(tokenizer));
  RETURN_IF_ERROR(LoadTokenizerConfig(directory, &checkpoint));
  return checkpoint;
}

}  // namespace lssar
