// Loads checkpoint directories: the result, and the error for each kind of damage.
#include "models/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "base/str_cat.h"
#include "models/safetensors.h"
#include "nlohmann/json.hpp"
#include "tests/models/fixture.h"
#include "tests/support/test_device.h"

namespace lssar {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kShippedModel;
using testing::kSmallModel;
using testing::MessageOf;
using testing::RawTensor;

Backend* Reference() {
  static const std::unique_ptr<Backend> backend = testing::NewBackend("reference");
  return backend.get();
}

absl::StatusOr<Checkpoint> Load(std::string_view directory, const LoadOptions& options = {}) {
  return LoadCheckpoint(std::string(directory), Reference(), options);
}

// A receipt says what a reply depends on: ids, prompts of chats, and where texts end, too.
TEST(CheckpointTest, TheHashOfTheConfigIsOfAllFilesThatChangeReplies) {
  const ScratchDirectory directory;
  directory.CopyFrom(kShippedModel);
  std::set<std::string> hashes = {Load(directory.Path())->config_hash};
  const std::string hash = Load(directory.Path())->hash;
  size_t num_changes = 0;
  for (const auto& [name, text] : std::map<std::string, std::string>{
           {"added_tokens.json", R"({"</s>": 2})"},
           {"chat_template.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}"},
           {"generation_config.json", R"({"eos_token_id": 7})"},
           {"special_tokens_map.json", R"({"pad_token": "</s>"})"},
           {"tokenizer_config.json", R"({"add_bos_token": false})"}}) {
    directory.Write(name, text);
    const absl::StatusOr<Checkpoint> changed = Load(directory.Path());
    ASSERT_TRUE(changed.ok()) << changed.status();
    EXPECT_EQ(changed->hash, hash);
    hashes.insert(changed->config_hash);
    EXPECT_EQ(hashes.size(), 1 + ++num_changes) << name;
  }
  directory.Write("README.md", "of no reply");
  EXPECT_TRUE(hashes.contains(Load(directory.Path())->config_hash));
}

TEST(CheckpointTest, LoadsTheShippedModel) {
  const absl::StatusOr<Checkpoint> loaded = Load(kShippedModel);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->name, "lssar-6m");
  EXPECT_EQ(loaded->hash.size(), 16u);
  EXPECT_EQ(loaded->num_parameters, 5787648);
  EXPECT_EQ(loaded->dtype, DType::kF16);
  EXPECT_EQ(loaded->config.AttentionNames(), "lssar");
  EXPECT_TRUE(loaded->add_bos);
  EXPECT_EQ(loaded->config.bos_id, 2);
  EXPECT_EQ(loaded->bos_token, "</s>");
  EXPECT_EQ(loaded->tokenizer->VocabSize(), 4096);
  EXPECT_TRUE(loaded->chat_template.has_value());
  EXPECT_THAT(loaded->chat_stop_strings, ElementsAre("<|user|>"));
}

TEST(CheckpointTest, NameIsTheDirectorysAndHashIsTheFiles) {
  const ScratchDirectory directory;
  directory.CopyFrom(kSmallModel);
  const std::string hash = Load(kSmallModel)->hash;
  EXPECT_EQ(Load(directory.Path())->hash, hash);
  EXPECT_EQ(Load(std::string(kSmallModel) + "//")->name, "gpt_lssar");
  directory.Write("config.json", testing::ReadFile(directory.Path() + "/config.json") + "\n");
  EXPECT_NE(Load(directory.Path())->hash, hash);
}

// As transformers 5.24 reads the two files (PreTrainedTokenizerBase._from_pretrained).
TEST(CheckpointTest, TheMapOfSpecialTokens) {
  const ScratchDirectory directory;
  directory.CopyFrom(kShippedModel);
  const auto tokens_with = [&](std::string_view config, std::string_view map) {
    directory.Write("tokenizer_config.json", config);
    directory.Write("special_tokens_map.json", map);
    const absl::StatusOr<Checkpoint> loaded = Load(directory.Path());
    return loaded.ok() ? StrCat(loaded->bos_token, " ", loaded->eos_token)
                       : MessageOf(loaded.status());
  };
  const std::string_view map = R"({"bos_token": "<unk>", "eos_token": {"content": "</s>"}})";
  EXPECT_EQ(tokens_with("{}", map), "<unk> </s>");
  EXPECT_EQ(tokens_with(R"({"bos_token": "</s>"})", map), "<unk> </s>");
  EXPECT_EQ(tokens_with(R"({"bos_token": "</s>"})", R"({"eos_token": "<unk>"})"), "</s> <unk>");
  EXPECT_EQ(tokens_with(R"({"bos_token": "</s>"})", R"({"bos_token": null})"), " ");
  EXPECT_EQ(tokens_with(R"({"bos_token": "</s>", "added_tokens_decoder": {}})", map), "</s> ");
  for (const std::string_view bad : {"2", "{}", R"({"content": 2})", R"(["<s>"])"}) {
    EXPECT_THAT(tokens_with("{}", StrCat(R"({"eos_token": )", bad, "}")),
                AllOf(HasSubstr("special_tokens_map.json: eos_token is "),
                      HasSubstr("must be a string or an object with a string \"content\"")));
  }
  EXPECT_THAT(tokens_with("{}", "[]"), HasSubstr("special_tokens_map.json: is []"));
  std::filesystem::remove(directory.Path("tokenizer_config.json"));
  directory.Write("special_tokens_map.json", map);
  EXPECT_EQ(Load(directory.Path())->bos_token, "<unk>");
}

// Ids: tokenizers 0.23, which puts the ids of the template's special_tokens before a text.
TEST(CheckpointTest, TheTemplateOfATokenizerPutsTheTokenOfTheConfig) {
  const ScratchDirectory directory;
  directory.CopyFrom(kSmallModel);
  const std::string config = directory.Path("config.json");
  auto fields = nlohmann::json::parse(testing::ReadFile(config));
  fields["bos_token_id"] = 0;
  directory.Write("config.json", fields.dump());
  const auto status_with = [&](const nlohmann::json& tokens, bool adds_bos, bool has_name = true) {
    const nlohmann::json post_processor = {{"type", "TemplateProcessing"},
                                           {"single",
                                            {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
                                             {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
                                           {"special_tokens", tokens}};
    directory.Write("tokenizer.json",
                    nlohmann::json{{"pre_tokenizer", {{"type", "ByteLevel"}}},
                                   {"post_processor", post_processor},
                                   {"added_tokens",
                                    {{{"id", 0}, {"content", "<s>"}, {"special", true}},
                                     {{"id", 1}, {"content", "<u>"}, {"special", true}}}},
                                   {"model",
                                    {{"type", "BPE"},
                                     {"vocab", {{"<s>", 0}, {"<u>", 1}, {"a", 2}}},
                                     {"merges", nlohmann::json::array()}}}}
                        .dump());
    nlohmann::json said = {{"add_bos_token", adds_bos}};
    if (has_name) said["bos_token"] = "<s>";
    directory.Write("tokenizer_config.json", said.dump());
    return StrCat(Load(directory.Path()).status().message());
  };
  const auto ids = [](const std::vector<int>& listed) {
    return nlohmann::json{{"<s>", {{"id", "<s>"}, {"ids", listed}}}};
  };
  EXPECT_EQ(status_with(ids({0}), true), "");
  EXPECT_EQ(status_with(ids({0}), true, /*has_name=*/false), "");
  EXPECT_EQ(status_with(ids({1}), false), "");
  for (const bool has_name : {true, false}) {
    EXPECT_THAT(status_with(ids({1}), true, has_name),
                HasSubstr("tokenizer.json puts token 1, \"<u>\", before each text, but "
                          "bos_token_id of config.json is 0; they must be equal"));
  }
  EXPECT_THAT(status_with(ids({0, 1}), true), HasSubstr("must be one id"));
  EXPECT_THAT(status_with(ids({-1}), true), HasSubstr("must be one id"));
  EXPECT_THAT(status_with(nlohmann::json::object(), true), HasSubstr("\"<s>\" is missing"));
}

TEST(CheckpointTest, TokenizerIsOptional) {
  const absl::StatusOr<Checkpoint> loaded = Load(kSmallModel);
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ(loaded->tokenizer, nullptr);
  EXPECT_FALSE(loaded->chat_template.has_value());
  EXPECT_FALSE(loaded->add_bos);
}

// A copy of the small model, which each test damages.
class BadCheckpoint : public ::testing::Test {
 protected:
  BadCheckpoint() { directory_.CopyFrom(kSmallModel); }

  std::string Path(const std::string& name) const { return directory_.Path() + "/" + name; }

  void ReplaceInConfig(const std::string& from, const std::string& to) {
    std::string text = testing::ReadFile(Path("config.json"));
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos);
    directory_.Write("config.json", text.replace(at, from.size(), to));
  }

  // Rewrites the weights with `edit` applied to tensor `name`.
  template <typename Edit>
  void EditTensor(const std::string& name, Edit edit) {
    std::vector<RawTensor> tensors =
        testing::ReadTensors(std::string(kSmallModel) + "/model.safetensors");
    bool is_found = false;
    for (RawTensor& tensor : tensors) {
      if (tensor.name != name) continue;
      edit(tensor);
      is_found = true;
    }
    ASSERT_TRUE(is_found) << name;
    directory_.Write("model.safetensors", testing::MakeSafetensors(tensors));
  }

  void SetFloat(const std::string& name, size_t index, float value) {
    EditTensor(name, [&](RawTensor& t) { std::memcpy(&t.bytes[index * 4], &value, 4); });
  }

  std::string Rejection(absl::StatusCode code = absl::StatusCode::kInvalidArgument,
                        const LoadOptions& options = {}) const {
    const absl::StatusOr<Checkpoint> loaded = Load(directory_.Path(), options);
    EXPECT_EQ(loaded.status().code(), code) << loaded.status().message();
    return loaded.ok() ? "" : MessageOf(loaded.status());
  }

  ScratchDirectory directory_;
};

TEST_F(BadCheckpoint, MissingDirectory) {
  const absl::Status status = Load("/no/such/model").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(MessageOf(status), HasSubstr("/no/such/model"));
  EXPECT_THAT(MessageOf(Load(Path("config.json")).status()), HasSubstr("not a directory"));
}

TEST_F(BadCheckpoint, NoConfig) {
  std::remove(Path("config.json").c_str());
  EXPECT_THAT(Rejection(absl::StatusCode::kNotFound), HasSubstr("config.json"));
  directory_.Write("delta.json", "{}");
  EXPECT_THAT(Rejection(), HasSubstr("holds a delta, not the model; `lssar import --base"));
}

TEST_F(BadCheckpoint, NoWeights) {
  std::remove(Path("model.safetensors").c_str());
  EXPECT_THAT(Rejection(absl::StatusCode::kNotFound), HasSubstr("model.safetensors"));
}

TEST_F(BadCheckpoint, NoAttentionObject) {
  ReplaceInConfig("\"attention\"", "\"auto_map\"");
  EXPECT_THAT(Rejection(), AllOf(HasSubstr("attention is missing"),
                                 HasSubstr(R"("attention": {"kind": "lssar", "p": 15})")));
}

TEST_F(BadCheckpoint, KindsThatTheBackendDoesNotCompute) {
  const auto backend = OpenTestDevice({.name = "cuda-emulated"});
  ASSERT_TRUE(backend.ok()) << backend.status();
  std::string now = "\"lssar\"";
  int num_refused = 0;
  for (const AttentionKindInfo& info : kAttentionKinds) {
    std::string kind = StrCat("\"", info.name, "\"");
    if (info.kind == AttentionKind::kPhi) kind += ", \"phi\": \"gelu\"";
    ReplaceInConfig(now, kind);
    now = kind;
    const absl::Status status = LoadCheckpoint(directory_.Path(), backend->get(), {}).status();
    const AttentionSpec spec = {
        .kind = info.kind, .phi = Phi::kGelu, .max_position_embeddings = 64};
    if ((*backend)->CheckAttention(spec).ok()) {
      EXPECT_TRUE(status.ok()) << status;
      continue;
    }
    ++num_refused;
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    EXPECT_THAT(MessageOf(status),
                AllOf(HasSubstr(StrCat("\"", info.name, "\"")), HasSubstr("cpu")));
  }
  EXPECT_EQ(num_refused, 7);
}

TEST_F(BadCheckpoint, TruncatedWeights) {
  const std::string file = testing::ReadFile(Path("model.safetensors"));
  directory_.Write("model.safetensors", std::string_view(file).substr(0, 4));
  EXPECT_THAT(Rejection(), AllOf(HasSubstr("truncated"), HasSubstr("4 bytes")));
  directory_.Write("model.safetensors", std::string_view(file).substr(0, 1000));
  EXPECT_THAT(Rejection(), AllOf(HasSubstr("header length"), HasSubstr("992")));
  directory_.Write("model.safetensors", std::string_view(file).substr(0, file.size() - 4));
  EXPECT_THAT(Rejection(), AllOf(HasSubstr("data_offsets"), HasSubstr("within the file's")));
}

TEST_F(BadCheckpoint, MissingTensor) {
  EditTensor("transformer.h.1.ln_2.bias",
             [](RawTensor& t) { t.name = "transformer.h.1.ln_9.bias"; });
  EXPECT_THAT(Rejection(),
              AllOf(HasSubstr("\"transformer.h.1.ln_2.bias\" is missing"), HasSubstr("[96]")));
}

TEST_F(BadCheckpoint, UnexpectedTensor) {
  ReplaceInConfig("\"n_layer\": 3", "\"n_layer\": 2");
  EXPECT_THAT(Rejection(), AllOf(HasSubstr("\"transformer.h.2."), HasSubstr("is unexpected"),
                                 HasSubstr("2 layers")));
}

TEST_F(BadCheckpoint, WrongDtype) {
  EditTensor("transformer.ln_f.weight", [](RawTensor& t) { t.dtype = "I32"; });
  EXPECT_THAT(Rejection(), AllOf(HasSubstr("transformer.ln_f.weight"), HasSubstr("I32"),
                                 HasSubstr("must be F32, F16 or BF16")));
}

TEST_F(BadCheckpoint, WrongShape) {
  EditTensor("transformer.h.0.mlp.c_fc.weight", [](RawTensor& t) { t.shape = {96 * 4, 48, 2}; });
  EXPECT_THAT(Rejection(), AllOf(HasSubstr("h.0.mlp.c_fc.weight"), HasSubstr("[384, 48, 2]"),
                                 HasSubstr("must be [384, 96]")));
  ReplaceInConfig("\"n_embd\": 96", "\"n_embd\": 48");
  EXPECT_THAT(Rejection(), AllOf(HasSubstr("wte.weight"), HasSubstr("[257, 96]"),
                                 HasSubstr("must be [257, 48]")));
}

TEST_F(BadCheckpoint, LayoutDiffersFromTheConfig) {
  ReplaceInConfig("{", "{\"linear_layout\": \"conv1d\",");
  EXPECT_THAT(Rejection(), AllOf(HasSubstr("c_attn.weight"), HasSubstr("[288, 96]"),
                                 HasSubstr("must be [96, 288]"), HasSubstr("conv1d")));
}

TEST_F(BadCheckpoint, NanAndInfinity) {
  SetFloat("transformer.h.2.attn.c_attn.weight", 5 * 96 + 17, NAN);
  EXPECT_THAT(Rejection(),
              AllOf(HasSubstr("h.2.attn.c_attn.weight"), HasSubstr("a NaN"), HasSubstr("[5, 17]")));
  SetFloat("transformer.h.0.ln_1.bias", 95, -INFINITY);
  EXPECT_THAT(Rejection(),
              AllOf(HasSubstr("h.0.ln_1.bias"), HasSubstr("an infinity"), HasSubstr("[95]")));
}

TEST_F(BadCheckpoint, Int8WithoutScales) {
  const std::string name = "transformer.h.0.mlp.c_fc.weight";
  const auto to_int8 = [](RawTensor& t) {
    t.dtype = "I8";
    t.bytes.assign(384 * 96, 1);
  };
  EditTensor(name, to_int8);
  EXPECT_THAT(Rejection(),
              AllOf(HasSubstr("c_fc.weight_scale\" is missing"), HasSubstr("[384, 2]")));
  EditTensor(name, [&](RawTensor& t) {
    to_int8(t);
    t.bytes[7] = char(-128);
  });
  EXPECT_THAT(Rejection(), AllOf(HasSubstr("c_fc.weight\" holds -128"), HasSubstr("[-127, 127]")));
}

TEST_F(BadCheckpoint, Int4OnDisk) {
  const std::string name = "transformer.h.0.mlp.c_fc.weight", scale_name = name + "_scale";
  std::vector<RawTensor> tensors =
      testing::ReadTensors(std::string(kSmallModel) + "/model.safetensors");
  const auto write = [&](std::vector<int64_t> shape, std::vector<int64_t> scale_shape) {
    std::erase_if(tensors, [&](const RawTensor& t) { return t.name == scale_name; });
    for (RawTensor& t : tensors) {
      if (t.name != name) continue;
      t.dtype = "U8";
      t.shape = shape;
      t.bytes.assign(size_t(shape[0] * shape[1]), '\x87');
    }
    if (!scale_shape.empty()) {
      tensors.push_back({scale_name, "BF16", scale_shape,
                         std::string(size_t(scale_shape[0] * scale_shape[1] * 2), '\x11')});
    }
    directory_.Write("model.safetensors", testing::MakeSafetensors(tensors));
  };
  write({384, 48}, {});
  EXPECT_THAT(Rejection(),
              AllOf(HasSubstr("c_fc.weight_scale\" is missing"), HasSubstr("[384, 3]")));
  write({384, 96}, {384, 3});
  EXPECT_THAT(Rejection(), AllOf(HasSubstr("[384, 96]"), HasSubstr("must be [384, 48]"),
                                 HasSubstr("two columns in a byte")));
  write({384, 48}, {384, 2});
  EXPECT_THAT(Rejection(), AllOf(HasSubstr("[384, 2]"), HasSubstr("must be [384, 3]")));
  write({384, 48}, {384, 3});
  const auto loaded = Load(directory_.Path());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->dtype, DType::kI4);
}

TEST_F(BadCheckpoint, WeightBeyondFp16) {
  SetFloat("transformer.h.0.attn.c_proj.weight", 1, 70000);
  ASSERT_TRUE(Load(directory_.Path()).ok());
  EXPECT_THAT(Rejection(absl::StatusCode::kInvalidArgument, {.dtype = DType::kF16}),
              AllOf(HasSubstr("h.0.attn.c_proj.weight"), HasSubstr("70000"), HasSubstr("[0, 1]"),
                    HasSubstr("65520")));
}

TEST_F(BadCheckpoint, TiedHeadDiffersFromTheEmbedding) {
  std::vector<RawTensor> tensors =
      testing::ReadTensors(std::string(kSmallModel) + "/model.safetensors");
  tensors.push_back({"lm_head.weight", "F32", {257, 96}, std::string(257 * 96 * 4, '\0')});
  directory_.Write("model.safetensors", testing::MakeSafetensors(tensors));
  EXPECT_THAT(Rejection(), AllOf(HasSubstr("lm_head.weight"), HasSubstr("tie_word_embeddings")));
  ReplaceInConfig("\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
  EXPECT_TRUE(Load(directory_.Path()).ok());
}

TEST_F(BadCheckpoint, UntiedHeadIsMissing) {
  ReplaceInConfig("\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
  EXPECT_THAT(Rejection(), HasSubstr("\"lm_head.weight\" is missing"));
}

TEST_F(BadCheckpoint, TokenizerSizeDiffersFromTheVocabulary) {
  directory_.Write("tokenizer.model",
                   testing::ReadFile(std::string(kShippedModel) + "/tokenizer.model"));
  EXPECT_THAT(Rejection(), AllOf(HasSubstr("tokenizer.model"), HasSubstr("more than 257 pieces"),
                                 HasSubstr("vocab_size")));
}

TEST_F(BadCheckpoint, NoBatchedTokens) {
  EXPECT_THAT(Rejection(absl::StatusCode::kInvalidArgument, {.max_num_batched_tokens = 0}),
              AllOf(HasSubstr("max_num_batched_tokens"), HasSubstr("0")));
}

class BadTokenizerConfig : public ::testing::Test {
 protected:
  std::string Rejection(std::string_view text) {
    const ScratchDirectory directory;
    directory.CopyFrom(kShippedModel);
    directory.Write("tokenizer_config.json", text);
    const absl::Status status = Load(directory.Path()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return MessageOf(status);
  }
};

TEST_F(BadTokenizerConfig, EachField) {
  EXPECT_THAT(Rejection("{"), HasSubstr("not JSON"));
  EXPECT_THAT(Rejection(R"({"add_bos_token": 1})"), HasSubstr("add_bos_token is 1"));
  EXPECT_THAT(Rejection(R"({"bos_token": 2})"), HasSubstr("bos_token is 2"));
  EXPECT_THAT(Rejection(R"({"bos_token": {"lstrip": false}})"),
              HasSubstr("must have a string \"content\""));
  EXPECT_THAT(Rejection(R"({"stop_strings": [""]})"), HasSubstr("stop_strings"));
  EXPECT_THAT(Rejection(StrCat(R"({"stop_strings": [")", std::string(257, 'a'), R"("]})")),
              HasSubstr("must hold texts of 1 to 256 bytes"));
  EXPECT_THAT(Rejection(R"({"stop_strings": "x"})"), HasSubstr("stop_strings is \"x\""));
  EXPECT_THAT(Rejection(R"({"chat_template": 7})"), HasSubstr("chat_template is 7"));
  // What transformers puts around a text, and this would not.
  EXPECT_THAT(Rejection(R"({"tokenizer_class": "LlamaTokenizer"})"),
              HasSubstr("write add_bos_token, true or false"));
  EXPECT_THAT(Rejection(R"({"add_eos_token": true})"), HasSubstr("add_eos_token is true"));
  EXPECT_THAT(
      Rejection(R"({"add_bos_token": true, "bos_token": "<|user|>"})"),
      AllOf(HasSubstr("bos_token is \"<|user|>\", token "), HasSubstr("they must be equal")));
  EXPECT_THAT(Rejection(R"({"add_prefix_space": false})"), HasSubstr("add_prefix_space is false"));
}

// The golden rows of a checkpoint with attention of `kind` pass.
void CheckGoldenRows(std::string_view directory, std::string_view kind) {
  const std::unique_ptr<Backend> backend = testing::NewBackend("cpu");
  // Fewer than the tokens of a golden row, so the check runs in chunks.
  absl::StatusOr<Checkpoint> loaded =
      LoadCheckpoint(std::string(directory), backend.get(), {.max_num_batched_tokens = 300});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->config.AttentionNames(), kind);
  for (const DType kv_cache_dtype : {DType::kF32, DType::kF16}) {
    for (const int page_size : {16, 64}) {
      const absl::StatusOr<SelfCheckReport> report =
          SelfCheck(std::string(directory), *loaded, backend.get(), kv_cache_dtype, page_size);
      ASSERT_TRUE(report.ok()) << report.status().message();
      EXPECT_EQ(report->num_rows, 21);
      EXPECT_LE(report->worst_error, report->tolerance);
      EXPECT_GT(report->worst_error, 0);
    }
  }
}

TEST(SelfCheckTest, ShippedRowsPassOnTheCpu) { CheckGoldenRows(kShippedModel, "lssar"); }
TEST(SelfCheckTest, RowsOfTheLssarTwinPassOnTheCpu) {
  CheckGoldenRows("models/zoo/twins/lssar", "lssar");
}
TEST(SelfCheckTest, RowsOfTheSoftmaxTwinPassOnTheCpu) {
  CheckGoldenRows("models/zoo/twins/softmax", "softmax");
}

class SelfCheckSmall : public ::testing::Test {
 protected:
  SelfCheckSmall() { directory_.CopyFrom(kSmallModel); }

  // golden.safetensors from the small model's expected logits at three positions.
  void WriteGolden(float shift, int32_t first_token_shift = 0) {
    const absl::StatusOr<TensorFile> file =
        TensorFile::Open(std::string(kSmallModel) + "/expected.safetensors");
    std::vector<int32_t> tokens = file->Find("tokens")->ToInts();
    const std::vector<float> logits = file->Find("logits")->ToFloats();
    const std::vector<int32_t> rows{0, 64, 129};
    std::vector<float> golden;
    for (const int32_t row : rows) {
      golden.insert(golden.end(), logits.begin() + row * 257, logits.begin() + (row + 1) * 257);
    }
    golden.back() += shift;
    tokens[0] += first_token_shift;
    const auto bytes = [](const std::vector<int32_t>& ids) {
      return std::string(reinterpret_cast<const char*>(ids.data()), ids.size() * 4);
    };
    directory_.Write(
        "golden.safetensors",
        testing::MakeSafetensors({{"tokens_0", "I32", {130}, bytes(tokens)},
                                  {"rows_0", "I32", {3}, bytes(rows)},
                                  {"logits_0", "F32", {3, 257}, testing::FloatBytes(golden)}}));
  }

  absl::StatusOr<SelfCheckReport> Run() {
    absl::StatusOr<Checkpoint> loaded = Load(directory_.Path());
    EXPECT_TRUE(loaded.ok());
    return SelfCheck(directory_.Path(), *loaded, Reference(), DType::kF32, 16);
  }

  ScratchDirectory directory_;
};

TEST_F(SelfCheckSmall, PassesWithoutGoldenRows) {
  const absl::StatusOr<SelfCheckReport> report = Run();
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->num_rows, 0);
}

TEST_F(SelfCheckSmall, ALinkToNothingIsNotNoGoldenRows) {
  std::filesystem::create_symlink(directory_.Path("gone"), directory_.Path("golden.safetensors"));
  EXPECT_THAT(MessageOf(Run().status()), AllOf(HasSubstr("golden.safetensors"),
                                               HasSubstr("is a link to a file that does not")));
  // The tokenizer is optional, too: without one a server serves ids alone.
  std::filesystem::remove(directory_.Path("golden.safetensors"));
  std::filesystem::create_symlink(directory_.Path("gone"), directory_.Path("tokenizer.model"));
  EXPECT_THAT(MessageOf(Load(directory_.Path()).status()),
              AllOf(HasSubstr("tokenizer.model"), HasSubstr("is a link to a file that does not")));
}

TEST_F(SelfCheckSmall, CorrectRowsPass) {
  WriteGolden(0);
  const absl::StatusOr<SelfCheckReport> report = Run();
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->num_rows, 3);
}

TEST_F(SelfCheckSmall, WrongLogitIsNamed) {
  for (const float shift : {0.5f, NAN}) {
    WriteGolden(shift);
    const absl::Status status = Run().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(MessageOf(status),
                AllOf(HasSubstr("row 0"), HasSubstr("position 129"), HasSubstr("must be within")));
  }
}

TEST_F(SelfCheckSmall, AnotherPowerFails) {
  WriteGolden(0);
  std::string config = testing::ReadFile(directory_.Path() + "/config.json");
  config.replace(config.find("15.0"), 4, "14.0");
  directory_.Write("config.json", config);
  EXPECT_EQ(Run().status().code(), absl::StatusCode::kFailedPrecondition);
}

// With fp32 K/V the limit is the error of the arithmetic: the other GELU, which differs by 5e-4 at
// most, fails.
TEST(SelfCheckTest, ErfGeluForTanhGeluFails) {
  ScratchDirectory directory;
  directory.CopyFrom(kShippedModel);
  std::string config = testing::ReadFile(directory.Path() + "/config.json");
  config.replace(config.find("\"gelu_new\""), 10, "\"gelu\"");
  directory.Write("config.json", config);
  const std::unique_ptr<Backend> backend = testing::NewBackend("cpu");
  const absl::StatusOr<Checkpoint> loaded = LoadCheckpoint(directory.Path(), backend.get(), {});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const absl::Status status =
      SelfCheck(directory.Path(), *loaded, backend.get(), DType::kF32, 64).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(MessageOf(status), HasSubstr("does not compute the function"));
}

TEST_F(SelfCheckSmall, RowsAreBoundedBeforeAnyIsComputed) {
  const auto tokens = [](const std::string& name, int64_t count) {
    return testing::RawTensor{name, "I32", {count}, std::string(size_t(count) * 4, '\0')};
  };
  directory_.Write("golden.safetensors",
                   testing::MakeSafetensors({tokens("tokens_0", 8), tokens("tokens_1", 16385)}));
  EXPECT_THAT(MessageOf(Run().status()),
              AllOf(HasSubstr("tokens_1"), HasSubstr("16385 tokens, must hold at most 16384")));
  directory_.Write("golden.safetensors",
                   testing::MakeSafetensors({tokens("tokens_0", 16000), tokens("tokens_1", 16000),
                                             tokens("tokens_2", 16000)}));
  EXPECT_THAT(MessageOf(Run().status()),
              AllOf(HasSubstr("tokens_2"), HasSubstr("48000 tokens, must hold at most 32768")));
}

TEST_F(SelfCheckSmall, ProgressIsReported) {
  WriteGolden(0);
  absl::StatusOr<Checkpoint> loaded = Load(directory_.Path());
  ASSERT_TRUE(loaded.ok());
  std::vector<int64_t> done;
  const auto report = SelfCheck(directory_.Path(), *loaded, Reference(), DType::kF32, 16,
                                [&](const SelfCheckProgress& progress) {
                                  EXPECT_EQ(progress.num_rows, 1);
                                  EXPECT_EQ(progress.num_tokens, 130);
                                  done.push_back(progress.num_tokens_done);
                                });
  ASSERT_TRUE(report.ok());
  ASSERT_GE(done.size(), 2u);
  EXPECT_EQ(done.front(), 0);
  EXPECT_EQ(done.back(), 130);
}

TEST_F(SelfCheckSmall, BadGoldenFiles) {
  WriteGolden(0, 1000);
  EXPECT_THAT(MessageOf(Run().status()), AllOf(HasSubstr("tokens_0"), HasSubstr("[0, 257)")));
  directory_.Write("golden.safetensors",
                   testing::MakeSafetensors({{"x", "F32", {1}, testing::FloatBytes({1})}}));
  EXPECT_THAT(MessageOf(Run().status()), HasSubstr("tokens_0"));
}

}  // namespace
}  // namespace lssar
