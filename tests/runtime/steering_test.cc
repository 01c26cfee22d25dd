// Steering: what it changes, from which token on, and that no page is shared with another function.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/runtime/stepped_engine.h"

namespace lssar {
namespace {

Request Steer(Request request, const std::string& name, int first_position = 0) {
  request.steering = std::make_shared<const Steering>(
      Steering{.vectors = {{.layer = 1, .first_position = first_position, .values = {1, 2, 3, 4}}},
               .description = name,
               .name = "/" + name});
  return request;
}

TEST(SteeringTest, ChangesTheTokensFromItsPositionOn) {
  const Request plain = Score({5}, {Ids(60, 1)});
  const auto tokens_of = [](const Request& request) {
    return RunAlone(request, SmallOptions())->Scores().at(0).tokens;
  };
  const auto own = tokens_of(plain), steered = tokens_of(Steer(plain, "a", 30));
  for (size_t i = 0; i < own.size(); ++i) {
    // The token at position i predicts that of index i.
    EXPECT_EQ(own[i] == steered[i], i < 30) << i;
  }
}

TEST(SteeringTest, PagesAreSharedOnlyWithEqualSteering) {
  SteppedEngine engine;
  const Request plain = Generate(Ids(100, 2), 20);
  const auto run = [&](const Request& request) {
    const Submitted submitted = engine.Submit(request);
    engine.RunAll();
    ExpectEqualBits(*submitted.sink, *RunAlone(request, SmallOptions()), request);
    return submitted.sink->Stats().num_cached_tokens;
  };
  EXPECT_EQ(run(plain), 0);
  EXPECT_EQ(run(Steer(plain, "a")), 0);
  EXPECT_EQ(run(Steer(plain, "b", 50)), 0);
  EXPECT_EQ(run(Steer(plain, "a")), 96);
  EXPECT_EQ(run(plain), 96);
}

TEST(SteeringTest, TheSameBitsBesideOthersAndThroughPreemption) {
  EngineOptions options = SmallOptions();
  options.kv_cache_bytes = 20 * kPageBytes;  // far fewer than the requests need together
  SteppedEngine engine(options);
  std::vector<Request> requests;
  std::vector<Submitted> submitted;
  for (int32_t i = 0; i < 12; ++i) {
    Request request = Generate(Ids(10 + i, 30 + i / 4), 120, uint64_t(i));
    if (i % 3 > 0) request = Steer(std::move(request), i % 3 == 1 ? "a" : "b", i % 3 * 20);
    requests.push_back(request);
    submitted.push_back(engine.Submit(request));
  }
  engine.RunAll();
  EXPECT_GT(engine.Stats().num_preemptions, 0);
  ExpectBitsOfEachAlone(submitted, requests);
}

}  // namespace
}  // namespace lssar
