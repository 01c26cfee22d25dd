#include "server/http/http_parser.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

namespace lssar {
namespace {

constexpr std::string_view kChunkedHead =
    "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";

// What a parser makes of `text` that comes in pieces of `piece_bytes`; nullopt: not a request.
std::optional<HttpRequest> ReadInPieces(std::string_view text, size_t piece_bytes) {
  HttpParser parser(1024, 4096);
  std::string input;
  while (true) {
    switch (parser.Parse(&input)) {
      case HttpParser::Progress::kHasHead: break;
      case HttpParser::Progress::kIsDone: return parser.Take();
      case HttpParser::Progress::kFailed: return std::nullopt;
      case HttpParser::Progress::kNeedsMore:
        if (text.empty()) return std::nullopt;
        input += text.substr(0, piece_bytes);
        text.remove_prefix(std::min(piece_bytes, text.size()));
    }
  }
}

// The status of the error in `text`; 0: there is none, or more bytes are waited for.
int ErrorInPieces(std::string_view text, size_t piece_bytes) {
  HttpParser parser(1024, 4096);
  std::string input;
  while (true) {
    switch (parser.Parse(&input)) {
      case HttpParser::Progress::kHasHead: break;
      case HttpParser::Progress::kIsDone: return 0;
      case HttpParser::Progress::kFailed: return parser.ErrorStatus();
      case HttpParser::Progress::kNeedsMore:
        if (text.empty()) return 0;
        input += text.substr(0, piece_bytes);
        text.remove_prefix(std::min(piece_bytes, text.size()));
    }
  }
}

class ChunkedBodyTest : public testing::TestWithParam<size_t> {};

// Boost.Beast 1.81 asserts that an empty body never comes in pieces of fewer than 5 bytes.
TEST_P(ChunkedBodyTest, IsTheSameInPiecesOfEverySize) {
  struct Case {
    std::string_view chunks, body;
  };
  for (const auto& [chunks, body] :
       {Case{"0\r\n\r\n", ""}, Case{"0\r\nTrailer: a\r\n\r\n", ""},
        Case{"1\r\nx\r\n0\r\n\r\n", "x"},
        Case{"2;a=b\r\nhe\r\n3\r\nllo\r\n0\r\nTrailer: a\r\n\r\n", "hello"}}) {
    const auto request = ReadInPieces(std::string(kChunkedHead).append(chunks), GetParam());
    ASSERT_TRUE(request) << chunks;
    EXPECT_EQ(request->body, body) << chunks;
    EXPECT_EQ(request->target, "/v1/completions");
  }
}

TEST_P(ChunkedBodyTest, IsRefusedWhenItIsDamaged) {
  for (const std::string_view chunks :
       {"0\r\nno trailer\r\n\r\n", "x\r\n\r\n", "1\r\nxy\r\n0\r\n\r\n", "0\r\n\r", "0"}) {
    EXPECT_FALSE(ReadInPieces(std::string(kChunkedHead).append(chunks), GetParam())) << chunks;
  }
}

// At once: nothing of these bodies may be waited for.
TEST_P(ChunkedBodyTest, IsRefusedWithBareLineFeeds) {
  for (const std::string_view chunks :
       {"0\n\n", "2\n{}\n0\n\n", "2\r\n{}\n0\r\n\r\n", "2\r\n{}\r\n0\n\n", "2;a=b\n{}\r\n0\r\n\r\n",
        "0\r\nTrailer: a\n\n", "0\r\n\n"}) {
    EXPECT_EQ(ErrorInPieces(std::string(kChunkedHead).append(chunks), GetParam()), 400) << chunks;
  }
  // A body may have them.
  const auto request =
      ReadInPieces(std::string(kChunkedHead) + "4\r\n\n\na\n\r\n1\r\n\n\r\n0\r\n\r\n", GetParam());
  ASSERT_TRUE(request);
  EXPECT_EQ(request->body, "\n\na\n\n");
}

TEST_P(ChunkedBodyTest, HeadsAreRefusedWithBareLineFeeds) {
  for (const std::string_view head :
       {"GET / HTTP/1.1\nHost: x\n\n", "GET / HTTP/1.1\r\nHost: x\n\r\n", "\n", "\nGET /"}) {
    EXPECT_EQ(ErrorInPieces(head, GetParam()), 400) << head;
  }
}

TEST_P(ChunkedBodyTest, EmptyLinesMayComeBeforeARequest) {
  for (const std::string_view before : {"\r\n", "\r\n\r\n"}) {
    const auto request =
        ReadInPieces(std::string(before) + "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", GetParam());
    ASSERT_TRUE(request);
    EXPECT_EQ(request->target, "/healthz");
  }
  EXPECT_EQ(ErrorInPieces("\rGET / HTTP/1.1\r\nHost: x\r\n\r\n", GetParam()), 400);
}

TEST_P(ChunkedBodyTest, TargetsMayHaveTheAbsoluteForm) {
  struct Case {
    std::string_view given, target, host;
  };
  for (const auto& [given, target, host] :
       {Case{"http://a.example:8080/v1/models?x=1", "/v1/models?x=1", "a.example:8080"},
        Case{"HTTPS://a.example/x", "/x", "a.example"}, Case{"http://a.example", "/", "a.example"},
        Case{"http://a.example?x", "/?x", "a.example"}, Case{"/v1/a://b", "/v1/a://b", "b.example"},
        Case{"/", "/", "b.example"}, Case{"*", "*", "b.example"}}) {
    const auto request = ReadInPieces(
        std::string("GET ").append(given).append(" HTTP/1.1\r\nHost: b.example\r\n\r\n"),
        GetParam());
    ASSERT_TRUE(request) << given;
    EXPECT_EQ(request->target, target);
    EXPECT_EQ(request->Header("host"), host) << given;
  }
  EXPECT_EQ(ErrorInPieces("GET http:///x HTTP/1.1\r\nHost: x\r\n\r\n", GetParam()), 400);
}

TEST_P(ChunkedBodyTest, IsRefusedWithTwoTransferEncodings) {
  for (const std::string_view second : {"chunked", "gzip", "identity"}) {
    const std::string text =
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: " +
        std::string(second) + "\r\n\r\n0\r\n\r\n";
    EXPECT_FALSE(ReadInPieces(text, GetParam())) << second;
  }
}

INSTANTIATE_TEST_SUITE_P(All, ChunkedBodyTest, testing::Range<size_t>(1, 20));

}  // namespace
}  // namespace lssar
