// Every bound that a request or an option meets, in one place.
#ifndef LSSAR_RUNTIME_LIMITS_H_
#define LSSAR_RUNTIME_LIMITS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace lssar::limits {

// Requests (proto/lssar/v1/inference.proto says the same to clients).
inline constexpr int kMaxMessageBytes = 32 << 20;
inline constexpr int kMaxChoices = 16;
inline constexpr int kMaxLogprobs = 20;
inline constexpr int kMaxStopStrings = 16;
inline constexpr int kMaxStopStringBytes = 256;
inline constexpr int kMaxStopIds = 64;
inline constexpr int kMaxLogitBiases = 1024;
inline constexpr int kMaxScoreItems = 1024;
inline constexpr int kMaxContinuations = 1024;
inline constexpr int kMaxStreamInterval = 1024;
inline constexpr int kMaxTokenizeBytes = 8 << 20;
inline constexpr int kMaxDetokenizeIds = 1 << 20;
inline constexpr int kDefaultMaxTokens = 256;
inline constexpr int kMaxPriority = 10;  // and -10
inline constexpr int kMaxCacheSaltBytes = 128;
inline constexpr float kMaxTemperature = 100.0f;
inline constexpr float kMaxRepetitionPenalty = 10.0f;
inline constexpr float kMaxPenalty = 2.0f;
inline constexpr float kMaxLogitBias = 100.0f;

// Keys that a capture looks at: over all rows, heads and layers, and of one row alone, which no
// step can share. A key costs 0.2 us of the engine's thread.
inline constexpr int64_t kMaxCaptureKeys = int64_t{1} << 26;
inline constexpr int64_t kMaxCaptureRowKeys = int64_t{1} << 22;

// Ranges of the engine's options, both ends included. The engine checks them, and the server's flags
// document and check the same ones.
template <typename T>
struct Range {
  T min, max;
};
inline constexpr Range<int> kMaxModelLen = {2, 1 << 20};
inline constexpr Range<int> kMaxNumSeqs = {1, 1024};
inline constexpr Range<int> kMaxQueuedRequests = {1, 1 << 16};
inline constexpr Range<int64_t> kMaxQueuedTokens = {0, int64_t{1} << 40};
inline constexpr Range<int> kMaxNumBatchedTokens = {1, 1 << 14};
inline constexpr Range<int> kMaxNumPartialPrefills = kMaxNumSeqs;
inline constexpr Range<int> kChunkedPrefillSize = kMaxNumBatchedTokens;
inline constexpr Range<int64_t> kKvCacheBytes = {0, int64_t{1} << 50};

// Options of the server.
inline constexpr Range<int> kMaxCalls = {1, 1 << 16};
inline constexpr int kMaxMetadataBytes = 16 << 10;  // of one call: gRPC's headers, keys, traces

// A level of priority is worth this much waiting: a request that has waited 5 s stands beside one
// of the next higher priority that comes now. So the highest passes the lowest by 100 s, never for
// ever.
inline constexpr std::chrono::seconds kWaitPerPriority{5};

// Steps in a row that may fail in the backend before the engine gives it up.
inline constexpr int kMaxFailedSteps = 3;

// Per-token results and pieces of one reply message: large replies are streamed in blocks.
inline constexpr int kMaxTokensPerMessage = 512;
// Attention weights of one, though a row is never cut: 8 bytes each, and less as varints.
inline constexpr size_t kMaxKeysPerMessage = 8192;

}  // namespace lssar::limits

#endif  // LSSAR_RUNTIME_LIMITS_H_
