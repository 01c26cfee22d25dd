// The bytes on the wire: what both ports reply to a list of requests, compared with a recorded
// file. A refactoring must not change it.
//
// After an intended change: LSSAR_RECORD_WIRE=1 server_calls_test --gtest_filter='Wire*', from the
// root of the source tree, then review the difference.
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <limits>
#include <map>
#include <memory>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "base/str_cat.h"
#include "server/http/blocking_client.h"
#include "tests/server/raw_call.h"
#include "tests/server/test_server.h"

namespace lssar {
namespace {

using google::protobuf::Message;
using google::protobuf::TextFormat;

constexpr char kCases[] = "tests/server/wire_cases.txt";
constexpr char kGolden[] = "tests/server/wire_golden.txt";

std::string Replace(const std::string& text, const char* pattern, const std::string& with) {
  return std::regex_replace(text, std::regex(pattern), with);
}

// Floating-point numbers to three digits: the last bits of exp and log are the machine's.
std::string Rounded(const std::string& text) {
  static const std::regex number(R"(-?\d+\.\d+(e-?\d+)?|-?\d+e-\d+)");
  std::string rounded;
  auto last = text.cbegin();
  for (std::sregex_iterator it(text.begin(), text.end(), number), end; it != end; ++it) {
    std::ostringstream digits;
    digits << std::setprecision(3) << std::stod(it->str());
    rounded.append(last, (*it)[0].first).append(digits.str());
    last = (*it)[0].second;
  }
  return rounded.append(last, text.cend());
}

// Without what differs from run to run: times, the trace and ports.
std::string WithoutTimes(std::string text) {
  text = Replace(text, R"("created":\d+)", R"("created":0)");
  text = Replace(text, R"((queue|prefill|decode)_us: \d+ ?)", "");
  text = Replace(text, R"(timings \{ ?\})", "timings { }");
  text = Replace(text, R"("timings":\{[^}]*\})", R"("timings":{})");
  text = Replace(text, R"("created_at":\d+)", R"("created_at":0)");
  text = Replace(text, R"("version":"[^"]*")", R"("version":"V")");
  text = Replace(text, R"(version: "[^"]*")", R"(version: "V")");
  return Rounded(text);
}

std::string Printed(const Message& message) {
  TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  std::string text;
  printer.PrintToString(message, &text);
  return text;
}

// Deltas of a choice may be merged on their way, and those of items may change places: the replies
// by index, with one delta for each choice.
std::vector<std::string> Ordered(std::vector<v1::GenerateReply> replies) {
  std::map<int, v1::GenerateReply> deltas;
  std::vector<std::string> lines;
  for (v1::GenerateReply& reply : replies) {
    if (reply.has_delta()) {
      v1::Delta& delta = *deltas[reply.delta().choice()].mutable_delta();
      const std::string before = delta.text();
      delta.MergeFrom(reply.delta());
      delta.set_text(before + reply.delta().text());
      continue;
    }
    if (reply.has_finished()) {
      for (const auto& [choice, delta] : deltas) lines.push_back(Printed(delta));
    }
    lines.push_back(Printed(reply));
  }
  return lines;
}

template <typename Reply>
std::vector<std::string> Ordered(const std::vector<Reply>& replies) {
  std::vector<std::string> lines;
  for (const Reply& reply : replies) lines.push_back(Printed(reply));
  return lines;
}

int IndexOf(const v1::ScoreReply& reply) {
  if (reply.has_finished()) return std::numeric_limits<int>::max();
  if (reply.has_error()) return reply.error().item();
  return reply.has_score() ? reply.score().item() : reply.tokens().item();
}
int IndexOf(const v1::EmbedReply& reply) {
  return reply.has_finished() ? std::numeric_limits<int>::max() : reply.vectors().input();
}
template <typename Reply>
int IndexOf(const Reply& /*reply*/) {
  return 0;
}

class WireTest : public testing::Test {
 protected:
  template <typename Request, typename Reply>
  std::string Rpc(const std::string& rpc, const std::string& text) {
    Request request;
    EXPECT_TRUE(TextFormat::ParseFromString(text, &request)) << text;
    return RpcBytes<Reply>(rpc, request.SerializeAsString());
  }

  template <typename Reply>
  std::string RpcBytes(const std::string& rpc, const std::string& bytes) {
    RawCall call(channel_, "/lssar.v1.Inference/" + rpc, bytes);
    std::vector<Reply> replies;
    while (const auto reply = call.Read()) {
      EXPECT_TRUE(replies.emplace_back().ParseFromString(*reply));
      EXPECT_EQ(replies.back().SerializeAsString(), *reply) << "not protobuf's own order";
    }
    std::ranges::stable_sort(replies, {}, [](const Reply& reply) { return IndexOf(reply); });
    std::string out;
    for (const std::string& line : Ordered(std::move(replies))) out += line + "\n";
    out = Replace(out, R"(request_id: "[^"]*")", R"(request_id: "R")");
    const grpc::Status status = call.Finish();
    return StrCat(out, "status ", int(status.error_code()), " ", status.error_message(), "\n");
  }

  std::string Http(const std::string& method, const std::string& path, const std::string& body) {
    const HttpTarget target{.host = "127.0.0.1", .port = server_.GetServer().HttpPort()};
    std::vector<HttpHeader> headers = {{"X-Request-Id", "R"}};
    const auto reply = SendRequest(target, method, path, headers, body);
    if (!reply.ok()) return StrCat(reply.status().message(), "\n");
    std::string out = StrCat(reply->status, " ", reply->content_type, "\n");
    for (const HttpHeader& header : reply->headers) {
      const bool is_size = header.value == StrCat(reply->body.size());
      const bool varies = header.name == "date" || header.name == "traceparent" || is_size;
      out += StrCat(header.name, ": ", varies ? "*" : header.value, "\n");
    }
    out += Replace(reply->body, R"(\n\n)", "\n");
    return out.ends_with('\n') ? out : out + "\n";
  }

  // `line`: "Score ITEM", "POST /v1/score BODY", ...
  std::string Run(const std::string& line) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    std::string rest;
    std::getline(words >> std::ws, rest);
    if (verb == "Generate") return Rpc<v1::GenerateRequest, v1::GenerateReply>(verb, rest);
    if (verb == "Score") return Rpc<v1::ScoreRequest, v1::ScoreReply>(verb, rest);
    if (verb == "Embed") return Rpc<v1::EmbedRequest, v1::EmbedReply>(verb, rest);
    if (verb == "CaptureAttention") {
      return Rpc<v1::CaptureAttentionRequest, v1::CaptureAttentionReply>(verb, rest);
    }
    if (verb == "Tokenize") return Rpc<v1::TokenizeRequest, v1::TokenizeReply>(verb, rest);
    if (verb == "Detokenize") return Rpc<v1::DetokenizeRequest, v1::DetokenizeReply>(verb, rest);
    if (verb == "GetInfo") return Rpc<v1::GetInfoRequest, v1::GetInfoReply>(verb, rest);
    if (verb == "Bytes") return RpcBytes<v1::GenerateReply>("Generate", rest);
    std::istringstream parts(rest);
    std::string path, body;
    parts >> path;
    std::getline(parts >> std::ws, body);
    return Http(verb, path, body);
  }

  TestServer server_{{.max_model_len = 256},
                     [](ServerOptions& options) { options.model.allow_attention_override = true; }};
  std::shared_ptr<grpc::Channel> channel_ = server_.NewChannel();
};

TEST_F(WireTest, RepliesHaveTheRecordedBytes) {
  std::ifstream cases(kCases);
  std::string printed;
  for (std::string line; std::getline(cases, line);) {
    if (line.empty() || line.starts_with('#')) continue;
    printed += StrCat("## ", line, "\n", Run(line));
  }
  if (const char* exact = std::getenv("LSSAR_RECORD_WIRE_EXACTLY")) std::ofstream(exact) << printed;
  printed = WithoutTimes(printed);
  if (std::getenv("LSSAR_RECORD_WIRE") != nullptr) std::ofstream(kGolden) << printed;
  std::ifstream golden(kGolden);
  std::istringstream replies(printed);
  std::string current, expected, actual;
  bool differs = false;
  while (!differs && std::getline(golden, expected)) {
    if (expected.starts_with("## ")) current = expected;
    ASSERT_TRUE(std::getline(replies, actual)) << "missing: " << expected;
    differs = expected != actual;
    EXPECT_EQ(actual, expected) << current;
  }
  EXPECT_TRUE(differs || !std::getline(replies, actual)) << "not recorded: " << actual;
}

}  // namespace
}  // namespace lssar
