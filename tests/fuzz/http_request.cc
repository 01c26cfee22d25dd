// HttpParser: a request reads the same in one piece and in many, and keeps its limits. Its headers
// have a timeout and a trace that are well formed, or an error and a new trace.
// Input   what a connection receives; the last byte is the length of the pieces
#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "server/http/call_metadata.h"
#include "server/http/http_parser.h"
#include "server/ops/trace_context.h"
#include "tests/fuzz/fuzz_target.h"

namespace lssar {
namespace {

constexpr int64_t kMaxHeadBytes = 1024;
constexpr int64_t kMaxBodyBytes = 4096;

struct Outcome {
  std::vector<HttpRequest> requests;
  int error_status = 0;
};

// Reads requests one after another, as a connection with keep-alive does.
Outcome Read(std::string_view text, size_t piece_bytes) {
  Outcome outcome;
  auto current = std::make_unique<HttpParser>(kMaxHeadBytes, kMaxBodyBytes);
  std::string input;
  while (true) {
    const HttpParser::Progress progress = current->Parse(&input);
    // A string that grows takes up to twice its size.
    LSSAR_CHECK(current->NumBodyBytes() <= 2 * size_t(kMaxBodyBytes));
    if (progress == HttpParser::Progress::kFailed) {
      outcome.error_status = current->ErrorStatus();
      LSSAR_CHECK(outcome.error_status >= 400 && outcome.error_status < 600);
      LSSAR_CHECK(!current->ErrorMessage().empty());
      return outcome;
    }
    if (progress == HttpParser::Progress::kIsDone) {
      outcome.requests.push_back(current->Take());
      current = std::make_unique<HttpParser>(kMaxHeadBytes, kMaxBodyBytes);
      if (input.empty() && text.empty()) return outcome;
    } else if (progress == HttpParser::Progress::kNeedsMore) {
      if (text.empty()) return outcome;
      input += text.substr(0, piece_bytes);
      text.remove_prefix(std::min(piece_bytes, text.size()));
    }
  }
}

bool AreEqual(const HttpRequest& a, const HttpRequest& b) {
  return a.method == b.method && a.target == b.target && a.is_http_1_0 == b.is_http_1_0 &&
         a.keep_alive == b.keep_alive && a.body == b.body &&
         std::equal(a.headers.begin(), a.headers.end(), b.headers.begin(), b.headers.end(),
                    [](const HttpHeader& x, const HttpHeader& y) {
                      return x.name == y.name && x.value == y.value;
                    });
}

bool IsHex(std::string_view digits) {
  return std::ranges::all_of(digits, [](char c) {
    return absl::ascii_isxdigit(uint8_t(c)) && !absl::ascii_isupper(uint8_t(c));
  });
}

void CheckHeaders(const HttpRequest& request) {
  const auto timeout = ReadTimeout(request);
  LSSAR_CHECK(timeout.ok() || !timeout.status().message().empty());
  if (timeout.ok() && *timeout) {
    LSSAR_CHECK(**timeout >= Clock::duration::zero() && **timeout <= std::chrono::hours(24));
  }
  const TraceContext trace = StartSpan(request.Header("traceparent"));
  LSSAR_CHECK(trace.trace_id.size() == 32 && trace.span_id.size() == 16);
  LSSAR_CHECK(trace.Traceparent().size() == 55 && trace.span_id != trace.parent_id);
  LSSAR_CHECK(IsHex(trace.trace_id) && IsHex(trace.span_id) && IsHex(trace.parent_id));
}

}  // namespace

LSSAR_FUZZ_TARGET(http_request) {
  if (bytes.empty()) return;
  // The end completes any request that the input has begun, and is none itself, so that an error
  // which comes earlier in one piece than in many comes in both.
  const std::string text = std::string(TextOf(bytes.first(bytes.size() - 1))) + "\r\n\r\n" +
                           std::string(kMaxHeadBytes + kMaxBodyBytes, 'x');
  const Outcome whole = Read(text, std::max(text.size(), size_t{1}));
  Outcome pieces = Read(text, size_t(bytes.back()) % 64 + 1);
  if (FaultIsPlanted() && pieces.requests.size() == 2) pieces.requests[1].target += '/';
  LSSAR_CHECK(whole.requests.size() == pieces.requests.size());
  for (size_t i = 0; i < whole.requests.size(); ++i) {
    LSSAR_CHECK(AreEqual(whole.requests[i], pieces.requests[i]));
    LSSAR_CHECK(whole.requests[i].body.size() <= size_t(kMaxBodyBytes));
    CheckHeaders(whole.requests[i]);
  }
  LSSAR_CHECK(whole.error_status != 0 && pieces.error_status != 0);
}

}  // namespace lssar
