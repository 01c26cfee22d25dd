#include "models/rope.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/str_cat.h"
#include "models/config.h"

namespace lssar {
namespace {

constexpr int kNumPairs = 8;

struct RopeCase {
  std::string name, scaling;
  int length;  // of the sequence
  double attention_factor;
  std::vector<double> frequencies;
};

std::string LongRope(const std::string& more = "") {
  return StrCat(R"({"rope_type": "longrope", "original_max_position_embeddings": 4096,
                    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
                    "long_factor": [2, 3, 4, 5, 6, 7, 8, 9])",
                more.empty() ? "" : ", ", more, "}");
}

// transformers' own, in fp32: make_rope_golden.py.
std::vector<RopeCase> Cases() {
  return {
      {"linear",
       R"({"rope_type": "linear", "factor": 4})",
       4096,
       1,
       {0.25, 0.079056941, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466,
        0.000250000012, 7.90569466e-05}},
      {"llama3",
       R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
                     "high_freq_factor": 4, "original_max_position_embeddings": 8192})",
       4096,
       1,
       {1, 0.316227764, 0.100000001, 0.0316227786, 0.00999999978, 0.00316227786, 0.000213607578,
        3.95284733e-05}},
      {"yarn",
       R"({"type": "yarn", "factor": 4, "original_max_position_embeddings": 4096})",
       4096,
       1.138629436111989,
       {1, 0.316227764, 0.100000001, 0.025693506, 0.00624999963, 0.00138349656, 0.000250000012,
        7.90569466e-05}},
      {"yarn with factors",
       R"({"type": "yarn", "factor": 8, "original_max_position_embeddings": 4096, "beta_fast": 16,
           "beta_slow": 2, "mscale": 0.7, "mscale_all_dim": 1.3})",
       4096,
       0.9017839869787123,
       {1, 0.316227764, 0.100000001, 0.0316227786, 0.00708333263, 0.00131761574, 0.000125000006,
        3.95284733e-05}},
      {"yarn, not truncated",
       R"({"type": "yarn", "factor": 3, "original_max_position_embeddings": 2048,
           "attention_factor": 1.25, "truncate": false})",
       4096,
       1.25,
       {1, 0.316227764, 0.100000001, 0.0247315932, 0.00560619682, 0.00107251131, 0.00033333333,
        0.000105409257}},
      {"longrope, short",
       LongRope(),
       4096,
       1.0801234497346435,
       {1, 0.287479758, 0.0833333358, 0.0243252143, 0.00714285718, 0.00210818532, 0.000624999986,
        0.000186016332}},
      {"longrope, long",
       LongRope(),
       4097,
       1.0801234497346435,
       {0.5, 0.10540925, 0.0250000004, 0.00632455572, 0.00166666671, 0.000451753964, 0.000125000006,
        3.51364179e-05}},
      {"longrope with a factor",
       LongRope(R"("factor": 32)"),
       4097,
       1.1902380714238083,
       {0.5, 0.10540925, 0.0250000004, 0.00632455572, 0.00166666671, 0.000451753964, 0.000125000006,
        3.51364179e-05}},
      {"longrope with an attention factor",
       LongRope(R"("attention_factor": 1.5)"),
       4097,
       1.5,
       {0.5, 0.10540925, 0.0250000004, 0.00632455572, 0.00166666671, 0.000451753964, 0.000125000006,
        3.51364179e-05}},
  };
}

TEST(RopeTest, ScaledFrequenciesAreThoseOfTransformers) {
  for (const RopeCase& each : Cases()) {
    SCOPED_TRACE(each.name);
    const absl::StatusOr<ModelConfig> config =
        ParseConfig(StrCat(R"({"vocab_size": 64, "n_layer": 1, "n_head": 4, "n_embd": 64,
                   "n_positions": 16384, "activation_function": "silu", "rope_theta": 10000,
                   "attention": {"kind": "softmax"}, "rope_scaling": )",
                           each.scaling, "}"),
                    "config.json");
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_NEAR(config->rope_scaling.attention_factor, each.attention_factor, 1e-12);
    std::vector<double> frequencies(kNumPairs);
    FillRopeFrequencies(*config, RopeBase(*config, each.length), frequencies);
    for (int i = 0; i < kNumPairs; ++i) {
      const double expected = each.frequencies[size_t(i)];
      EXPECT_NEAR(frequencies[size_t(i)] / expected, 1, 2e-7) << i;
    }
  }
}

}  // namespace
}  // namespace lssar
