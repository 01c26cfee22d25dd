// The bounds of the wire format and of the server's options. Bounds of requests and of the engine's
// options are in runtime/limits.h.
#ifndef LSSAR_SERVER_CONFIG_LIMITS_H_
#define LSSAR_SERVER_CONFIG_LIMITS_H_

#include <cstddef>

#include "runtime/limits.h"

namespace lssar::limits {

inline constexpr int kMaxMessageBytes = 32 << 20;
// Strings, lists and sub-messages in one request. Each takes some 50 bytes of memory, and two bytes
// on the wire. A Score request of the largest size has 2.1 million.
inline constexpr int kMaxMessageObjects = 5 << 20;
// Values of a JSON body, and keys of its objects. They take 16 and some 150 bytes of memory.
inline constexpr int kMaxJsonValues = 5 << 20;
inline constexpr int kMaxJsonKeys = 1 << 18;
// Memory of the requests of all calls of the engine that wait or run. The largest Score takes half
// of it.
inline constexpr int64_t kMaxRequestBytes = int64_t{256} << 20;
// Memory of the replies that are kept whole until the client has read them: HTTP's that are not
// streamed, Tokenize's, Detokenize's. Those up to --stream-buffer are not counted.
inline constexpr int64_t kMaxReplyBytes = int64_t{256} << 20;
inline constexpr size_t kMaxErrorBytes = 2048;  // of one error's message
// Limits of /v1/batches. A file is at most the body of a request.
inline constexpr int kMaxBatchRows = 50'000;
inline constexpr int kMaxBatchRowBytes = 4 << 20;  // of one line
inline constexpr int kMaxCustomIdBytes = 512;
inline constexpr int kMaxBatchFiles = 10'000;  // of one API key
inline constexpr int kMaxBatches = 1'000;      // of one API key
inline constexpr Range<int64_t> kBatchBytes = {int64_t{1} << 20, int64_t{1} << 50};
inline constexpr Range<int> kMaxCalls = {1, 1 << 16};
// Limits of one API key, or of one address where there are no keys.
inline constexpr Range<int> kMaxClientSequences = {0, 1 << 16};
inline constexpr Range<int> kMaxClientQueued = {0, 1 << 16};
inline constexpr Range<int> kMaxClientPriority = {-kMaxPriority, kMaxPriority};
inline constexpr Range<int> kMaxConnections = {1, 1 << 16};
inline constexpr Range<int> kMaxConnectionsPerAddress = {0, 1 << 16};
inline constexpr int kMaxMetadataBytes = 16 << 10;  // of one call: gRPC headers, keys, traces

// Large replies are streamed in blocks: per-token results in one message at most.
inline constexpr int kMaxTokensPerMessage = 512;
// Attention weights in one message at most, except that a row is never split. A weight takes at
// most 8 bytes.
inline constexpr size_t kMaxKeysPerMessage = 8192;
// Floats of embedding vectors in one reply message; a single longer vector is not split.
inline constexpr size_t kMaxFloatsPerMessage = 32768;

}  // namespace lssar::limits

#endif  // LSSAR_SERVER_CONFIG_LIMITS_H_
