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

std::vector<float> Floats(const std::string& name) {
  for (const RawTensor& tensor : ReadTensors(kGolden)) {
    if (tensor.name != name) continue;
    std::vector<float> values(tensor.bytes.size() / sizeof(float));
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    return values;
  }
  ADD_FAILURE() << "no tensor " << name;
  return {};
}

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
    for (int i = 0; i < num_tokens; ++i) {
      batch.hidden_indices.push_back(i);
      batch.hidden_sequences.push_back(0);
    }
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
