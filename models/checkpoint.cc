#include "models/checkpoint.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "kernels/str_cat.h"
#include "models/file_text.h"
#include "models/gpt.h"
#include "models/json_fields.h"
#include "models/safetensors.h"
#include "models/sha256.h"

namespace lssar {
namespace {

absl::Status CheckDirectory(const std::string& directory) {
  struct stat status;
  if (stat(directory.c_str(), &status) != 0) return FileError(directory, errno);
  if (S_ISDIR(status.st_mode)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat(directory, ": is not a directory; a checkpoint is one, with config.json in it"));
}

absl::Status AddFile(const std::string& path, Sha256& hash) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (file == nullptr) return FileError(path, errno);
  std::string block(1 << 20, '\0');
  while (const size_t num_read = std::fread(block.data(), 1, block.size(), file.get())) {
    hash.Add(std::string_view(block).substr(0, num_read));
  }
  return std::ferror(file.get()) != 0 ? FileError(path, errno) : absl::OkStatus();
}

absl::Status LoadModel(const std::string& directory, Backend* backend, const LoadOptions& options,
                       Checkpoint& checkpoint) {
  const std::string config_path = StrCat(directory, "/config.json");
  absl::StatusOr<std::string> config_text = ReadFileText(config_path);
  if (!config_text.ok()) return config_text.status();
  absl::StatusOr<ModelConfig> config = ParseConfig(*config_text, config_path);
  if (!config.ok()) return config.status();
  checkpoint.config = *config;

  absl::StatusOr<TensorFile> file = TensorFile::OpenModel(directory);
  if (!file.ok()) return file.status();
  Sha256 hash;
  hash.Add(*config_text);
  for (const std::string& path : file->Paths()) {
    const absl::Status status = AddFile(path, hash);
    if (!status.ok()) return status;
  }
  checkpoint.hash = hash.ShortHex();

  absl::StatusOr<GptWeights> weights = LoadGptWeights(*file, *config, backend, options.weights);
  if (!weights.ok()) return weights.status();
  checkpoint.weights = weights->embedding->StoredType();
  checkpoint.num_parameters = weights->num_parameters;
  checkpoint.max_num_batched_tokens = options.max_num_batched_tokens;
  absl::StatusOr<std::unique_ptr<Gpt>> gpt =
      Gpt::Create(*config, *std::move(weights), backend, options.max_num_batched_tokens);
  if (!gpt.ok()) return gpt.status();
  checkpoint.model = *std::move(gpt);
  return absl::OkStatus();
}

// A token's text: "<s>", or Hugging Face's {"content": "<s>", ...}. Absent: "".
std::string TokenText(const nlohmann::json& object, const char* name, JsonFields& fields) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_object()) return fields.Text(name, "");
  const auto content = found->find("content");
  if (content != found->end() && content->is_string()) return content->get<std::string>();
  fields.Fail(StrCat(name, " is an object, must have a content that is a string"));
  return "";
}

// tokenizer_config.json: what surrounds the tokenizer. Absent: no BOS, no chat.
absl::Status LoadTokenizerConfig(const std::string& directory, Checkpoint& checkpoint) {
  const std::string path = StrCat(directory, "/tokenizer_config.json");
  absl::StatusOr<std::string> text = ReadFileText(path);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  if (!text.ok()) return text.status();
  absl::StatusOr<nlohmann::json> parsed = ParseJson(*text, path);
  if (!parsed.ok()) return parsed.status();

  JsonFields fields(*parsed, path);
  checkpoint.add_bos = fields.Bool("add_bos_token", false);
  if (checkpoint.add_bos && !checkpoint.config.bos_id) {
    fields.Fail("add_bos_token is true, but config.json has no bos_token_id");
  }
  checkpoint.bos_token = TokenText(*parsed, "bos_token", fields);
  checkpoint.eos_token = TokenText(*parsed, "eos_token", fields);
  if (const nlohmann::json* stops = fields.Array("stop_strings")) {
    for (const nlohmann::json& stop : *stops) {
      if (!stop.is_string() || stop.get_ref<const std::string&>().empty()) {
        fields.Fail("stop_strings must be an array of strings that are not empty");
        break;
      }
      checkpoint.chat_stop_strings.push_back(stop.get<std::string>());
    }
  }
  const std::string chat_template = fields.Text("chat_template", "");
  if (!fields.status().ok()) return fields.status();
  if (chat_template.empty()) return absl::OkStatus();
  absl::StatusOr<ChatTemplate> compiled = ChatTemplate::Parse(chat_template);
  if (!compiled.ok()) {
    return absl::InvalidArgumentError(
        StrCat(path, ": chat_template: ", std::string(compiled.status().message()),
               " (models/README.md lists the subset; without chat_template the model serves "
               "all but chat)"));
  }
  checkpoint.chat_template.emplace(*std::move(compiled));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Checkpoint> LoadCheckpoint(const std::string& directory, Backend* backend,
                                          const LoadOptions& options) {
  absl::Status status = CheckDirectory(directory);
  if (!status.ok()) return status;
  Checkpoint checkpoint;
  checkpoint.name =
      std::filesystem::path(directory + "/").lexically_normal().parent_path().filename();
  status = LoadModel(directory, backend, options, checkpoint);
  if (!status.ok()) return status;

  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      LoadTokenizer(directory, checkpoint.config.vocab_size);
  if (absl::IsNotFound(tokenizer.status())) return checkpoint;  // token ids only
  if (!tokenizer.ok()) return tokenizer.status();
  checkpoint.tokenizer = *std::move(tokenizer);
  status = LoadTokenizerConfig(directory, checkpoint);
  if (!status.ok()) return status;
  return checkpoint;
}

}  // namespace lssar
