#include "server/ops/trace_context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace lssar {
namespace {

using ::testing::MatchesRegex;

constexpr char kTraceId[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kParentId[] = "00f067aa0ba902b7";

TEST(TraceContextTest, AWellFormedTraceparentIsContinued) {
  for (const char* given : {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what.else"}) {
    const TraceContext trace = StartSpan(given);
    EXPECT_EQ(trace.trace_id, kTraceId) << given;
    EXPECT_EQ(trace.parent_id, kParentId) << given;
    EXPECT_EQ(trace.flags, "01") << given;
    EXPECT_THAT(trace.span_id, MatchesRegex("[0-9a-f]{16}"));
    EXPECT_NE(trace.span_id, kParentId);
    EXPECT_EQ(trace.Traceparent(), std::string("00-") + kTraceId + "-" + trace.span_id + "-01");
  }
}

TEST(TraceContextTest, AnIllFormedTraceparentStartsANewTrace) {
  const std::vector<std::string> ill_formed = {
      "",
      "00",
      "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",
      "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
      "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01more",
      "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
      "0x-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
      "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
      "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
      "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
      "00_4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7_01",
      "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-zz"};
  std::set<std::string> ids;
  for (const std::string& given : ill_formed) {
    const TraceContext trace = StartSpan(given);
    EXPECT_THAT(trace.trace_id, MatchesRegex("[0-9a-f]{32}")) << given;
    EXPECT_THAT(trace.span_id, MatchesRegex("[0-9a-f]{16}")) << given;
    EXPECT_EQ(trace.parent_id, "") << given;
    EXPECT_NE(trace.trace_id, kTraceId) << given;
    ids.insert({trace.trace_id, trace.span_id});
  }
  EXPECT_EQ(ids.size(), 2 * ill_formed.size());
}

TEST(TraceContextTest, TheCallersFlagSaysWhetherATraceIsSampled) {
  for (const auto& [flags, is_sampled] : std::map<std::string, bool>{
           {"00", false}, {"01", true}, {"02", false}, {"03", true}, {"0a", false}, {"fb", true}}) {
    const std::string given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-" + flags;
    for (const double ratio : {0.0, 1.0}) {
      EXPECT_EQ(StartSpan(given, ratio).IsSampled(), is_sampled) << given;
      EXPECT_EQ(StartSpan(given, ratio).flags, flags) << given;
    }
  }
}

TEST(TraceContextTest, ARatioOfTheNewTracesIsSampledByTheirIds) {
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(StartSpan("").flags, "00");
    EXPECT_EQ(StartSpan("", 1).flags, "01");
    const TraceContext trace = StartSpan("", 0.25);
    const uint64_t low56 = std::stoull(trace.trace_id.substr(18), nullptr, 16);
    EXPECT_EQ(trace.IsSampled(), low56 >= uint64_t{3} << 54) << trace.trace_id;
  }
}

}  // namespace
}  // namespace lssar
