// llama.cpp's programs are scripts here: their arguments are what is tested, and their JSON.
#include "tests/bench/peer_llama.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/scratch_directory.h"

namespace lssar::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The rate is 40 with flash attention and 60 without it.
constexpr char kScript[] = R"(#!/bin/sh
echo "$*" >> "$0.log"
for last; do :; done
rate=40
[ "$last" = off ] && rate=60
case $0 in
  *batched*) echo "{\"speed_tg\": $rate, \"flash_attn\": 1, \"pp\": 512}" ;;
  *lookup*) echo "decoded   32 tokens in 1.0 seconds, speed:  $rate.0 t/s"
            echo "n_drafted    = 8"; echo "n_accept     = 6" ;;
  *) echo "[{\"build_commit\": \"3f545becc\", \"cpu_info\": \"a CPU\", \"type_k\": \"f16\","
     echo "\"flash_attn\": 1, \"test_time\": \"now\", \"samples_ts\": [1, $rate, 99]}]" ;;
esac
)";

class PeerLlamaTest : public ::testing::Test {
 protected:
  PeerLlamaTest() {
    for (const char* name : {"llama-bench", "llama-batched-bench", "llama-lookup"}) {
      std::ofstream(folder_ + "/" + name) << kScript;
      std::filesystem::permissions(folder_ + "/" + name, std::filesystem::perms::owner_all);
    }
  }

  PeerLlama Peer(const std::string& flash_attention, DType kv) const {
    return PeerLlama({.llama_bench = folder_ + "/llama-bench",
                      .num_threads = 2,
                      .flash_attention = flash_attention,
                      .cache_type = std::string(PeerCacheType(kv))});
  }

  std::vector<std::string> CallsOf(const std::string& name) const {
    std::vector<std::string> calls;
    std::ifstream in(folder_ + "/" + name + ".log");
    for (std::string line; std::getline(in, line);) calls.push_back(line);
    return calls;
  }

  const ScratchDirectory directory_;
  const std::string folder_ = directory_.Path();
};

TEST_F(PeerLlamaTest, AnInt8CacheIsBesideAnInt8CacheWhichNeedsFlashAttention) {
  const auto result = Peer("best", DType::kI8).Decode("a.gguf", 7, 32);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->tokens_per_second, 40);
  EXPECT_THAT(CallsOf("llama-bench"), ElementsAre(EndsWith(" -ctk q8_0 -ctv q8_0 -fa on")));
}

TEST_F(PeerLlamaTest, TheBestOfA16BitCacheIsTheFasterOfBoth) {
  for (const DType kv : {DType::kF16, DType::kFx16}) {
    const auto result = Peer("best", kv).Decode("a.gguf", 7, 32);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->tokens_per_second, 60);
  }
  const auto on = EndsWith(" -ctk f16 -ctv f16 -fa on");
  const auto off = EndsWith(" -ctk f16 -ctv f16 -fa off");
  EXPECT_THAT(CallsOf("llama-bench"), ElementsAre(on, off, on, off));
}

TEST_F(PeerLlamaTest, OneKindOfFlashAttentionRunsOnce) {
  ASSERT_TRUE(Peer("auto", DType::kF32).Prefill("a.gguf", 0, 512).ok());
  EXPECT_THAT(
      CallsOf("llama-bench"),
      ElementsAre("-m a.gguf -p 512 -n 0 -d 0 -t 2 -r 1 -o json -ctk f32 -ctv f32 -fa auto"));
}

TEST_F(PeerLlamaTest, KeepsWhatTheProgramSaysOfItself) {
  const auto result = Peer("on", DType::kF16).Decode("a.gguf", 0, 32);
  ASSERT_TRUE(result.ok()) << result.status();
  const nlohmann::json expected = {
      {"build_commit", "3f545becc"}, {"cpu_info", "a CPU"}, {"type_k", "f16"}, {"flash_attn", 1}};
  EXPECT_EQ(result->program, expected);
}

TEST_F(PeerLlamaTest, TheOtherProgramsHaveTheSameCache) {
  const PeerLlama peer = Peer("best", DType::kI8);
  const auto together = peer.BatchedDecode("a.gguf", 16, 512, 32);
  ASSERT_TRUE(together.ok()) << together.status();
  EXPECT_EQ(together->tokens_per_second, 40);
  EXPECT_EQ(together->program, nlohmann::json({{"flash_attn", 1}}));
  EXPECT_THAT(CallsOf("llama-batched-bench"), ElementsAre(EndsWith("-ctk q8_0 -ctv q8_0 -fa on")));
  ASSERT_TRUE(peer.Lookup("a.gguf", "prompt.txt", 10, 20, 8).ok());
  EXPECT_THAT(CallsOf("llama-lookup"), ElementsAre(EndsWith("-ctk q8_0 -ctv q8_0 -fa on")));
}

TEST_F(PeerLlamaTest, ALookupIsTheFasterOfBoth) {
  const auto text = Peer("best", DType::kF16).Lookup("a.gguf", "prompt.txt", 10, 20, 8);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->tokens_per_second, 60);
  EXPECT_EQ(text->num_draft_tokens, 8);
  EXPECT_EQ(text->num_accepted_tokens, 6);
  EXPECT_THAT(text->output, HasSubstr("speed:  60.0"));
  EXPECT_THAT(CallsOf("llama-lookup"), ElementsAre(EndsWith("-fa on"), EndsWith("-fa off")));
}

// This process has far more memory than the program that it starts. The program lives until its
// text, which is more than a pipe holds, is read.
TEST_F(PeerLlamaTest, PeakMemoryIsTheProgramsOwn) {
  std::ofstream(folder_ + "/llama-bench") << R"(#!/bin/sh
head -c 1000000 /dev/zero | tr '\0' ' '
echo '[{"samples_ts": [1]}]'
)";
  const std::vector<char> large(size_t{256} << 20, 1);
  const auto result = Peer("on", DType::kF16).Decode("a.gguf", 0, 32);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(large.back(), 1);
  EXPECT_GT(result->peak_bytes, 100 << 10);
  EXPECT_LT(result->peak_bytes, 64 << 20);
}

TEST_F(PeerLlamaTest, AFailureNamesTheCommand) {
  std::ofstream(folder_ + "/llama-bench") << "#!/bin/sh\nexit 3\n";
  const auto result = Peer("best", DType::kF16).Decode("a.gguf", 0, 32);
  EXPECT_THAT(std::string(result.status().message()),
              StartsWith(folder_ + "/llama-bench -m a.gguf"));
}

}  // namespace
}  // namespace lssar::bench
