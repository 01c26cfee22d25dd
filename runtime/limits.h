// The bounds of every field of a request and of every option of the engine. Bounds of the wire
// format are in server/config/limits.h.
#ifndef LSSAR_RUNTIME_LIMITS_H_
#define LSSAR_RUNTIME_LIMITS_H_

#include <chrono>
#include <cstdint>

namespace lssar::limits {

// Requests. proto/lssar/v1/inference.proto documents the same bounds for clients.
inline constexpr int kMaxChoices = 16;  // unless the server has another bound
inline constexpr int kMaxLogprobs = 20;
inline constexpr int kMaxStopStrings = 16;
inline constexpr int kMaxStopStringBytes = 256;
inline constexpr int kMaxStopIds = 64;
inline constexpr int kMaxLogitBiases = 1024;
inline constexpr int kMaxBadWords = 1024;
inline constexpr int kMaxBadWordBytes = 256;
inline constexpr int kMaxConstraintChoices = 1024;
inline constexpr int kMaxScoreItems = 1024;
inline constexpr int kMaxEmbedInputs = 1024;
// Floats of one token's hidden states over the layers of a request: one message of 4 MB.
inline constexpr int64_t kMaxHiddenFloats = 1'000'000;
// Floats that one step computes for results as large as hidden states of many layers: of one
// sequence, and of all.
inline constexpr int64_t kMaxSequenceFloats = int64_t{1} << 21;
inline constexpr int64_t kMaxStepFloats = int64_t{1} << 23;
inline constexpr int kMaxContinuations = 1024;
inline constexpr int kMaxSteeringVectors = 256;
inline constexpr float kMaxSteering = 1e6f;  // of |scale x vector|
inline constexpr int kMaxLogprobIds = 1024;  // of a Score request's logprob_token_ids
// Text of contexts that one Score request may have tokenized again: for each continuation the end
// of its context, as far back as the last place where the tokenizer can separate the two.
inline constexpr int64_t kMaxScoreRepeatBytes = int64_t{16} << 20;
// Tokens of one Score request's contexts and continuations. With dynamic NTK a context counts once
// for each rope base among its continuations.
inline constexpr int64_t kMaxScoreTokens = int64_t{1} << 25;
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

// Keys whose attention weights a capture request reads: summed over all rows, heads and layers, and
// for one row, which cannot be split over steps. A key costs 0.2 us of the engine's thread.
inline constexpr int64_t kMaxCaptureKeys = int64_t{1} << 26;
inline constexpr int64_t kMaxCaptureRowKeys = int64_t{1} << 22;

// Ranges of the engine's options, both ends included. The engine checks them; the server's flags
// document and check the same ones.
template <typename T>
struct Range {
  T min, max;
};
inline constexpr Range<int> kMaxModelLen = {2, 1 << 20};
inline constexpr Range<int> kMaxNumSeqs = {1, 1024};
inline constexpr Range<int> kMaxN = kMaxNumSeqs;  // a server's bound of choices
inline constexpr Range<int> kMaxQueuedRequests = {1, 1 << 16};
inline constexpr Range<int64_t> kMaxQueuedTokens = {0, int64_t{1} << 40};
inline constexpr Range<int> kMaxNumBatchedTokens = {1, 1 << 14};
inline constexpr Range<int> kMaxNumPartialPrefills = kMaxNumSeqs;
inline constexpr Range<int> kChunkedPrefillSize = kMaxNumBatchedTokens;
inline constexpr Range<int> kNumSpeculativeTokens = {1, 64};
inline constexpr Range<int> kMaxSpeculativeTokens = {0, kNumSpeculativeTokens.max};  // a request's
inline constexpr Range<int> kPromptLookupLength = {1, 64};
inline constexpr Range<int> kAttentionSampleInterval = {0, 1 << 20};
inline constexpr Range<int64_t> kKvCacheBytes = {0, int64_t{1} << 50};

// One level of priority is worth this much waiting: a request that has waited 5 s ranks equal to a
// request of the next higher priority that arrives now. The highest priority passes the lowest by
// at most 100 s, so no request waits for ever.
inline constexpr std::chrono::seconds kWaitPerPriority{5};

// The engine stops when this many steps in a row have failed in the backend.
inline constexpr int kMaxFailedSteps = 3;

}  // namespace lssar::limits

#endif  // LSSAR_RUNTIME_LIMITS_H_
