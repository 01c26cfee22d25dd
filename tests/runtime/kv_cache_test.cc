#include "runtime/kv_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "models/gpt.h"
#include "tests/support/fake_checkpoint.h"
#include "tests/support/scratch_directory.h"

namespace lssar {
namespace {

using ::testing::HasSubstr;

TEST(KvCache, DefaultsToFourSequencesOfMaxModelLen) {
  MemoryBackend backend;
  const EngineOptions options{.max_model_len = 1000, .page_size = 64};
  const auto cache = KvCache::Create(SmallConfig(), options, &backend);
  ASSERT_TRUE(cache.ok()) << cache.status();
  const KvLayout& layout = (*cache)->Layout();
  EXPECT_EQ(layout.num_pages, 4 * 16);
  EXPECT_EQ(layout.head_dim, 8);
  EXPECT_EQ(layout.dtype, DType::kF16);
  EXPECT_NE((*cache)->View().k, (*cache)->View().v);
}

TEST(KvCache, UsesTheBytesItIsGiven) {
  MemoryBackend backend;
  // A page: 2 pools x 2 layers x 3 heads x 16 tokens x 8 dims x 4 bytes.
  constexpr int64_t kPageBytes = 2 * 2 * 3 * 16 * 8 * 4;
  EngineOptions options{.max_model_len = 100, .page_size = 16, .kv_cache_dtype = DType::kF32};
  options.kv_cache_bytes = 10 * kPageBytes + kPageBytes / 2;
  const auto cache = KvCache::Create(SmallConfig(), options, &backend);
  ASSERT_TRUE(cache.ok()) << cache.status();
  EXPECT_EQ((*cache)->Layout().num_pages, 10);

  options.kv_cache_bytes = 6 * kPageBytes;
  const auto small = KvCache::Create(SmallConfig(), options, &backend);
  EXPECT_EQ(small.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(small.status().message()),
              testing::AllOf(HasSubstr("holds 6 pages of 16 tokens"),
                             HasSubstr("max_model_len = 100 tokens needs 7 pages")));
}

TEST(KvCache, CountsTheScalesOfInt8) {
  MemoryBackend backend;
  // A page: 2 pools x 2 layers x 3 heads x 16 tokens x (8 dims + a scale of 4 bytes).
  constexpr int64_t kPageBytes = 2 * 2 * 3 * 16 * (8 + 4);
  EngineOptions options{.max_model_len = 100, .page_size = 16, .kv_cache_dtype = DType::kI8};
  options.kv_cache_bytes = 10 * kPageBytes + kPageBytes - 1;
  const auto cache = KvCache::Create(SmallConfig(), options, &backend);
  ASSERT_TRUE(cache.ok()) << cache.status();
  const KvLayout& layout = (*cache)->Layout();
  EXPECT_EQ(layout.num_pages, 10);
  EXPECT_EQ(layout.PoolBytes(), size_t{10 * kPageBytes / 2});
  // The last scale of the last block is the pool's last float.
  EXPECT_EQ(layout.BlockIndex(1, 9, 2) + layout.ScaleIndex(15) + sizeof(float), layout.PoolBytes());
}

TEST(KvCache, CountsTheTwoPlanesAndTheScalesOfFx16) {
  MemoryBackend backend;
  // A page: 2 layers x 3 heads x 16 tokens x (8 high bytes and a scale; 8 low bytes and 8 of V).
  constexpr int64_t kHeads = 2 * 3, kKeyBytes = kHeads * 16 * (8 + 4);
  constexpr int64_t kValueBytes = kHeads * 16 * (8 + 2 * 8);
  EngineOptions options{.max_model_len = 100, .page_size = 16, .kv_cache_dtype = DType::kFx16};
  options.kv_cache_bytes = 11 * (kKeyBytes + kValueBytes) - 1;
  const auto cache = KvCache::Create(SmallConfig(), options, &backend);
  ASSERT_TRUE(cache.ok()) << cache.status();
  const KvLayout& layout = (*cache)->Layout();
  EXPECT_EQ(layout.num_pages, 10);
  EXPECT_EQ(layout.PoolBytes(), size_t{10 * kKeyBytes});
  EXPECT_EQ(layout.ValuePoolBytes(), size_t{10 * kValueBytes} + kFixedReadAhead);
  // The last scale of the last block is the pool's last float.
  EXPECT_EQ(layout.BlockIndex(1, 9, 2) * 2 + layout.ScaleIndex(15) + sizeof(float),
            layout.PoolBytes());
  EXPECT_EQ(layout.HighIndex(15, 7) + 1, layout.ScaleIndex(0));
  // A token's low plane, its value, the next token; the last value is the end of the block.
  EXPECT_EQ(layout.LowIndex(15, 7) + 1, layout.ValueIndex(15, 0) * 2);
  EXPECT_EQ(layout.ValueIndex(14, 7) * 2 + 2, layout.LowIndex(15, 0));
  EXPECT_EQ(layout.ValueIndex(15, 7) + 1, layout.ValueBlockStride());
  EXPECT_EQ((layout.ValueBlockIndex(1, 9, 2) + layout.ValueBlockStride()) * 2 + kFixedReadAhead,
            layout.ValuePoolBytes());
}

TEST(KvCache, RefusesFx16ForOtherKindsByName) {
  MemoryBackend backend;
  ModelConfig config = SmallConfig();
  config.attention = {{}, {.kind = AttentionKind::kSoftmax}};
  const auto cache = KvCache::Create(
      config, {.max_model_len = 100, .page_size = 16, .kv_cache_dtype = DType::kFx16}, &backend);
  EXPECT_EQ(cache.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(cache.status().message()), HasSubstr("kind softmax"));
  EXPECT_THAT(std::string(cache.status().message()), HasSubstr("fx16"));
}

// A device with its own memory.
class DeviceBackend : public MemoryBackend {
 public:
  explicit DeviceBackend(absl::StatusOr<std::optional<int64_t>> free_bytes)
      : free_bytes_(std::move(free_bytes)) {}
  absl::StatusOr<std::optional<int64_t>> FreeBytes() override { return free_bytes_; }

 private:
  const absl::StatusOr<std::optional<int64_t>> free_bytes_;
};

// A page of SmallConfig: 2 pools x 2 layers x 3 heads x 64 tokens x 8 dims x 2 bytes.
constexpr int64_t kDevicePageBytes = 2 * 2 * 3 * 64 * 8 * 2;

TEST(KvCache, UsesTheFreeMemoryOfADeviceLessAReserve) {
  const EngineOptions options{.max_model_len = 640, .max_num_seqs = 3, .page_size = 64};
  DeviceBackend ample(int64_t{1} << 30);
  EXPECT_EQ((*KvCache::Create(SmallConfig(), options, &ample))->Layout().num_pages, 3 * 10);
  DeviceBackend tight(20 * kDevicePageBytes);  // a sixteenth of it is the reserve
  EXPECT_EQ((*KvCache::Create(SmallConfig(), options, &tight))->Layout().num_pages, 18);
}

TEST(KvCache, RefusesADeviceTooSmallForOneSequence) {
  EngineOptions options{.max_model_len = 640, .page_size = 64};
  DeviceBackend small(8 * kDevicePageBytes);
  const absl::Status status = KvCache::Create(SmallConfig(), options, &small).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      std::string(status.message()),
      testing::AllOf(HasSubstr("the device's free memory of 98304 bytes less a reserve of 6144"),
                     HasSubstr("holds 7 pages of 64 tokens"), HasSubstr("needs 10 pages")));
  options.kv_cache_bytes = 10 * kDevicePageBytes;
  EXPECT_THAT(std::string(KvCache::Create(SmallConfig(), options, &small).status().message()),
              HasSubstr("kv_cache_bytes = 122880 is more than the device has free: 98304 bytes"));
  DeviceBackend lost(absl::InternalError("CUDA error 700"));
  EXPECT_THAT(std::string(KvCache::Create(SmallConfig(), options, &lost).status().message()),
              HasSubstr("CUDA error 700"));
}

// Before weights are loaded: what they will take is not free for pages.
TEST(KvCache, WhatTheModelTakesCountsBeforeItIsLoaded) {
  EngineOptions options{.max_model_len = 640, .page_size = 64};
  DeviceBackend device(16 * kDevicePageBytes);
  const auto fits = [&](int64_t model_bytes) {
    return KvCache::CheckFits(SmallConfig(), options, model_bytes, &device);
  };
  EXPECT_EQ(fits(0), absl::OkStatus());
  EXPECT_EQ(fits(4 * kDevicePageBytes), absl::OkStatus());
  const absl::Status status = fits(8 * kDevicePageBytes);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr("the device's free memory of 196608 bytes less 98304 of "
                                       "weights and activations and a reserve of 6144"),
                             HasSubstr("holds 7 pages of 64 tokens"), HasSubstr("needs 10 pages")));
  // Loading them says so, with their type.
  EXPECT_EQ(fits(17 * kDevicePageBytes), absl::OkStatus());
  options.kv_cache_bytes = 10 * kDevicePageBytes;
  EXPECT_EQ(fits(6 * kDevicePageBytes), absl::OkStatus());
  EXPECT_THAT(std::string(fits(7 * kDevicePageBytes).message()),
              HasSubstr("kv_cache_bytes = 122880 is more than the device has free: 196608 bytes "
                        "less 86016 of weights and activations"));
}

// Counts what is allocated.
class CountingBackend : public MemoryBackend {
 public:
  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t num_bytes) override {
    num_allocated += int64_t(num_bytes);
    return MemoryBackend::Allocate(num_bytes);
  }

  int64_t num_allocated = 0;
};

TEST(Activations, TheirBytesAreThoseThatCreateAllocates) {
  for (const auto position :
       {ModelConfig::NormPosition::kPre, ModelConfig::NormPosition::kSandwich}) {
    ModelConfig config = SmallConfig();
    config.vocab_size = 100;
    config.intermediate_size = 96;
    config.norm_position = position;
    config.attention.resize(2);
    config.is_nope_layer.assign(2, position == ModelConfig::NormPosition::kPre);
    CountingBackend backend;
    const auto gpt = Gpt::Create(config, GptWeights{}, &backend, 70);
    ASSERT_TRUE(gpt.ok()) << gpt.status();
    EXPECT_EQ(Gpt::ActivationBytes(config, 70), backend.num_allocated);
  }
}

TEST(Activations, TheErrorNamesWhatIsLarge) {
  ModelConfig config = SmallConfig();
  config.hidden_size = 2;
  config.num_attention_heads = 1024;
  config.head_dim = 512;
  config.num_kv_heads = 1;
  config.intermediate_size = 1 << 18;
  config.vocab_size = 1 << 20;
  const int64_t num_bytes = Gpt::ActivationBytes(config, 512);
  EXPECT_GT(num_bytes, int64_t{3} << 30);
  EXPECT_EQ(Gpt::CheckActivationsFit(config, 512, num_bytes), absl::OkStatus());
  const absl::Status status = Gpt::CheckActivationsFit(config, 512, num_bytes - 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr("max_num_batched_tokens = 512 tokens take"),
                             HasSubstr("by n_head x head_dim of config.json, but"),
                             HasSubstr("bytes are free")));
}

// A directory tree like those of /proc and /sys.
class AvailableMemory : public testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) const { root_.Write(path, text); }
  std::optional<int64_t> Read() const { return AvailableMemoryBytes(root_.Path()); }

  const ScratchDirectory root_;
};

TEST_F(AvailableMemory, IsUnknownWithoutFiles) { EXPECT_EQ(Read(), std::nullopt); }

TEST_F(AvailableMemory, ReadsTheMachine) {
  Write("/proc/meminfo", "MemTotal:  9000 kB\nMemFree: 1 kB\nMemAvailable:    5000 kB\n");
  EXPECT_EQ(Read(), 5000 * 1024);
}

TEST_F(AvailableMemory, AParentGroupMayBeTheTightest) {
  Write("/proc/meminfo", "MemAvailable:    5000 kB\n");
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  Write("/sys/fs/cgroup/a/b/memory.current", "10\n");
  Write("/sys/fs/cgroup/a/memory.max", "3000\n");
  Write("/sys/fs/cgroup/a/memory.current", "1000\n");
  EXPECT_EQ(Read(), 2000);
  Write("/sys/fs/cgroup/memory.max", "1500");
  Write("/sys/fs/cgroup/memory.current", "1600");
  EXPECT_EQ(Read(), 0);
}

TEST_F(AvailableMemory, ReadsVersionOneGroups) {
  Write("/proc/meminfo", "MemAvailable:    5000 kB\n");
  Write("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/x\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "4096\n");
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "96\n");
  EXPECT_EQ(Read(), 4000);
  Write("/sys/fs/cgroup/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 60\n");
  EXPECT_EQ(Read(), 4060);
}

// A checkpoint that was read leaves its pages in the group.
TEST_F(AvailableMemory, PagesOfFilesThatTheKernelTakesBackAreFree) {
  Write("/proc/meminfo", "MemAvailable:    5000 kB\n");
  Write("/proc/self/cgroup", "0::/a\n");
  Write("/sys/fs/cgroup/a/memory.max", "3000\n");
  Write("/sys/fs/cgroup/a/memory.current", "2500\n");
  Write("/sys/fs/cgroup/a/memory.stat",
        "anon 400\nfile 2100\nactive_file 300\ninactive_file 1800\n");
  EXPECT_EQ(Read(), 2300);
  Write("/sys/fs/cgroup/a/memory.stat", "inactive_file 2600\n");  // of another moment
  EXPECT_EQ(Read(), 3000);
}

}  // namespace
}  // namespace lssar
