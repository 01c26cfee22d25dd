#include "server/http/http_parser.h"

#include <algorithm>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/http/parser.hpp>
#include <functional>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/quote.h"
#include "base/str_cat.h"

namespace lssar {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;

// From any chunk of a body to the end of its message: "0", CRLF, CRLF. Beast 1.81 asserts
// that it never sees fewer when it looks at the last chunk a second time.
constexpr size_t kMinChunkedBytes = 5;

// Beast's string_body reserves what Content-Length announces; this one grows with what comes.
struct GrowingBody {
  using value_type = std::string;
  class reader {
   public:
    template <bool kIsRequest, class Fields>
    reader(http::header<kIsRequest, Fields>& /*head*/, std::string& body) : body_(body) {}
    void init(const boost::optional<uint64_t>& /*length*/, beast::error_code& error) { error = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, beast::error_code& error) {
      error = {};
      size_t num_bytes = 0;
      for (const boost::asio::const_buffer buffer : beast::buffers_range_ref(buffers)) {
        body_.append(static_cast<const char*>(buffer.data()), buffer.size());
        num_bytes += buffer.size();
      }
      return num_bytes;
    }
    void finish(beast::error_code& error) { error = {}; }

   private:
    std::string& body_;
  };
};

std::string ToLower(std::string_view text) {
  std::string lower(text);
  absl::AsciiStrToLower(&lower);
  return lower;
}

std::string_view View(beast::string_view text) { return {text.data(), text.size()}; }

constexpr std::string_view kEndOfHead = "\r\n\r\n";

// True if a line of `lines` ends in LF without CR. Beast would wait for the CR without end.
bool HasBareLf(std::string_view lines) {
  for (size_t at = lines.find('\n'); at != lines.npos; at = lines.find('\n', at + 1)) {
    if (at == 0 || lines[at - 1] != '\r') return true;
  }
  return false;
}

constexpr std::string_view kBareLf = "the request is not HTTP/1.1: a line ends in LF without CR";

}  // namespace

struct HttpParser::State {
  State() { parser.on_chunk_header(on_chunk); }

  // What comes next is not the data of a chunk. Requires  the body is chunked
  bool IsBetweenChunks() const { return parser.get().body().size() == chunk_end; }

  http::request_parser<GrowingBody> parser;
  size_t chunk_end = 0;  // of the body, with the last chunk that has begun
  std::function<void(uint64_t, beast::string_view, beast::error_code&)> on_chunk =
      [this](uint64_t size, beast::string_view, beast::error_code&) {
        chunk_end = parser.get().body().size() + size;
      };
};

HttpParser::HttpParser(int64_t max_head_bytes, int64_t max_body_bytes)
    : max_head_bytes_(max_head_bytes),
      num_head_bytes_left_(size_t(max_head_bytes)),
      max_body_bytes_(max_body_bytes),
      state_(std::make_unique<State>()) {
  // Beast counts a head that comes in pieces otherwise than a whole one: Parse keeps the limit.
  state_->parser.header_limit(std::numeric_limits<uint32_t>::max());
  state_->parser.body_limit(uint64_t(max_body_bytes));
  state_->parser.eager(false);
}

HttpParser::~HttpParser() = default;

bool HttpParser::HasBegun() const { return state_->parser.got_some(); }

bool HttpParser::HasBody() const { return !state_->parser.is_done(); }

size_t HttpParser::NumBodyBytes() const { return state_->parser.get().body().capacity(); }

HttpParser::Progress HttpParser::Fail(int status, std::string message) {
  if (!has_head_) CopyHead();
  error_status_ = status;
  error_message_ = std::move(message);
  return Progress::kFailed;
}

HttpParser::Progress HttpParser::Parse(std::string* input) {
  auto& parser = state_->parser;
  // Empty lines before a request (RFC 9112, section 2.2).
  while (!HasBegun() && input->starts_with("\r\n")) input->erase(0, 2);
  if (!HasBegun() && *input == "\r") return Progress::kNeedsMore;
  size_t num_used = 0;
  beast::error_code error;
  while (!error && num_used < input->size() && !parser.is_done()) {
    // Beast waits for the end of a head, of a chunk's head and of the trailers, however long they
    // are, so it sees no more than each may have.
    const size_t max_seen = has_head_ ? size_t(max_head_bytes_) : num_head_bytes_left_;
    const size_t num_seen = std::min(input->size() - num_used, max_seen);
    const std::string_view seen(input->data() + num_used, num_seen);
    if (!has_head_ && HasBareLf(seen.substr(0, seen.find(kEndOfHead)))) {
      return Fail(400, std::string(kBareLf));
    }
    const bool is_between_chunks = has_head_ && parser.chunked() && state_->IsBetweenChunks();
    // The first line; of the last chunk, which has no data, all lines.
    const std::string_view lines =
        seen.starts_with("0\r\n") ? seen : seen.substr(0, seen.find('\n') + 1);
    if (is_between_chunks && HasBareLf(lines.substr(0, lines.find(kEndOfHead)))) {
      return Fail(400, std::string(kBareLf));
    }
    if (has_head_ && parser.chunked() && num_seen < kMinChunkedBytes) break;
    const size_t num_taken =
        parser.put(boost::asio::const_buffer(input->data() + num_used, num_seen), error);
    num_used += num_taken;
    // The last chunk with its trailers: Beast takes them together.
    if (is_between_chunks && num_taken == 0 && HasBareLf(seen)) {
      return Fail(400, std::string(kBareLf));
    }
    if (error == http::error::need_more && num_taken == 0 && num_seen == max_seen) {
      error = http::error::header_limit;
    }
    if (error == http::error::need_more && num_taken > 0) error = {};
    if (!has_head_) num_head_bytes_left_ -= num_taken;
    if (!has_head_ && parser.is_header_done()) break;
  }
  input->erase(0, num_used);
  if (error == http::error::header_limit) {
    return Fail(431, StrCat("the request's head, or a chunk's, is longer than ", max_head_bytes_,
                            " bytes"));
  }
  if (error == http::error::body_limit) {
    return Fail(413, StrCat("the request's body is longer than ", max_body_bytes_, " bytes"));
  }
  if (error == http::error::bad_version) {
    return Fail(505, "this port speaks HTTP/1.1; gRPC has a port of its own (--listen)");
  }
  if (error && error != http::error::need_more) {
    return Fail(400, StrCat("the request is not HTTP/1.1: ", error.message()));
  }
  if (!has_head_ && parser.is_header_done()) {
    has_head_ = true;
    if (!ReadHead()) return Progress::kFailed;
    parser.eager(true);
    return Progress::kHasHead;
  }
  return parser.is_done() ? Progress::kIsDone : Progress::kNeedsMore;
}

void HttpParser::CopyHead() {
  const auto& message = state_->parser.get();
  request_.method = View(message.method_string());
  request_.target = View(message.target());
  request_.is_http_1_0 = message.version() < 11;
  for (const auto& field : message) {
    request_.headers.push_back(
        {.name = ToLower(View(field.name_string())), .value = std::string(View(field.value()))});
  }
}

bool HttpParser::ReadHead() {
  const auto& message = state_->parser.get();
  CopyHead();
  if (!ReadAbsoluteForm()) return false;
  const std::string transfer = ToLower(request_.Headers("transfer-encoding"));
  const std::string content = ToLower(request_.Headers("content-encoding"));
  const std::string expectation = ToLower(request_.Headers("expect"));
  // HTTP/1.0 has no chunks: who sends them may mean another end of the message (RFC 9112, 6.1).
  request_.keep_alive = message.keep_alive() && !(request_.is_http_1_0 && !transfer.empty());
  if (!transfer.empty() && transfer != "chunked") {
    Fail(501, StrCat("Transfer-Encoding ", Shorten(transfer, kMaxQuotedBytes),
                     " is not supported; send chunked"));
  } else if (!content.empty() && content != "identity") {
    Fail(415, StrCat("Content-Encoding ", Shorten(content, kMaxQuotedBytes),
                     " is not supported; send the body as it is"));
  } else if (!expectation.empty() && expectation != "100-continue") {
    Fail(417, StrCat("Expect ", Shorten(expectation, kMaxQuotedBytes),
                     " is not supported; only 100-continue is"));
  } else if (const auto length = state_->parser.content_length();
             length && *length > uint64_t(max_body_bytes_)) {
    Fail(413, StrCat("the request's body has ", *length, " bytes; it may have ", max_body_bytes_));
  }
  expects_continue_ = !expectation.empty() && !request_.is_http_1_0;
  return error_status_ == 0;
}

bool HttpParser::ReadAbsoluteForm() {
  const size_t scheme_end = request_.target.find("://");
  if (scheme_end == std::string::npos) return true;
  const std::string scheme = ToLower(std::string_view(request_.target).substr(0, scheme_end));
  if (scheme != "http" && scheme != "https") return true;
  std::string host = request_.target.substr(scheme_end + 3), path = "/";
  if (const size_t begin = host.find_first_of("/?"); begin != std::string::npos) {
    path = StrCat(host[begin] == '/' ? "" : "/", host.substr(begin));
    host.resize(begin);
  }
  if (host.empty()) {
    Fail(400, "the request's target has no host");
    return false;
  }
  request_.target = std::move(path);
  for (HttpHeader& header : request_.headers) {
    if (header.name == "host") header.value = host;
  }
  return true;
}

HttpRequest HttpParser::Take() {
  request_.body = std::move(state_->parser.get().body());
  return std::move(request_);
}

}  // namespace lssar
