// Hidden states and the regression head against PyTorch (models/training/hidden_golden.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/page_pool.h"
#include "tests/models/fixture.h"

namespace lssar::testing {
namespace {

constexpr char kGolden[] = "tests/models/hidden_golden.safetensors";

std::vector<float> GoldenFloats(const std::string& path, const std::string& name) {
  for (const RawTensor& tensor : ReadTensors(path)) {
    if (tensor.name != name) continue;
    std::vector<float> values(tensor.bytes.size() / sizeof(float));
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    return values;
  }
  ADD_FAILURE() << path << " has no tensor " << name;
  return {};
}

std::vector<float> Floats(const std::string& name) { return GoldenFloats(kGolden, name); }

// [row][position]
std::vector<std::vector<int32_t>> Tokens() {
  for (const RawTensor& tensor : ReadTensors(kGolden)) {
    if (tensor.name != "tokens") continue;
    const auto length = size_t(tensor.shape[1]);
    std::vector<std::vector<int32_t>> rows(size_t(tensor.shape[0]));
    for (size_t row = 0; row < rows.size(); ++row) {
      rows[row].resize(length);
      std::memcpy(rows[row].data(), tensor.bytes.data() + row * length * sizeof(int32_t),
                  length * sizeof(int32_t));
    }
    return rows;
  }
  return {};
}

// Hidden states of all tokens, [row, position, hidden_size].
std::vector<float> HiddenStates(TestModel& model) {
  std::vector<float> all;
  for (const std::vector<int32_t>& tokens : Tokens()) {
    const int num_tokens = int(tokens.size());
    const PagePool pool = *MakePagePool(LayoutOf(model.Get()->Config(), DType::kF32, 16),
                                        num_tokens, model.backend.get());
    ForwardBatch batch;
    batch.token_ids = tokens;
    batch.sequences.push_back({.num_rows = num_tokens, .pages = pool.pages});
    batch.rope_bases.push_back(RopeBase(model.Get()->Config(), num_tokens));
    for (int i = 0; i < num_tokens; ++i) batch.hidden_indices.push_back(i);
    EXPECT_EQ(model.Get()->Forward(batch, pool.view, nullptr), absl::OkStatus());
    std::vector<float> hidden(size_t(num_tokens) * size_t(model.Get()->Config().hidden_size));
    EXPECT_EQ(model.Get()->CopyHiddenStates(batch, hidden), absl::OkStatus());
    all.insert(all.end(), hidden.begin(), hidden.end());
  }
  return all;
}

// |actual - expected| <= tolerance * max |expected|; NaN fails.
void ExpectNear(const std::vector<float>& actual, const std::vector<float>& expected,
                double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  double largest = 0, worst = 0;
  for (const float value : expected) largest = std::max(largest, std::fabs(double{value}));
  for (size_t i = 0; i < actual.size(); ++i) {
    const double error = std::fabs(double{actual[i]} - double{expected[i]});
    ASSERT_TRUE(error <= tolerance * largest)
        << "element " << i << ": " << actual[i] << " for " << expected[i];
    worst = std::max(worst, error / largest);
  }
  ::testing::Test::RecordProperty("worst_error", std::to_string(worst));
}

class HiddenStatesTest : public ::testing::TestWithParam<std::string> {};

TEST_P(HiddenStatesTest, AreThoseOfPyTorch) {
  TestModel model = LoadModel(kShippedModel, NewBackend(GetParam()), {.dtype = DType::kF32});
  EXPECT_EQ(model.Get()->NumHeadOutputs(), 0);
  ExpectNear(HiddenStates(model), Floats("hidden"), 1e-4);
}

TEST_P(HiddenStatesTest, TheRegressionHeadGivesPyTorchsOutputs) {
  const ScratchDirectory directory;
  directory.CopyFrom(kShippedModel);
  std::vector<RawTensor> tensors = ReadTensors(std::string(kShippedModel) + "/model.safetensors");
  for (RawTensor& tensor : ReadTensors(kGolden)) {
    if (tensor.name.starts_with("head.")) tensors.push_back(std::move(tensor));
  }
  directory.Write("model.safetensors", MakeSafetensors(tensors));
  TestModel model = LoadModel(directory.Path(), NewBackend(GetParam()), {.dtype = DType::kF32});
  ASSERT_EQ(model.Get()->NumHeadOutputs(), 3);
  const std::vector<float> hidden = HiddenStates(model);
  const auto hidden_size = size_t(model.Get()->Config().hidden_size);
  std::vector<float> outputs;
  for (size_t i = 0; i < hidden.size(); i += hidden_size) {
    std::vector<float> output(3);
    model.Get()->ApplyHead(std::span(hidden).subspan(i, hidden_size), output);
    outputs.insert(outputs.end(), output.begin(), output.end());
  }
  ExpectNear(outputs, Floats("outputs"), 1e-4);
}

constexpr char kHiddenGolden[] = "tests/models/hidden_states.safetensors";

std::vector<int32_t> GoldenIds(const std::string& path, const std::string& name) {
  const std::vector<float> bits = GoldenFloats(path, name);
  std::vector<int32_t> ids(bits.size());
  std::memcpy(ids.data(), bits.data(), bits.size() * sizeof(float));
  return ids;
}

// The hidden states of every layer, [layers, positions, hidden_size], of Hugging Face's models.
// Computed `chunk` tokens at a time, each chunk as one capture.
std::vector<float> AllLayers(TestModel& model, const std::vector<int32_t>& tokens,
                             const std::vector<int32_t>& positions, int chunk) {
  const ModelConfig& config = model.Get()->Config();
  const int num_tokens = int(tokens.size());
  const auto hidden_size = size_t(config.hidden_size);
  const PagePool pool =
      *MakePagePool(LayoutOf(config, DType::kF32, 16), num_tokens, model.backend.get());
  std::vector<int32_t> layers;
  for (int layer = 0; layer <= config.num_hidden_layers; ++layer) layers.push_back(layer);
  std::vector<float> all((layers.size() + 1) * positions.size() * hidden_size);
  for (int first = 0; first < num_tokens; first += chunk) {
    const int num_rows = std::min(chunk, num_tokens - first);
    std::vector<float> streams(layers.size() * size_t(num_rows) * hidden_size);
    ForwardBatch batch;
    batch.token_ids.assign(tokens.begin() + first, tokens.begin() + first + num_rows);
    batch.sequences.push_back({.num_rows = num_rows, .first_position = first, .pages = pool.pages});
    batch.rope_bases.push_back(RopeBase(config, num_tokens));
    batch.hidden_captures.push_back(
        {.first_row = 0, .num_rows = num_rows, .layers = layers, .out = streams.data()});
    for (int i = 0; i < num_rows; ++i) batch.hidden_indices.push_back(i);
    EXPECT_EQ(model.Get()->Forward(batch, pool.view, nullptr), absl::OkStatus());
    std::vector<float> final_states(size_t(num_rows) * hidden_size);
    EXPECT_EQ(model.Get()->CopyHiddenStates(batch, final_states), absl::OkStatus());
    for (size_t i = 0; i < positions.size(); ++i) {
      const int row = positions[i] - first;
      if (row < 0 || row >= num_rows) continue;
      for (size_t layer = 0; layer <= layers.size(); ++layer) {
        const float* from = layer == layers.size()
                                ? &final_states[size_t(row) * hidden_size]
                                : &streams[(layer * size_t(num_rows) + size_t(row)) * hidden_size];
        std::copy_n(from, hidden_size, &all[(layer * positions.size() + i) * hidden_size]);
      }
    }
  }
  return all;
}

TEST_P(HiddenStatesTest, OfEveryLayerAreThoseOfTransformers) {
  for (const std::string name : {"llama", "gpt2", "bloom"}) {
    SCOPED_TRACE(name);
    const std::string directory = "tests/models/hf/" + name;
    const std::string golden = directory + "/golden.safetensors";
    TestModel model = LoadModel(directory, NewBackend(GetParam()), {.dtype = DType::kF32});
    const std::vector<int32_t> tokens = GoldenIds(golden, "tokens_0");
    const std::vector<int32_t> positions = GoldenIds(golden, "rows_0");
    const std::vector<float> whole = AllLayers(model, tokens, positions, int(tokens.size()));
    const std::vector<float> expected = GoldenFloats(kHiddenGolden, name + ".hidden");
    ASSERT_EQ(whole.size(), expected.size());
    // Layer by layer: the last ones are much larger.
    const size_t size = positions.size() * size_t(model.Get()->Config().hidden_size);
    for (size_t first = 0; first < whole.size(); first += size) {
      SCOPED_TRACE(first / size);
      const auto layer_of = [&](const std::vector<float>& all) {
        const auto begin = all.begin() + std::ptrdiff_t(first);
        return std::vector<float>(begin, begin + std::ptrdiff_t(size));
      };
      ExpectNear(layer_of(whole), layer_of(expected), 1e-4);
    }
    if (GetParam() == "cpu") {
      EXPECT_EQ(AllLayers(model, tokens, positions, 7), whole) << "the same bits";
    }
  }
}

// STEERED_LAYER, ... of make_hf_golden.py.
TEST_P(HiddenStatesTest, SteeringIsThatOfAPyTorchHook) {
  constexpr int kLayer = 1, kPosition = 40;
  constexpr float kScale = 1.5f;
  for (const std::string name : {"llama", "gpt2", "bloom"}) {
    SCOPED_TRACE(name);
    const std::string directory = "tests/models/hf/" + name;
    const std::string golden = directory + "/golden.safetensors";
    TestModel model = LoadModel(directory, NewBackend(GetParam()), {.dtype = DType::kF32});
    const ModelConfig& config = model.Get()->Config();
    const std::vector<int32_t> tokens = GoldenIds(golden, "tokens_0");
    const std::vector<int32_t> positions = GoldenIds(golden, "rows_0");
    SteeringVector vector = {.layer = kLayer,
                             .first_position = kPosition,
                             .values = GoldenFloats(kHiddenGolden, name + ".vector")};
    for (float& value : vector.values) value *= kScale;
    const auto logits_of = [&](std::span<const SteeringVector> steering, int chunk) {
      const int num_tokens = int(tokens.size());
      const PagePool pool =
          *MakePagePool(LayoutOf(config, DType::kF32, 16), num_tokens, model.backend.get());
      std::vector<float> all;
      for (int first = 0; first < num_tokens; first += chunk) {
        const int num_rows = std::min(chunk, num_tokens - first);
        ForwardBatch batch;
        batch.token_ids.assign(tokens.begin() + first, tokens.begin() + first + num_rows);
        batch.sequences.push_back(
            {.num_rows = num_rows, .first_position = first, .pages = pool.pages});
        batch.rope_bases.push_back(RopeBase(config, num_tokens));
        if (!steering.empty()) batch.steered.push_back({.sequence_idx = 0, .vectors = steering});
        for (const int32_t position : positions) {
          if (position < first || position >= first + num_rows) continue;
          batch.logits_indices.push_back(position - first);
          batch.logits_sequences.push_back(0);
        }
        EXPECT_EQ(model.Get()->Forward(batch, pool.view, nullptr), absl::OkStatus());
        const size_t num_logits = batch.logits_indices.size();
        std::vector<float> logits(num_logits * model.Vocab());
        EXPECT_EQ(model.Get()->CopyLogits(batch, 0, int(num_logits), logits), absl::OkStatus());
        all.insert(all.end(), logits.begin(), logits.end());
      }
      return all;
    };
    const std::vector<float> steered = logits_of(std::span(&vector, 1), int(tokens.size()));
    ExpectNear(steered, GoldenFloats(kHiddenGolden, name + ".steered"), 1e-4);
    ExpectNear(logits_of({}, int(tokens.size())), GoldenFloats(golden, "logits_0"), 1e-4);
    if (GetParam() == "cpu") {
      EXPECT_EQ(logits_of(std::span(&vector, 1), 7), steered) << "the same bits";
    }
  }
}

TEST(RegressionHeadTest, AWrongShapeIsRefused) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{3, 5}, {96}, {0, 96}}) {
    const ScratchDirectory directory;
    directory.CopyFrom(kSmallModel);
    std::vector<RawTensor> tensors = ReadTensors(std::string(kSmallModel) + "/model.safetensors");
    size_t num_elements = 1;
    for (const int64_t extent : shape) num_elements *= size_t(extent);
    tensors.push_back({.name = "head.weight",
                       .dtype = "F32",
                       .shape = shape,
                       .bytes = FloatBytes(std::vector<float>(num_elements))});
    directory.Write("model.safetensors", MakeSafetensors(tensors));
    const std::unique_ptr<Backend> backend = NewBackend("cpu");
    const std::string message =
        MessageOf(LoadCheckpoint(directory.Path(), backend.get(), {}).status());
    EXPECT_NE(message.find("head.weight"), std::string::npos) << message;
    EXPECT_NE(message.find("shape"), std::string::npos) << message;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, HiddenStatesTest, ::testing::Values("cpu", "reference"));

}  // namespace
}  // namespace lssar::testing
