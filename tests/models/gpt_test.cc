// The forward pass: its values, and that its bits do not depend on chunks, batches and threads.
#include "models/gpt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <tuple>

#include "base/str_cat.h"
#include "models/page_pool.h"
#include "models/safetensors.h"
#include "tests/models/fixture.h"
#include "tests/models/model_runner.h"

namespace lssar {
namespace {

using testing::ModelRunner;
using testing::NewBackend;
using testing::TestModel;

TestModel Load(std::string_view directory, const std::string& backend_name, int num_threads = 2,
               const LoadOptions& options = {}) {
  return testing::LoadModel(directory, NewBackend(backend_name, num_threads), options);
}

std::vector<int32_t> GoldenTokens(int row) {
  const absl::StatusOr<TensorFile> file =
      TensorFile::Open(std::string(testing::kShippedModel) + "/golden.safetensors");
  return file->Find(StrCat("tokens_", row))->ToInts();
}

std::vector<float> FullForward(const TestModel& model, DType kv_cache_dtype, int page_size,
                               const std::vector<int32_t>& tokens) {
  ModelRunner runner(model.Get(), model.backend.get(), kv_cache_dtype, page_size,
                     int(tokens.size()));
  runner.Add(tokens);
  runner.Step({int(tokens.size())});
  return runner.Logits(0);
}

void ExpectSameBits(const std::vector<float>& got, const std::vector<float>& want, int vocab) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &want[i], sizeof(float)) == 0) continue;
    FAIL() << "position " << i / size_t(vocab) << ", id " << i % size_t(vocab) << ": " << got[i]
           << " instead of " << want[i];
  }
}

// Parameters: K/V type, page_size, threads. The expected bits are those of a full forward in one
// step on two threads with pages of 64.
class SameBits : public ::testing::TestWithParam<std::tuple<DType, int, int>> {
 protected:
  static const TestModel& Model(int num_threads) {
    static std::map<int, TestModel> models;
    if (!models.contains(num_threads)) {
      models.emplace(num_threads, Load(testing::kShippedModel, "cpu", num_threads));
    }
    return models.at(num_threads);
  }

  static const std::vector<float>& Want(DType kv_cache_dtype) {
    static std::map<DType, std::vector<float>> want;
    if (!want.contains(kv_cache_dtype)) {
      want[kv_cache_dtype] = FullForward(Model(2), kv_cache_dtype, 64, GoldenTokens(1));
    }
    return want[kv_cache_dtype];
  }

  DType KvType() const { return std::get<0>(GetParam()); }
  int PageSize() const { return std::get<1>(GetParam()); }
  const TestModel& Model() const { return Model(std::get<2>(GetParam())); }
  int Vocab() const { return Model().checkpoint.config.vocab_size; }
  ModelRunner NewRunner(int num_tokens) const {
    return ModelRunner(Model().Get(), Model().backend.get(), KvType(), PageSize(), num_tokens);
  }
};

TEST_P(SameBits, FullForward) {
  ExpectSameBits(FullForward(Model(), KvType(), PageSize(), GoldenTokens(1)), Want(KvType()),
                 Vocab());
}

TEST_P(SameBits, TokenByToken) {
  ModelRunner runner = NewRunner(200);
  runner.Add(GoldenTokens(1));
  runner.RunAll(/*max_tokens=*/1, nullptr);
  ExpectSameBits(runner.Logits(0), Want(KvType()), Vocab());
}

TEST_P(SameBits, RandomChunks) {
  std::mt19937 rng(11);
  for (int i = 0; i < 3; ++i) {
    ModelRunner runner = NewRunner(200);
    runner.Add(GoldenTokens(1));
    runner.RunAll(/*max_tokens=*/70, &rng);
    ExpectSameBits(runner.Logits(0), Want(KvType()), Vocab());
  }
}

TEST_P(SameBits, RandomBatches) {
  std::mt19937 rng(12);
  std::vector<int32_t> others = GoldenTokens(2);
  others.resize(300);
  ModelRunner runner = NewRunner(200 + 64 + 300 + 200);
  runner.Add(others);
  const int sequence = runner.Add(GoldenTokens(1));
  runner.Add(GoldenTokens(0));
  const int twin = runner.Add(GoldenTokens(1));
  runner.RunAll(/*max_tokens=*/40, &rng);
  ExpectSameBits(runner.Logits(sequence), Want(KvType()), Vocab());
  ExpectSameBits(runner.Logits(twin), Want(KvType()), Vocab());
}

INSTANTIATE_TEST_SUITE_P(Shipped, SameBits,
                         ::testing::Combine(::testing::Values(DType::kF32, DType::kF16, DType::kI8,
                                                              DType::kFx16),
                                            ::testing::Values(16, 64), ::testing::Values(1, 2)),
                         [](const auto& suite) {
                           return StrCat(NameOf(std::get<0>(suite.param)), "_page",
                                         std::get<1>(suite.param), "_threads",
                                         std::get<2>(suite.param));
                         });

// int4 weights: three functions of the CPU multiply them, by the number of rows. Attention has the
// same bits on instruction sets with fused multiply-add; linear_test.cc has the others.
TEST(Int4Bits, DoNotDependOnChunksThreadsOrInstructionSet) {
  for (const char* name : {"llama", "modded"}) {
    const std::string directory = StrCat("tests/golden/variant_", name);
    const LoadOptions options{.dtype = DType::kI4};
    const TestModel model = Load(directory, "cpu", 2, options);
    const int vocab = model.checkpoint.config.vocab_size;
    std::vector<int32_t> tokens;
    for (int i = 0; i < 60; ++i) tokens.push_back(i * 37 % vocab);
    const std::vector<float> want = FullForward(model, DType::kF16, 64, tokens);
    for (const char* instruction_set : {"", "AVX3", "AVX2"}) {
      absl::StatusOr<std::unique_ptr<Backend>> backend =
          MakeBackend({.num_threads = 3, .instruction_set = instruction_set});
      if (!backend.ok()) continue;  // not on this machine
      const TestModel twin = testing::LoadModel(directory, *std::move(backend), options);
      for (const int chunk : {1, 7, 40}) {
        ModelRunner runner(twin.Get(), twin.backend.get(), DType::kF16, 16, 60);
        const int sequence = runner.Add(tokens);
        runner.RunAll(chunk, nullptr);
        ExpectSameBits(runner.Logits(sequence), want, vocab);
      }
    }
  }
}

// Several variants: grouped heads, gates, QK-norm, norms on both sides, parallel branches; learned
// positions, none in a layer, ALiBi, windows.
TEST(VariantBits, DoNotDependOnChunksBatchOrThreads) {
  for (const char* directory :
       {"golden/variant_llama", "golden/variant_modded", "golden/variant_gemma2",
        "golden/variant_qk_norm_after", "golden/variant_neox", "golden/variant_mixed_attention",
        "models/hf/gpt2", "models/hf/smollm3", "models/hf/bloom_heads", "models/hf/mistral_window",
        "models/hf/smollm3_window"}) {
    SCOPED_TRACE(directory);
    const std::string path = StrCat("tests/", directory);
    const TestModel model = Load(path, "cpu", 2);
    const int vocab = model.checkpoint.config.vocab_size;
    std::vector<int32_t> tokens, others;
    const int length = model.checkpoint.config.MaxLength().value_or(150);
    for (int i = 0; i < length; ++i) tokens.push_back(i * 37 % vocab);
    for (int i = 0; i < 90; ++i) others.push_back(i * 11 % vocab);
    for (const DType kv_cache_dtype : {DType::kF16, DType::kI8, DType::kFx16}) {
      if (!CheckKvType(model.checkpoint.config, kv_cache_dtype).ok()) continue;  // by kind
      const std::vector<float> want = FullForward(model, kv_cache_dtype, 64, tokens);
      for (const int num_threads : {1, 2, 3}) {
        const TestModel twin = Load(path, "cpu", num_threads);
        std::mt19937 rng{uint32_t(num_threads)};
        ModelRunner runner(twin.Get(), twin.backend.get(), kv_cache_dtype, 16, length + 90);
        const int sequence = runner.Add(tokens);
        runner.Add(others);
        runner.RunAll(num_threads == 1 ? 1 : 40, num_threads == 1 ? nullptr : &rng);
        ExpectSameBits(runner.Logits(sequence), want, vocab);
      }
    }
  }
}

// max |got - want|, in units of the largest wanted logit; NaN where one is NaN.
double RelativeError(const std::vector<float>& got, const std::vector<float>& want) {
  double worst = 0, largest = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double d = std::fabs(double(got[i]) - double(want[i]));
    if (!(d <= worst)) worst = d;
    if (std::isnan(d)) return d;
    largest = std::max(largest, std::fabs(double(want[i])));
  }
  return got.size() == want.size() ? worst / largest : NAN;
}

TEST(GptTest, CpuMatchesReference) {
  const std::vector<int32_t> tokens = GoldenTokens(0);
  for (const DType kv_cache_dtype : {DType::kF32, DType::kF16, DType::kI8, DType::kFx16}) {
    const std::vector<float> cpu =
        FullForward(Load(testing::kShippedModel, "cpu"), kv_cache_dtype, 16, tokens);
    const std::vector<float> reference =
        FullForward(Load(testing::kShippedModel, "reference"), kv_cache_dtype, 16, tokens);
    // A key near a rounding tie may differ by one unit of its type.
    const double limit = kv_cache_dtype == DType::kF32  ? 1e-4
                         : kv_cache_dtype == DType::kI8 ? 3e-2
                                                        : 3e-3;
    EXPECT_LE(RelativeError(cpu, reference), limit) << NameOf(kv_cache_dtype);
  }
}

TEST(GptTest, WeightsCanBeStoredInAnotherType) {
  const std::vector<int32_t> tokens = GoldenTokens(0);
  const std::vector<float> want =
      FullForward(Load(testing::kShippedModel, "cpu"), DType::kF32, 64, tokens);
  const TestModel wide = Load(testing::kShippedModel, "cpu", 2, {.dtype = DType::kF32});
  EXPECT_EQ(wide.checkpoint.dtype, DType::kF32);
  EXPECT_LE(RelativeError(FullForward(wide, DType::kF32, 64, tokens), want), 1e-5);
  const TestModel coarse = Load(testing::kShippedModel, "cpu", 2, {.dtype = DType::kBF16});
  EXPECT_EQ(coarse.checkpoint.dtype, DType::kBF16);
  EXPECT_LE(RelativeError(FullForward(coarse, DType::kF32, 64, tokens), want), 0.1);
}

// Logits of 60 tokens by a model with these tensors and this config.
std::vector<float> RunModel(const std::vector<testing::RawTensor>& tensors,
                            const std::string& config, const std::string& backend = "cpu") {
  const ScratchDirectory directory;
  directory.Write("config.json", config);
  directory.Write("model.safetensors", testing::MakeSafetensors(tensors));
  const TestModel model = Load(directory.Path(), backend);
  std::vector<int32_t> tokens;
  for (int i = 0; i < 60; ++i) tokens.push_back(i * 37 % model.checkpoint.config.vocab_size);
  return FullForward(model, DType::kF32, 16, tokens);
}

std::string SmallConfig(const std::string& more_fields = "") {
  std::string config = testing::ReadFile(std::string(testing::kSmallModel) + "/config.json");
  return config.insert(1, more_fields);
}

std::vector<testing::RawTensor> SmallTensors() {
  return testing::ReadTensors(std::string(testing::kSmallModel) + "/model.safetensors");
}

// The small model's weights under every kind of attention, through a whole model. The golden
// vectors check one layer of each kind.
TEST(GptTest, EveryKindOfAttentionRuns) {
  std::vector<std::vector<float>> seen;
  for (const char* attention :
       {R"("lssar", "p": 15.0)", R"("lssa")", R"("softmax")", R"("softmax_r", "p": 3)",
        R"("sigmoid")", R"("sigmoid_n")", R"("sigmoid_n_l1")", R"("sigmoid_r", "p": 3)",
        R"("relu_wortsman")", R"("phi", "phi": "relu")", R"("phi", "phi": "relu2")",
        R"("phi", "phi": "gelu")", R"("phi", "phi": "mish")"}) {
    std::string config = SmallConfig();
    const size_t first = config.find("\"lssar\",\n");
    const size_t end = config.find('}', first);
    ASSERT_NE(first, std::string::npos);
    config.replace(first, end - first, attention);
    const std::vector<float> cpu = RunModel(SmallTensors(), config);
    EXPECT_LE(RelativeError(cpu, RunModel(SmallTensors(), config, "reference")), 5e-4) << attention;
    for (const std::vector<float>& other : seen) EXPECT_NE(cpu, other) << attention;
    seen.push_back(cpu);
  }
}

bool IsProjection(const testing::RawTensor& tensor) {
  return tensor.shape.size() == 2 && tensor.name.find(".h.") != std::string::npos;
}

std::vector<testing::RawTensor> Transposed(std::vector<testing::RawTensor> tensors) {
  for (testing::RawTensor& tensor : tensors) {
    if (!IsProjection(tensor)) continue;
    const size_t num_rows = size_t(tensor.shape[0]), num_cols = size_t(tensor.shape[1]);
    const std::string from = tensor.bytes;
    for (size_t r = 0; r < num_rows; ++r) {
      for (size_t c = 0; c < num_cols; ++c) {
        std::memcpy(&tensor.bytes[(c * num_rows + r) * 4], &from[(r * num_cols + c) * 4], 4);
      }
    }
    std::swap(tensor.shape[0], tensor.shape[1]);
  }
  return tensors;
}

TEST(GptTest, Conv1dLayoutIsTheSameModel) {
  const std::vector<float> want = RunModel(SmallTensors(), SmallConfig());
  const std::vector<testing::RawTensor> conv1d = Transposed(SmallTensors());
  EXPECT_EQ(RunModel(conv1d, SmallConfig("\"linear_layout\": \"conv1d\",")), want);
  EXPECT_EQ(RunModel(conv1d, SmallConfig()), want) << "found by the shape alone";
}

TEST(GptTest, TensorNamesWithoutPrefixLoad) {
  std::vector<testing::RawTensor> tensors = SmallTensors();
  for (testing::RawTensor& tensor : tensors) tensor.name.erase(0, strlen("transformer."));
  EXPECT_EQ(RunModel(tensors, SmallConfig()), RunModel(SmallTensors(), SmallConfig()));
}

// A bias that is absent equals a bias of zeros, and each switch covers its own tensors.
TEST(GptTest, BiasesAreOptional) {
  const struct {
    std::string field;
    std::vector<std::string> biases;
  } cases[] = {{"norm_bias", {"ln_1.bias", "ln_2.bias", "ln_f.bias"}},
               {"attention_bias", {"attn.c_attn.bias", "attn.c_proj.bias"}},
               {"mlp_bias", {"mlp.c_fc.bias", "mlp.c_proj.bias"}}};
  const std::vector<float> with_all = RunModel(SmallTensors(), SmallConfig());
  for (const auto& c : cases) {
    std::vector<testing::RawTensor> zeroed, without;
    for (testing::RawTensor& tensor : SmallTensors()) {
      const bool is_dropped = std::ranges::any_of(
          c.biases, [&](const std::string& name) { return tensor.name.ends_with(name); });
      if (!is_dropped) without.push_back(tensor);
      if (is_dropped) tensor.bytes.assign(tensor.bytes.size(), '\0');
      zeroed.push_back(tensor);
    }
    const std::string config =
        SmallConfig(StrCat("\"normalization\": \"layer_norm\", \"", c.field, "\": false,"));
    for (const char* backend : {"cpu", "reference"}) {
      EXPECT_EQ(RunModel(without, config, backend), RunModel(zeroed, SmallConfig(), backend))
          << c.field;
    }
    EXPECT_NE(RunModel(without, config), with_all) << c.field;
  }
}

// A model with one K/V head equals the model whose K/V heads all have that head's weights.
TEST(GptTest, GroupedQueryHeadsShareOneKvHead) {
  constexpr size_t kHiddenSize = 96, kHeadDim = 32;
  std::vector<testing::RawTensor> shared = SmallTensors(), repeated = SmallTensors();
  for (size_t t = 0; t < shared.size(); ++t) {
    const bool is_weight = shared[t].name.ends_with("c_attn.weight");
    if (!is_weight && !shared[t].name.ends_with("c_attn.bias")) continue;
    const size_t row_bytes = (is_weight ? kHiddenSize : 1) * sizeof(float);
    const std::string from = shared[t].bytes;
    const std::string q = from.substr(0, kHiddenSize * row_bytes);
    const std::string k = from.substr(kHiddenSize * row_bytes, kHeadDim * row_bytes);
    const std::string v = from.substr(2 * kHiddenSize * row_bytes, kHeadDim * row_bytes);
    shared[t].bytes = q + k + v;
    shared[t].shape[0] = int64_t(kHiddenSize + 2 * kHeadDim);
    repeated[t].bytes = q + k + k + k + v + v + v;
  }
  const ScratchDirectory directory;
  const std::string path = directory.Write("model.safetensors", testing::MakeSafetensors(shared));
  ModelConfig config = *ParseConfig(SmallConfig(), "config.json");
  config.num_kv_heads = 1;
  std::vector<int32_t> tokens;
  for (int i = 0; i < 60; ++i) tokens.push_back(i * 37 % config.vocab_size);
  for (const char* name : {"cpu", "reference"}) {
    const std::unique_ptr<Backend> backend = NewBackend(name);
    const TensorFile file = *TensorFile::Open(path);
    absl::StatusOr<GptWeights> weights = LoadGptWeights(file, config, backend.get(), std::nullopt);
    ASSERT_TRUE(weights.ok()) << weights.status();
    const std::unique_ptr<Gpt> gpt = *Gpt::Create(config, *std::move(weights), backend.get(), 60);
    ModelRunner runner(gpt.get(), backend.get(), DType::kF32, 16, 60);
    runner.Add(tokens);
    runner.Step({60});
    EXPECT_EQ(runner.Logits(0), RunModel(repeated, SmallConfig(), name)) << name;
  }
}

TEST(GptTest, UntiedHeadIsUsed) {
  std::vector<testing::RawTensor> tensors = SmallTensors();
  testing::RawTensor head;
  for (const testing::RawTensor& tensor : tensors) {
    if (tensor.name == "transformer.wte.weight") head = tensor;
  }
  head.name = "lm_head.weight";
  std::string config = SmallConfig();
  const std::string tied = "\"tie_word_embeddings\": true";
  config.replace(config.find(tied), tied.size(), "\"tie_word_embeddings\": false");

  tensors.push_back(head);
  const std::vector<float> want = RunModel(SmallTensors(), SmallConfig());
  EXPECT_EQ(RunModel(tensors, config), want);
  EXPECT_EQ(RunModel(tensors, SmallConfig()), want) << "tied, and the same bytes twice";

  std::memset(tensors.back().bytes.data(), 0, 96 * sizeof(float));  // id 0
  const std::vector<float> logits = RunModel(tensors, config);
  EXPECT_EQ(logits[0], 0.0f);
  EXPECT_EQ(logits[1], want[1]);
}

// The attention factor is in cosines and sines. Where all of a head rotates, normalised q and k do
// not depend on it.
TEST(GptTest, RopeScalingsMatchTheReference) {
  const auto run = [](const std::string& scaling, const std::string& more, const char* backend) {
    std::string config = SmallConfig(more);
    const std::string none = "\"rope_scaling\": null";
    config.replace(config.find(none), none.size(), "\"rope_scaling\": " + scaling);
    return RunModel(SmallTensors(), config, backend);
  };
  const std::string yarn =
      R"({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32)";
  for (const std::string& scaling :
       {yarn + "}", yarn + R"(, "attention_factor": 2.0})",
        StrCat(R"({"type": "longrope", "original_max_position_embeddings": 32, "factor": 4.0,)",
               R"( "short_factor": [)", StrJoin(std::vector<double>(16, 1.5)), R"(],)",
               R"( "long_factor": [)", StrJoin(std::vector<double>(16, 2.5)), "]}")}) {
    for (const char* const more : {"", "\"partial_rotary_factor\": 0.5,"}) {
      if (*more != 0 && scaling.find("longrope") != std::string::npos) continue;
      const std::vector<float> want = run(scaling, more, "reference");
      EXPECT_LE(RelativeError(run(scaling, more, "cpu"), want), 1e-4) << scaling << more;
    }
  }
  const std::vector<float> one = run(yarn + R"(, "attention_factor": 1.0})", "", "cpu");
  EXPECT_LE(RelativeError(run(yarn + R"(, "attention_factor": 2.0})", "", "cpu"), one), 1e-4);
}

// Half-split pairs (i, i + d/2) equal interleaved pairs (2i, 2i + 1) of reordered q and k rows.
TEST(GptTest, RopeLayoutsAreOneModelReordered) {
  std::vector<testing::RawTensor> tensors = SmallTensors();
  constexpr size_t kHeadDim = 32, kNumHeads = 3, kHiddenSize = 96;
  for (testing::RawTensor& tensor : tensors) {
    const bool is_weight = tensor.name.find("c_attn.weight") != std::string::npos;
    if (!is_weight && tensor.name.find("c_attn.bias") == std::string::npos) continue;
    const size_t row_bytes = (is_weight ? kHiddenSize : 1) * sizeof(float);
    const std::string from = tensor.bytes;
    for (size_t head = 0; head < 2 * kNumHeads; ++head) {  // of q, then of k
      for (size_t i = 0; i < kHeadDim; ++i) {
        const size_t to = head * kHeadDim + (i < kHeadDim / 2 ? 2 * i : 2 * i - kHeadDim + 1);
        std::memcpy(&tensor.bytes[to * row_bytes], &from[(head * kHeadDim + i) * row_bytes],
                    row_bytes);
      }
    }
  }
  const std::vector<float> want = RunModel(SmallTensors(), SmallConfig());
  const std::vector<float> got =
      RunModel(tensors, SmallConfig("\"rope_layout\": \"interleaved\","));
  EXPECT_LE(RelativeError(got, want), 5e-4);
  EXPECT_GT(RelativeError(RunModel(tensors, SmallConfig()), want), 1e-2)
      << "the layout changes the result";
}

TEST(GptTest, AttentionStatsAreCountedPerSequence) {
  const TestModel model = Load(testing::kSmallModel, "cpu");
  const ModelConfig& config = model.checkpoint.config;
  absl::StatusOr<PagePool> pool =
      MakePagePool(LayoutOf(config, DType::kF16, 16), 48, model.backend.get());
  ASSERT_TRUE(pool.ok());
  const std::vector<int32_t> first(pool->pages.begin(), pool->pages.begin() + 2);
  const std::vector<int32_t> second(pool->pages.begin() + 2, pool->pages.end());
  ForwardBatch batch;
  for (int i = 0; i < 27; ++i) batch.token_ids.push_back(i);
  batch.sequences = {{.first_row = 0, .num_rows = 20, .first_position = 0, .pages = first},
                     {.first_row = 20, .num_rows = 7, .first_position = 0, .pages = second}};
  batch.rope_bases = {1e4, 1e4};
  AttentionStats stats[2];
  ASSERT_TRUE(model.Get()->Forward(batch, pool->view, stats).ok());
  ASSERT_TRUE(model.Get()->Synchronize().ok());
  const int64_t per_key = config.num_hidden_layers * config.num_attention_heads;
  EXPECT_EQ(stats[0].num_value_rows, per_key * 20 * 21 / 2);
  EXPECT_EQ(stats[1].num_value_rows, per_key * 7 * 8 / 2);
  EXPECT_GT(stats[1].num_value_rows_read, 0);
  EXPECT_LE(stats[1].num_value_rows_read, stats[1].num_value_rows);
}

// Sets a flag when it gets weights: in the middle of a Forward.
class Interrupter : public WeightsSink {
 public:
  void OnWeights(int /*layer*/, int /*head*/, int /*position*/,
                 const AttentionRow& /*row*/) override {
    interrupt = true;
  }
  std::atomic<bool> interrupt = false;
};

TEST(GptTest, AnInterruptedForwardIsRepeatedWithTheSameBits) {
  constexpr int kNumTokens = 30, kNumBefore = 10;
  for (const char* backend_name : {"cpu", "reference"}) {
    SCOPED_TRACE(backend_name);
    const TestModel model = Load(testing::kSmallModel, backend_name);
    const ModelConfig& config = model.checkpoint.config;
    std::vector<int32_t> tokens(kNumTokens);
    std::iota(tokens.begin(), tokens.end(), 1);
    absl::StatusOr<PagePool> pool =
        MakePagePool(LayoutOf(config, DType::kF16, 16), kNumTokens, model.backend.get());
    ASSERT_TRUE(pool.ok());
    const auto batch_of = [&](int first, int last) {
      ForwardBatch batch;
      batch.token_ids.assign(tokens.begin() + first, tokens.begin() + last);
      batch.sequences = {{.num_rows = last - first, .first_position = first, .pages = pool->pages}};
      batch.rope_bases = {1e4};
      batch.attention = {nullptr};
      batch.logits_indices = {last - first - 1};
      batch.logits_sequences = {0};
      return batch;
    };
    const auto logits_of = [&](const ForwardBatch& batch) {
      std::vector<float> logits(size_t(config.vocab_size));
      EXPECT_TRUE(model.Get()->Forward(batch, pool->view, nullptr).ok());
      EXPECT_TRUE(model.Get()->CopyLogits(batch, 0, 1, logits).ok());
      return logits;
    };
    const std::vector<float> want = logits_of(batch_of(0, kNumTokens));

    logits_of(batch_of(0, kNumBefore));
    Interrupter sink;
    const int32_t first_of_both[] = {0};
    ForwardBatch interrupted = batch_of(kNumBefore, kNumTokens);
    interrupted.captures = {
        {.heads = {.layers = first_of_both, .heads = first_of_both, .sink = &sink}}};
    interrupted.interrupt = &sink.interrupt;
    std::atomic<int64_t> num_layers_begun = 0;
    interrupted.num_layers_begun = &num_layers_begun;
    EXPECT_TRUE(absl::IsCancelled(model.Get()->Forward(interrupted, pool->view, nullptr)));
    EXPECT_EQ(num_layers_begun, 1) << "the second was left out";
    EXPECT_TRUE(model.Get()->Synchronize().ok());
    // Other chunks than the one that was interrupted.
    logits_of(batch_of(kNumBefore, kNumBefore + 7));
    ExpectSameBits(logits_of(batch_of(kNumBefore + 7, kNumTokens)), want, config.vocab_size);
  }
}

// Over all tokens, layers and heads, as many weights are non-zero as V rows were read. Capturing
// changes no bit of the logits.
TEST(GptTest, CapturedWeightsAreTheOnesUsed) {
  struct Sink : WeightsSink {
    void OnWeights(int, int, int position, const AttentionRow& row) override {
      const std::vector<double>& weights = row.weights;
      EXPECT_EQ(std::ssize(weights), position + 1);
      num_nonzero += std::ssize(weights) - std::ranges::count(weights, 0.0);
      sum += std::accumulate(weights.begin(), weights.end(), 0.0);
      ++num_rows;
    }
    int64_t num_nonzero = 0;
    double sum = 0;
    int num_rows = 0;
  };
  for (const char* backend : {"reference", "cpu"}) {
    const TestModel model = Load(testing::kSmallModel, backend);
    constexpr int kNumRows = 60;
    const ModelConfig& config = model.checkpoint.config;
    absl::StatusOr<PagePool> pool =
        MakePagePool(LayoutOf(config, DType::kF32, 16), kNumRows, model.backend.get());
    ASSERT_TRUE(pool.ok());
    ForwardBatch batch;
    batch.sequences = {{.num_rows = kNumRows, .pages = pool->pages}};
    batch.rope_bases = {1e4};
    Sink sink;
    const std::vector<int32_t> all = {0, 1, 2};  // the model has three layers of three heads
    for (int32_t i = 0; i < kNumRows; ++i) {
      batch.token_ids.push_back(i * 37 % config.vocab_size);
      batch.logits_indices.push_back(i);
      batch.logits_sequences.push_back(0);
      batch.captures.push_back({.row = i, .heads = {.layers = all, .heads = all, .sink = &sink}});
    }
    const size_t num_logits = size_t{kNumRows} * size_t(config.vocab_size);
    std::vector<float> captured_logits(num_logits), plain(num_logits);
    AttentionStats stats;
    ASSERT_TRUE(model.Get()->Forward(batch, pool->view, &stats).ok());
    ASSERT_TRUE(model.Get()->CopyLogits(batch, 0, kNumRows, captured_logits).ok());
    EXPECT_EQ(sink.num_rows, kNumRows * 9);
    EXPECT_NEAR(sink.sum, sink.num_rows, 1e-9);
    // A weight at the border of kNegligibleWeight may fall on either side.
    EXPECT_NEAR(double(sink.num_nonzero), double(stats.num_value_rows_read),
                model.backend->Name() == "reference" ? 0 : 3);
    batch.captures.clear();
    ASSERT_TRUE(model.Get()->Forward(batch, pool->view, nullptr).ok());
    ASSERT_TRUE(model.Get()->CopyLogits(batch, 0, kNumRows, plain).ok());
    ExpectSameBits(captured_logits, plain, config.vocab_size);
  }
}

// More tokens than the model computes logits of at a time.
TEST(GptTest, SampleCoversEveryTokenOfTheLastForward) {
  const TestModel model = Load(testing::kSmallModel, "cpu");
  constexpr int kNumRows = 150;
  absl::StatusOr<PagePool> pool = MakePagePool(LayoutOf(model.checkpoint.config, DType::kF32, 16),
                                               kNumRows, model.backend.get());
  ASSERT_TRUE(pool.ok());
  const auto vocab = size_t(model.checkpoint.config.vocab_size);
  const SamplingParams greedy{.temperature = 0};
  ForwardBatch batch;
  batch.sequences = {{.num_rows = kNumRows, .pages = pool->pages}};
  batch.rope_bases = {1e4};
  std::vector<SampleRequest> rows;
  for (int32_t i = 0; i < kNumRows; ++i) {
    batch.token_ids.push_back(i * 7 % int32_t(vocab));
    batch.logits_indices.push_back(i);
    batch.logits_sequences.push_back(0);
    rows.push_back(
        {.target = i % 2 == 0 ? i : -1, .params = &greedy, .counts = {}, .num_logprobs = 2});
  }
  std::vector<SampleResult> sampled(kNumRows);
  ASSERT_TRUE(model.Get()->Forward(batch, pool->view, nullptr).ok());
  model.Get()->Sample(batch, rows, sampled);
  ASSERT_TRUE(model.Get()->Synchronize().ok());
  std::vector<float> logits(kNumRows * vocab);
  ASSERT_TRUE(model.Get()->CopyLogits(batch, 0, kNumRows, logits).ok());
  for (size_t i = 0; i < kNumRows; ++i) {
    const std::span<const float> row = std::span(logits).subspan(i * vocab, vocab);
    const auto best = int32_t(std::max_element(row.begin(), row.end()) - row.begin());
    double sum = 0;
    for (const float x : row) sum += std::exp(double(x));
    EXPECT_TRUE(sampled[i].finite);
    EXPECT_EQ(sampled[i].id, i % 2 == 0 ? int32_t(i) : best);
    EXPECT_NEAR(sampled[i].logprob, double(row[size_t(sampled[i].id)]) - std::log(sum), 1e-5);
    ASSERT_EQ(sampled[i].top.size(), 2u);
    EXPECT_EQ(sampled[i].top[0].id, best);
  }
}

}  // namespace
}  // namespace lssar
