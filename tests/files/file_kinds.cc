#include "tests/files/file_kinds.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/str_cat.h"
#include "models/checkpoint.h"
#include "models/safetensors.h"
#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"
#include "nlohmann/json.hpp"
#include "server/auth/api_keys.h"
#include "server/config/options.h"
#include "server/net/tls.h"
#include "tests/models/fixture.h"
#include "tests/server/certificates.h"

namespace lssar::testing {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kText = "Hello, w\u00f6rld! 123 \u4f60\u597d\n\x7f";

void Write(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  LSSAR_CHECK(file.good());
}

std::string NewDirectory(const std::string& parent, const std::string& name) {
  const std::string path = parent + "/" + name;
  fs::create_directories(path);
  return path;
}

const std::vector<std::string_view> kJsonWords = {"{",
                                                  "}",
                                                  "[",
                                                  "]",
                                                  "\"",
                                                  ",",
                                                  ":",
                                                  "null",
                                                  "true",
                                                  "{\"a\":",
                                                  "\\u0000",
                                                  "\\ud800",
                                                  "\xff",
                                                  "\"\":",
                                                  "[[",
                                                  "1e999",
                                                  "\\",
                                                  "//",
                                                  "\"type\":",
                                                  "\"dtype\":\"F32\",",
                                                  "\"shape\":[0],",
                                                  "\"data_offsets\":[0,0]",
                                                  "\"__metadata__\":{",
                                                  "{\"dtype\":\"U8\",\"shape\":[0],"};

FileKind Safetensors(const std::string& parent) {
  const std::string path = NewDirectory(parent, "safetensors") + "/t.safetensors";
  return {.name = "safetensors",
          .examples = {MakeSafetensors({{"a", "F32", {2, 2}, FloatBytes({1, 2, 3, 4})},
                                        {"b", "F16", {3}, "123456"},
                                        {"none", "U8", {0}, ""}})},
          .words = kJsonWords,
          .read = [path](const std::string& bytes) {
            Write(path, bytes);
            const auto file = TensorFile::Open(path);
            if (!file.ok()) return false;
            for (const auto& [name, tensor] : file->Tensors()) {
              if (tensor.type == TensorType::kF32)
                LSSAR_CHECK(tensor.ToFloats().size() < bytes.size());
            }
            return file->CheckUnchanged().ok();
          }};
}

FileKind ShardIndex(const std::string& parent) {
  const std::string directory = NewDirectory(parent, "shards");
  Write(directory + "/one.safetensors", MakeSafetensors({{"a", "F32", {1}, FloatBytes({1})}}));
  Write(directory + "/two.safetensors", MakeSafetensors({{"b", "F32", {1}, FloatBytes({2})}}));
  return {.name = "shard index",
          .examples = {R"({"metadata": {"total_size": 8},)"
                       R"( "weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})"},
          .words = kJsonWords,
          .read = [directory](const std::string& bytes) {
            Write(directory + "/model.safetensors.index.json", bytes);
            return TensorFile::OpenModel(directory).ok();
          }};
}

// One file of a small checkpoint; the others are good.
FileKind CheckpointFile(const std::string& parent, const std::string& kind, const std::string& file,
                        std::vector<std::string_view> words) {
  const std::string directory = NewDirectory(parent, kind);
  for (const char* name : {"config.json", "model.safetensors"}) {
    fs::copy_file(StrCat(kSmallModel, "/", name), directory + "/" + name,
                  fs::copy_options::overwrite_existing);
  }
  std::string example;
  if (file == "golden.safetensors") {
    const auto expected = TensorFile::Open(StrCat(kSmallModel, "/expected.safetensors"));
    LSSAR_CHECK(expected.ok());
    const std::vector<int32_t> tokens = expected->Find("tokens")->ToInts();
    const std::vector<float> logits = expected->Find("logits")->ToFloats();
    const auto bytes_of = [](const std::vector<int32_t>& ids) {
      return std::string(reinterpret_cast<const char*>(ids.data()), ids.size() * 4);
    };
    const size_t vocab_size = logits.size() / tokens.size();
    const std::vector<float> row(logits.begin(), logits.begin() + long(2 * vocab_size));
    example =
        MakeSafetensors({{"tokens_0", "I32", {8}, bytes_of({tokens.begin(), tokens.begin() + 8})},
                         {"rows_0", "I32", {2}, bytes_of({0, 1})},
                         {"logits_0", "F32", {2, int64_t(vocab_size)}, FloatBytes(row)}});
  } else {
    example = ReadFile(directory + "/" + file);
  }
  const std::shared_ptr<Backend> backend = NewBackend("cpu", /*num_threads=*/1);
  return {.name = kind,
          .examples = {example},
          .words = std::move(words),
          .read = [=](const std::string& bytes) {
            Write(directory + "/" + file, bytes);
            const auto loaded =
                LoadCheckpoint(directory, backend.get(), {.max_num_batched_tokens = 16});
            if (!loaded.ok()) return false;
            return SelfCheck(directory, *loaded, backend.get(), DType::kF32, 16).ok();
          }};
}

// UTF-8 of the characters that stand for the bytes in GPT-2's vocabulary.
std::vector<std::string> ByteNames() {
  std::vector<std::string> names;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    const int character = prints ? byte : next++;
    if (character < 0x80) {
      names.emplace_back(1, char(character));
    } else {
      names.push_back({char(0xC0 | character >> 6), char(0x80 | (character & 0x3F))});
    }
  }
  return names;
}

constexpr int kVocabSize = 260;

nlohmann::json Vocabulary() {
  nlohmann::json vocabulary = nlohmann::json::object();
  for (const std::string& name : ByteNames()) {
    const size_t id = vocabulary.size();
    vocabulary[name] = id;
  }
  vocabulary["he"] = 256;
  vocabulary["ll"] = 257;
  vocabulary["hell"] = 258;
  vocabulary["<|endoftext|>"] = 259;
  return vocabulary;
}

bool UsesTokenizer(const std::string& directory, int vocab_size) {
  const auto tokenizer = LoadTokenizer(directory, vocab_size);
  if (!tokenizer.ok()) return false;
  const auto ids = (*tokenizer)->Encode(kText);
  if (ids.ok()) Decode(**tokenizer, *ids);
  for (int32_t id = 0; id < (*tokenizer)->VocabSize(); ++id) (*tokenizer)->PieceBytes(id);
  return true;
}

FileKind TokenizerFile(const std::string& parent, const std::string& kind, const std::string& file,
                       const std::string& example, int vocab_size,
                       std::vector<std::string_view> words,
                       const std::vector<std::pair<std::string, std::string>>& others = {}) {
  const std::string directory = NewDirectory(parent, kind);
  for (const auto& [name, bytes] : others) Write(directory + "/" + name, bytes);
  return {.name = kind,
          .examples = {example},
          .words = std::move(words),
          .read = [=](const std::string& bytes) {
            Write(directory + "/" + file, bytes);
            return UsesTokenizer(directory, vocab_size);
          }};
}

std::vector<FileKind> Tokenizers(const std::string& parent) {
  constexpr char kMerges[] = "#version: 0.2\nh e\nl l\nhe ll\n";
  const nlohmann::json tokenizer = {
      {"version", "1.0"},
      {"added_tokens",
       {{{"id", 259},
         {"content", "<|endoftext|>"},
         {"special", true},
         {"normalized", false},
         {"lstrip", false},
         {"rstrip", false},
         {"single_word", false}}}},
      {"normalizer", nullptr},
      {"pre_tokenizer",
       {{"type", "ByteLevel"},
        {"add_prefix_space", false},
        {"trim_offsets", true},
        {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", Vocabulary()}, {"merges", {"h e", "l l", "he ll"}}}}};
  std::vector<std::string_view> words = kJsonWords;
  for (const std::string_view word :
       {"\"ByteLevel\"", "\"merges\":[", "\"h e\",", "\"vocab\":{", "\"\\u0120\":", "h e\n", " "}) {
    words.push_back(word);
  }
  const std::string vocabulary = Vocabulary().dump();
  return {TokenizerFile(parent, "tokenizer.json", "tokenizer.json", tokenizer.dump(), kVocabSize,
                        words),
          TokenizerFile(parent, "vocab.json", "vocab.json", vocabulary, kVocabSize, words,
                        {{"merges.txt", kMerges}}),
          TokenizerFile(parent, "merges.txt", "merges.txt", kMerges, kVocabSize, words,
                        {{"vocab.json", vocabulary}}),
          TokenizerFile(parent, "tokenizer.model", "tokenizer.model",
                        ReadFile(StrCat(kShippedModel, "/tokenizer.model")), 4096, {})};
}

FileKind Template() {
  return {
      .name = "chat template",
      .examples = {"{% for m in messages %}{% if loop.first and m.role == 'system' %}"
                   "{{ bos_token + m['content'] | trim }}{% elif m.role != 'user' %}\n"
                   "  {{- 'A' + m.content + eos_token -}}\n{% else %}{{ m.content or 'x' }}"
                   "{% endif %}{# note #}{% endfor %}"
                   "{{ 'B' if add_generation_prompt else raise_exception('no \\'prompt\\'') }}"},
      .words = {"{{",
                "}}",
                "{%",
                "%}",
                "{#",
                "#}",
                "(",
                ")",
                "|trim",
                " + 'a'",
                " or ''",
                " and 'a'",
                "not ",
                "{% if true %}",
                "{% endif %}",
                "{% else %}",
                "{% elif false %}",
                "{% for m in messages %}",
                "{% endfor %}",
                "m.content",
                "raise_exception(",
                " == ",
                " if true else ",
                "'",
                "\\",
                "-",
                "\n"},
      .read = [](const std::string& bytes) {
        const auto chat_template = ChatTemplate::Parse(bytes);
        if (!chat_template.ok()) return false;
        const std::vector<ChatMessage> messages{
            {"system", " Be brief. "}, {"user", "Hi"}, {"assistant", std::string(1000, 'x')}};
        return chat_template->Render(messages, true, "<s>", "</s>").ok();
      }};
}

const std::vector<std::string_view> kTomlWords = {"[",
                                                  "]",
                                                  "[[",
                                                  "{",
                                                  "}",
                                                  "\"",
                                                  "'",
                                                  "\"\"\"",
                                                  "'''",
                                                  "=",
                                                  ".",
                                                  "a.",
                                                  "\n",
                                                  "#",
                                                  "\\u0000",
                                                  "\\UFFFFFFFF",
                                                  "key = ",
                                                  "[alice]\n",
                                                  "alice.key = \"...\"\n",
                                                  "x = [",
                                                  "x = {a.",
                                                  "inf",
                                                  "nan",
                                                  "1979-05-27T07:32:00Z",
                                                  "0x",
                                                  "\xff",
                                                  "\xef\xbb\xbf",
                                                  "true",
                                                  "_"};

FileKind KeyFile() {
  return {
      .name = "key file",
      .examples = {"# who may call\n[alice]\nkey = \"alice-alice-alice-alice\"\nrole = \"admin\""
                   "\n[bob_2]\nsha256 = \"62249369389075490555a758353aec61500c6218fa597252d5"
                   "2dc4bd0148f12d\"\nmax-concurrent = 4\ntokens-per-minute = 5000000000\n"},
      .words = kTomlWords,
      .read = [](const std::string& bytes) {
        const auto keys = ApiKeys::Parse(bytes);
        return keys.ok() && (keys->Find("alice-alice-alice-alice"), true);
      }};
}

FileKind ConfigFile(const std::string& parent) {
  const std::string path = NewDirectory(parent, "config") + "/server.toml";
  return {.name = "configuration",
          .examples = {"model = \"/models\"\nlisten = \"0.0.0.0:0\"\nmax-model-len = 8192\n"
                       "drain-timeout = \"30s\"  # of SIGTERM\nenable-prefix-caching = false\n"
                       "http-cors-origins = 'https://a.example,https://b.example'\n"},
          .words = kTomlWords,
          .read = [path](const std::string& bytes) {
            Write(path, bytes);
            const char* const arguments[] = {"lssar-server", "--config", path.c_str()};
            return !ParseCommandLine(3, arguments).exit_code.has_value();
          }};
}

enum class Pem { kCertificate, kKey, kClientCa };

FileKind PemFile(const std::string& parent, const std::string& kind, Pem damaged) {
  const std::string directory = NewDirectory(parent, kind);
  const TlsFiles files{.certificate = directory + "/cert.pem",
                       .key = directory + "/key.pem",
                       .client_ca = directory + "/ca.pem"};
  const Certificate authority = MakeAuthority("authority");
  const Certificate server = MakeCertificate("server", authority);
  const std::string chain = server.certificate + authority.certificate;
  Write(files.certificate, chain);
  Write(files.key, server.key);
  Write(files.client_ca, authority.certificate);
  const std::string path = damaged == Pem::kCertificate ? files.certificate
                           : damaged == Pem::kKey       ? files.key
                                                        : files.client_ca;
  return {.name = kind,
          .examples = {ReadFile(path)},
          .words = {"-----BEGIN CERTIFICATE-----\n", "-----END CERTIFICATE-----\n",
                    "-----BEGIN PRIVATE KEY-----\n", "-----END PRIVATE KEY-----\n",
                    "-----BEGIN ENCRYPTED PRIVATE KEY-----\n", "-----BEGIN EC PARAMETERS-----\n",
                    "Proc-Type: 4,ENCRYPTED\n", "DEK-Info: AES-128-CBC,00\n", "-----", "MII", "=",
                    "\n", "A"},
          .read = [=](const std::string& bytes) {
            Write(path, bytes);
            return ReadTlsMaterial(files).ok();
          }};
}

}  // namespace

std::vector<FileKind> MakeFileKinds(const std::string& directory) {
  std::vector<std::string_view> config_words = kJsonWords;
  for (const std::string_view word : {"\"n_layer\":", "\"attention\":{", "\"kind\":\"lssar\","}) {
    config_words.push_back(word);
  }
  std::vector<FileKind> kinds = {
      Safetensors(directory), ShardIndex(directory),
      CheckpointFile(directory, "config.json", "config.json", config_words),
      CheckpointFile(directory, "model.safetensors", "model.safetensors", kJsonWords),
      CheckpointFile(directory, "golden.safetensors", "golden.safetensors", kJsonWords)};
  for (FileKind& kind : Tokenizers(directory)) kinds.push_back(std::move(kind));
  kinds.push_back(Template());
  kinds.push_back(KeyFile());
  kinds.push_back(ConfigFile(directory));
  kinds.push_back(PemFile(directory, "certificate", Pem::kCertificate));
  kinds.push_back(PemFile(directory, "TLS key", Pem::kKey));
  kinds.push_back(PemFile(directory, "client CA", Pem::kClientCa));
  return kinds;
}

}  // namespace lssar::testing
