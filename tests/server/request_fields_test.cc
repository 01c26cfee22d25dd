// Walks the table of request fields for each POST path of the HTTP port.
#include "server/http/request_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "base/str_cat.h"
#include "server/http/blocking_client.h"
#include "server/http/openapi.h"
#include "tests/server/test_server.h"

namespace lssar {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using enum RequestField::Verdict;

// A body that is answered, and an object within it.
struct Body {
  BodyKinds kind;
  std::string path;
  std::string json;
  std::string pointer = {};  // RFC 6901; empty: the body itself
  std::string prefix = {};   // of the object's fields in errors
};

constexpr char kChat[] =
    R"({"messages":[{"role":"user","content":[{"type":"text","text":"Hi"}]}],"max_tokens":2,"seed":1})";
constexpr char kTools[] =
    R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","tool_calls":[{"id":"a",)"
    R"("type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool",)"
    R"("tool_call_id":"a","content":"x"}],"max_tokens":2,"seed":1,"tool_choice":"none",)"
    R"("tools":[{"type":"function","function":{"name":"f"}}]})";
constexpr char kResponse[] =
    R"({"input":[{"role":"user","content":"Hi"}],"text":{},"max_output_tokens":2,"seed":1})";
constexpr char kAnthropic[] =
    R"({"messages":[{"role":"user","content":"Hi"}],"max_tokens":2,"seed":1})";
constexpr char kItems[] =
    R"({"input":[{"role":"user","content":"Hi"},{"type":"function_call","call_id":"a","name":"f",)"
    R"("arguments":"{}"},{"type":"function_call_output","call_id":"a","output":"x"}],"seed":1,)"
    R"("max_output_tokens":2,"tool_choice":"none","tools":[{"type":"function","name":"f"}]})";
constexpr char kParts[] =
    R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":[)"
    R"({"type":"tool_use","id":"a","name":"f","input":{}}]},{"role":"user","content":[)"
    R"({"type":"tool_result","tool_use_id":"a","content":"x"}]}],"max_tokens":2,"seed":1,)"
    R"("tool_choice":{"type":"none"},"tools":[{"name":"f"}]})";
constexpr char kStream[] =
    R"({"prompt":"Hi","max_tokens":2,"seed":1,"stream":true,"stream_options":{}})";

const std::vector<Body>& Bodies() {
  static const std::vector<Body> bodies = {
      {kCompletionBody, "/v1/completions", R"({"prompt":"Hi","max_tokens":2,"seed":1})"},
      {kCompletionBody, "/lm_eval/v1/completions", R"({"prompt":"Hi","max_tokens":2,"seed":1})"},
      {kChatBody, "/v1/chat/completions", kChat},
      {kScoreBody, "/v1/score", R"({"items":[{"context":[8],"continuations":[[3]]}]})"},
      {kEmbeddingBody, "/v1/embeddings", R"({"input":"Hi"})"},
      {kAttentionBody, "/v1/attention", R"({"prompt":"Hi"})"},
      {kTokenizeBody, "/tokenize", R"({"prompt":"Hi"})"},
      {kTokenizeBody, "/lm_eval/tokenize", R"({"prompt":"Hi"})"},
      {kDetokenizeBody, "/detokenize", R"({"tokens":[300]})"},
      {kDetokenizeBody, "/lm_eval/detokenize", R"({"tokens":[300]})"},
      {kMessage, "/v1/chat/completions", kChat, "/messages/0", "messages[0]."},
      {kContentPart, "/v1/chat/completions", kChat, "/messages/0/content/0",
       "messages[0].content[0]."},
      {kTool, "/v1/chat/completions", kTools, "/tools/0", "tools[0]."},
      {kFunction, "/v1/chat/completions", kTools, "/tools/0/function", "tools[0].function."},
      {kToolCall, "/v1/chat/completions", kTools, "/messages/1/tool_calls/0",
       "messages[1].tool_calls[0]."},
      {kCalledFunction, "/v1/chat/completions", kTools, "/messages/1/tool_calls/0/function",
       "messages[1].tool_calls[0].function."},
      {kResponsesBody, "/v1/responses", kResponse},
      {kInputItem, "/v1/responses", kResponse, "/input/0", "input[0]."},
      {kTextConfig, "/v1/responses", kResponse, "/text", "text."},
      {kResponsesTool, "/v1/responses", kItems, "/tools/0", "tools[0]."},
      {kCallItem, "/v1/responses", kItems, "/input/1", "input[1]."},
      {kOutputItem, "/v1/responses", kItems, "/input/2", "input[2]."},
      {kMessagesTool, "/v1/messages", kParts, "/tools/0", "tools[0]."},
      {kMessagesChoice, "/v1/messages", kParts, "/tool_choice", "tool_choice."},
      {kAnthropicMessage, "/v1/messages", kParts, "/messages/0", "messages[0]."},
      {kToolUse, "/v1/messages", kParts, "/messages/1/content/0", "messages[1].content[0]."},
      {kToolResult, "/v1/messages", kParts, "/messages/2/content/0", "messages[2].content[0]."},
      {kMessagesBody, "/v1/messages", kAnthropic},
      {kMessagesBody, "/v1/messages/count_tokens", kAnthropic},
      {kScoreItem, "/v1/score", R"({"items":[{"context":[8],"continuations":[[3]]}]})", "/items/0",
       "items[0]."},
      {kStreamOptions, "/v1/completions", kStream, "/stream_options", "stream_options."},
  };
  return bodies;
}

class RequestFieldsTest : public testing::Test {
 protected:
  // The reply to `body` with the field; without the time, and without what the cache changes.
  std::string Reply(const Body& body, const std::string& name, const Json& value, int* status) {
    Json sent = Json::parse(body.json);
    Json& object = sent[Json::json_pointer(body.pointer)];
    if (name == "messages" && body.kind != kChatBody) object.erase("prompt");
    if (!name.empty()) object[name] = value;
    const HttpTarget target{.host = "127.0.0.1", .port = server_.GetServer().HttpPort()};
    const std::vector<HttpHeader> headers = {{"X-Request-Id", "R"}};
    const auto reply = SendRequest(target, "POST", body.path, headers, sent.dump());
    EXPECT_TRUE(reply.ok()) << reply.status() << " " << sent;
    *status = reply.ok() ? reply->status : 0;
    std::string text = reply.ok() ? reply->body : "";
    text = std::regex_replace(text, std::regex(R"("timings":\{[^}]*\})"), "");
    // /v1/responses tells the tools that it got.
    text = std::regex_replace(text, std::regex(R"("tools":\[.*\],"top_logprobs")"), "");
    for (const std::string key : {"\"created\":", "\"created_at\":", "\"cached_tokens\":",
                                  "\"input_tokens\":", "\"cache_read_input_tokens\":"}) {
      for (size_t at = 0; (at = text.find(key, at)) != std::string::npos;) {
        at += key.size();
        text.erase(at, text.find_first_not_of("0123456789", at) - at);
      }
    }
    return text;
  }

  void ExpectAnswer(const Body& body, const std::string& name, const Json& value) {
    int status = 0;
    std::string& plain = plain_[&body];
    if (plain.empty()) {
      plain = Reply(body, "", {}, &status);
      EXPECT_EQ(status, 200) << body.path << " " << plain;
    }
    EXPECT_EQ(Reply(body, name, value, &status), plain) << body.path << " " << name << value;
    EXPECT_EQ(status, 200) << body.path << " " << name << " " << value;
  }

  // Returns the message.
  std::string ExpectRejection(const Body& body, const std::string& name, const Json& value) {
    int status = 0;
    const std::string text = Reply(body, name, value, &status);
    EXPECT_EQ(status, 400) << body.path << " " << name << value << text;
    const Json reply = Json::parse(text, nullptr, false);
    if (!reply.is_object() || !reply["error"]["param"].is_string()) {
      ADD_FAILURE() << body.path << " " << name << value << text;
      return {};
    }
    EXPECT_THAT(reply["error"]["param"].get<std::string>(), StartsWith(body.prefix + name));
    return reply["error"]["message"];
  }

  // "param" or "message" of the error that answers `body`; empty: it has none.
  std::string ErrorPart(const std::string& path, const std::string& body, const std::string& part) {
    const HttpTarget target{.host = "127.0.0.1", .port = server_.GetServer().HttpPort()};
    const auto reply = SendRequest(target, "POST", path, {}, body);
    EXPECT_TRUE(reply.ok()) << reply.status();
    const Json json = Json::parse(reply.ok() ? reply->body : "", nullptr, false);
    const Json::json_pointer pointer("/error/" + part);
    return json.contains(pointer) && json[pointer].is_string() ? json[pointer] : "";
  }

  TestServer server_{{.max_model_len = 256}};
  std::map<const Body*, std::string> plain_;  // the reply without a further field
};

TEST_F(RequestFieldsTest, EachFieldIsReadHarmlessOrRefusedByName) {
  const Json odd = Json::parse("[[true]]");  // no field takes a list of lists of booleans
  for (const Body& body : Bodies()) {
    for (const RequestField& field : RequestFields()) {
      if ((field.kinds & body.kind) == 0) continue;
      const std::string name(field.name);
      switch (field.verdict) {
        case kServed: ExpectRejection(body, name, odd); break;
        case kHarmless: ExpectAnswer(body, name, odd); break;
        case kRefused:
          EXPECT_THAT(ExpectRejection(body, name, odd),
                      HasSubstr(StrCat("is a list; ", field.reason)));
          for (const Json& neutral : Json::parse(field.neutral)) ExpectAnswer(body, name, neutral);
          ExpectAnswer(body, name, nullptr);
      }
    }
  }
}

TEST_F(RequestFieldsTest, AnUnknownFieldIsRefusedUnlessItIsNull) {
  for (const Body& body : Bodies()) {
    for (const Json& value : {Json(0), Json(false), Json("x"), Json::array(), Json::object()}) {
      EXPECT_THAT(ExpectRejection(body, "zzz", value),
                  HasSubstr("zzz is no field of this request; leave it out"));
    }
    ExpectAnswer(body, "zzz", nullptr);
  }
}

// As vLLM's clients turn reasoning off, whatever the model.
TEST(ChatTemplateKwargsTest, NoReasoningIsWhatThereIsAndOtherVariablesAreRefused) {
  const auto check = [](const char* kwargs) {
    const Json body = {{"chat_template_kwargs", Json::parse(kwargs)}};
    return CheckFields(kChatBody, *BodyFields::Of(body));
  };
  for (const char* kwargs : {"{}", "{\"enable_thinking\": false}", "{\"thinking\": false}"}) {
    EXPECT_EQ(check(kwargs), absl::OkStatus()) << kwargs;
  }
  for (const char* kwargs : {"{\"enable_thinking\": true}", "{\"custom\": 1}", "[{}]"}) {
    EXPECT_THAT(std::string(check(kwargs).message()),
                HasSubstr("no template that this server reads has variables of its own"))
        << kwargs;
  }
}

TEST_F(RequestFieldsTest, TheNearestNameIsSuggested) {
  const Body& completion = Bodies().front();
  EXPECT_THAT(ExpectRejection(completion, "temprature", 0.5),
              HasSubstr("did you mean temperature?"));
  EXPECT_THAT(ExpectRejection(completion, "max_token", 5), HasSubstr("did you mean max_tokens?"));
  EXPECT_THAT(ExpectRejection(completion, "attention_p", 5), HasSubstr("attention_override"));
  EXPECT_THAT(ExpectRejection(completion, "use_beam_search", true), HasSubstr("is true; "));
  EXPECT_THAT(ExpectRejection(completion, "typical_p", 0.5), HasSubstr("is 0.5; "));
  EXPECT_THAT(ExpectRejection(completion, "suffix", "end"), HasSubstr("is \"end\"; "));
}

TEST_F(RequestFieldsTest, AnErrorNamesTheFieldAsItsPathDoes) {
  const std::string chat = R"("messages":[{"role":"user","content":"a"}])";
  struct Case {
    std::string path, body, param;
  };
  for (const Case& one : std::vector<Case>{
           {"/v1/score", R"({"items":[{"context":[99999],"continuations":["a"]}]})",
            "items[0].context[0]"},
           {"/v1/score", R"({"items":[{"context":"a","continuations":[[5,99999]]}]})",
            "items[0].continuations[0][1]"},
           {"/v1/embeddings", R"({"input":[5,99999]})", "input[1]"},
           {"/v1/embeddings", R"({"input":[]})", "input"},
           {"/v1/embeddings", R"({"input":[[5],[5,99999]]})", "input[1][1]"},
           {"/v1/completions", R"({"prompt":"a","max_tokens":1000})", "max_tokens"},
           {"/v1/completions", R"({"prompt":"a","max_completion_tokens":1000})",
            "max_completion_tokens"},
           {"/v1/completions", R"({"prompt":"a","max_tokens":1,"max_completion_tokens":2})",
            "max_completion_tokens"},
           {"/v1/chat/completions", "{" + chat + R"(,"max_tokens":1,"max_completion_tokens":2})",
            "max_completion_tokens"},
           {"/v1/completions", R"({"prompt":"a","logit_bias":{"5":1,"05":-1}})", "logit_bias"},
           {"/v1/responses", R"({"input":"a","metadata":{"k":1}})", "metadata"},
           {"/v1/responses", R"({"input":"a","metadata":{"k":")" + std::string(513, 'x') + R"("}})",
            "metadata"},
           {"/v1/completions", R"({"prompt":"a","logprobs":50})", "logprobs"},
           {"/v1/completions", R"({"prompt":"a","stop":[""]})", "stop[0]"},
           {"/v1/chat/completions", "{" + chat + R"(,"max_tokens":1000})", "max_tokens"},
           {"/v1/chat/completions", "{" + chat + R"(,"max_completion_tokens":1000})",
            "max_completion_tokens"},
           {"/v1/chat/completions", "{" + chat + R"(,"logprobs":true,"top_logprobs":50})",
            "top_logprobs"},
           {"/v1/responses", R"({"input":"a","max_output_tokens":1000})", "max_output_tokens"},
           {"/v1/responses",
            R"({"input":"a","include":["message.output_text.logprobs"],"top_logprobs":50})",
            "top_logprobs"},
           {"/v1/responses", R"({"input":"a","stop":[""]})", "stop[0]"},
           {"/v1/messages", "{" + chat + R"(,"max_tokens":1000})", "max_tokens"},
           {"/v1/messages", "{" + chat + R"(,"max_tokens":5,"stop_sequences":["x",""]})",
            "stop_sequences[1]"},
           {"/v1/messages/count_tokens", "{" + chat + R"(,"stop_sequences":["x",""]})",
            "stop_sequences[1]"},
           {"/v1/messages/count_tokens", "{" + chat + R"(,"temperature":-1})", "temperature"},
           {"/v1/messages/count_tokens", "{" + chat + R"(,"max_tokens":0})", "max_tokens"},
           {"/v1/attention", R"({"prompt":[5,99999]})", "prompt[1]"}}) {
    EXPECT_EQ(ErrorPart(one.path, one.body, "param"), one.param) << one.path << " " << one.body;
  }
}

TEST_F(RequestFieldsTest, AnErrorNamesTheValueAsItWasSentAndTheLimit) {
  const auto ids = [](int count) { return Json(std::vector<int>(size_t(count), 5)).dump(); };
  const auto completion = [](const std::string& fields) {
    return R"({"prompt":"a","max_tokens":2,)" + fields + "}";
  };
  const std::string chat = R"({"messages":[{"role":"user","content":"a"}],)";
  struct Case {
    std::string path, body, message;
  };
  std::vector<Case> cases = {
      {"/v1/completions", R"({"max_tokens":0,"prompt":)" + ids(257) + "}",
       "prompt has 257 tokens; it must have at most max_model_len 256 (this model's maximum "
       "context length is 256 tokens)"},
      {"/v1/completions", R"({"max_tokens":1,"prompt":)" + ids(256) + "}",
       "prompt has 256 tokens; it must have at most 255: max_model_len 256 less one new token "
       "(this model's maximum context length is 256 tokens)"},
      {"/v1/completions", completion(R"("top_k":-2)"),
       "top_k is -2; it must be at least 0, or -1 for the default"},
      {"/v1/completions", completion(R"("temperature":1e300)"),
       "temperature is 1e+300; it must be in [0, 100]"},
      {"/v1/completions", completion(R"("repetition_penalty":1e300)"),
       "repetition_penalty is 1e+300; it must be in (0, 10]"},
      {"/v1/completions", completion(R"("logit_bias":{"5":1e300})"),
       "logit_bias[5] is 1e+300; it must be in [-100, 100]"},
      {"/v1/completions", R"({"prompt":[5,4611686018427387905]})",
       "prompt[1] is 4611686018427387905; it must be a token id"},
      {"/v1/completions", R"({"prompt":"a","max_tokens":0,"min_tokens":1})",
       "min_tokens is 1; it must be 0 where max_tokens is 0"},
      {"/v1/completions", R"({"prompt":"a","max_completion_tokens":0,"min_tokens":1})",
       "min_tokens is 1; it must be 0 where max_completion_tokens is 0"},
      {"/v1/embeddings", R"({"input":"a","positions":[0]})",
       "positions is set; it may be set where pooling is \"mean\" or \"token\""},
      {"/v1/embeddings", R"({"input":[[5,6],[5]],"pooling":"mean","positions":[1]})",
       "positions[0] is 1; it must be in [-1, 1): input 1 has 1 tokens"},
  };
  const auto add = [&cases](const std::string& path, const std::string& body,
                            const std::string& message) {
    cases.push_back({path, body, message});
  };
  for (const std::string sent : {"11", "-11", "1099511627776", "-1099511627776"}) {
    const std::string body = R"("priority":)" + sent;
    const std::string message = "priority is " + sent + "; it must be in [-10, 10]";
    add("/v1/completions", completion(body), message);
    add("/v1/embeddings", R"({"input":"a",)" + body + "}", message);
    add("/v1/score", R"({"items":[{"continuations":["a"]}],)" + body + "}", message);
  }
  for (const std::string sent : {"1099511627776", "-1099511627776"}) {
    for (const std::string name : {"n", "min_tokens", "top_k", "speculative_tokens", "logprobs",
                                   "stream_interval", "prompt_logprobs", "max_completion_tokens"}) {
      add("/v1/completions", R"({"prompt":"a",")" + name + "\":" + sent + "}",
          name + " is " + sent + "; it must be a 32-bit integer");
    }
    add("/v1/completions",
        completion(R"("attention_override":{"p_by_length":[{"min_keys":)" + sent + "}]}"),
        "attention_override.p_by_length[0].min_keys is " + sent + "; it must be a 32-bit integer");
    add("/v1/completions", completion(R"("steering":[{"layer":)" + sent + "}]"),
        "steering[0].layer is " + sent + "; it must be a 32-bit integer");
    add("/v1/chat/completions", chat + R"("logprobs":true,"top_logprobs":)" + sent + "}",
        "top_logprobs is " + sent + "; it must be a 32-bit integer");
    add("/v1/messages", chat + R"("max_tokens":)" + sent + "}",
        "max_tokens is " + sent + "; it must be a 32-bit integer");
    add("/v1/responses", R"({"input":"a","max_output_tokens":)" + sent + "}",
        "max_output_tokens is " + sent + "; it must be a 32-bit integer");
    add("/v1/attention", R"({"prompt":"a","rows":[0,)" + sent + "]}",
        "rows[1] is " + sent + "; it must be a 32-bit integer");
    add("/v1/attention", R"({"prompt":"a","top_k":)" + sent + "}",
        "top_k is " + sent + "; it must be a 32-bit integer");
  }
  for (const Case& one : cases) {
    EXPECT_EQ(ErrorPart(one.path, one.body, "message"), one.message) << one.path << " " << one.body;
  }
}

// Clients cut the history, or take another model, by the code.
TEST_F(RequestFieldsTest, WhatIsTooLongForTheContextHasItsCode) {
  const std::string ids = Json(std::vector<int>(257, 5)).dump();
  std::string words;
  for (int i = 0; i < 257; ++i) words += "and ";
  struct Case {
    std::string path, body, param;
  };
  const std::vector<Case> cases = {
      {"/v1/completions", R"({"prompt":)" + ids + "}", "prompt"},
      {"/v1/completions", R"({"prompt":"a","max_tokens":1000})", "max_tokens"},
      {"/v1/chat/completions", R"({"messages":[{"role":"user","content":")" + words + R"("}]})",
       "messages"},
      {"/v1/embeddings", R"({"input":)" + ids + "}", "input"},
      {"/v1/attention", R"({"prompt":)" + ids + "}", "prompt"},
      {"/v1/score", R"({"items":[{"context":"a","continuations":[")" + words + R"("]}]})",
       "items[0].continuations[0]"},
      {"/v1/completions", R"({"prompt":")" + std::string(100000, 'a') + R"("})", "prompt"},
  };
  for (const auto& [path, body, param] : cases) {
    EXPECT_EQ(ErrorPart(path, body, "code"), "context_length_exceeded")
        << path << " " << body.substr(0, 80);
    EXPECT_EQ(ErrorPart(path, body, "param"), param);
    EXPECT_THAT(ErrorPart(path, body, "message"),
                HasSubstr("this model's maximum context length is 256 tokens"));
  }
  EXPECT_EQ(ErrorPart("/v1/completions", R"({"prompt":"a","max_tokens":-1})", "code"),
            "invalid_request");
}

TEST_F(RequestFieldsTest, ASeedOfMinusOneIsARandomOne) {
  const HttpTarget target{.host = "127.0.0.1", .port = server_.GetServer().HttpPort()};
  const auto seed_of = [&target](const std::string& seed) {
    const auto reply = SendRequest(target, "POST", "/v1/completions", {},
                                   R"({"prompt":"a","max_tokens":1,"seed":)" + seed + "}");
    EXPECT_TRUE(reply.ok() && reply->status == 200) << (reply.ok() ? reply->body : "");
    return Json::parse(reply->body)["receipt"]["sampling"]["seed"];
  };
  EXPECT_EQ(seed_of("7"), seed_of("7"));
  EXPECT_NE(seed_of("-1"), seed_of("-1"));
}

TEST_F(RequestFieldsTest, AnErrorOfTheEngineNamesTheField) {
  TestServer server({.max_model_len = 256, .max_num_seqs = 2});
  const HttpTarget target{.host = "127.0.0.1", .port = server.GetServer().HttpPort()};
  const auto reply = SendRequest(target, "POST", "/v1/completions", {}, R"({"prompt":"a","n":3})");
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->status, 400);
  const Json error = Json::parse(reply->body)["error"];
  EXPECT_EQ(error["param"], "n");
  EXPECT_THAT(error["message"].get<std::string>(), StartsWith("n is 3; it must be at most 2: "));
}

// The assistant's message as clients of OpenAI send it back.
TEST_F(RequestFieldsTest, AMessageOfAnEarlierAnswerIsTaken) {
  const auto reply_to = [this](const std::string& fields) {
    const HttpTarget target{.host = "127.0.0.1", .port = server_.GetServer().HttpPort()};
    const auto reply =
        SendRequest(target, "POST", "/v1/chat/completions", {},
                    R"({"max_tokens":2,"seed":1,"messages":[{"role":"user","content":"a"},)"
                    R"({"role":"assistant","content":"b")" +
                        fields + R"(},{"role":"user","content":"c"}]})");
    EXPECT_TRUE(reply.ok()) << reply.status();
    return Json::parse(reply.ok() ? reply->body : "", nullptr, false);
  };
  const Json plain = reply_to("");
  EXPECT_EQ(reply_to(R"(,"refusal":null,"annotations":[],"audio":null,"function_call":null,)"
                     R"("tool_calls":null,"name":"Ann")")["choices"],
            plain["choices"]);
  ASSERT_TRUE(plain.contains("choices")) << plain;
  const Json error = reply_to(R"(,"refusal":"x")")["error"];
  EXPECT_EQ(error["param"], "messages[1].refusal") << error;
}

TEST_F(RequestFieldsTest, ErrorsBelowMessagesHaveAnthropicsShape) {
  const auto reply_to = [this](const std::string& method, const std::string& path,
                               const std::string& body) {
    const HttpTarget target{.host = "127.0.0.1", .port = server_.GetServer().HttpPort()};
    const auto reply = SendRequest(target, method, path, {}, body);
    EXPECT_TRUE(reply.ok()) << reply.status();
    return Json::parse(reply.ok() ? reply->body : "", nullptr, false);
  };
  const Json bad = Json::parse(R"({"type":"error","error":{"type":"invalid_request_error",
                                   "message":"messages is missing","param":"messages"}})");
  EXPECT_EQ(reply_to("POST", "/v1/messages", R"({"max_tokens":1})"), bad);
  EXPECT_EQ(reply_to("POST", "/v1/messages/count_tokens", "{}"), bad);
  for (const std::string path : {"/v1/messages/msg_none", "/v1/messages/a/b"}) {
    const Json gone = reply_to("DELETE", path, "");
    EXPECT_EQ(gone["type"], "error") << gone;
    EXPECT_EQ(gone["error"]["type"], "not_found_error") << gone;
  }
  EXPECT_EQ(reply_to("GET", "/v1/messages/msg_none", "")["type"], "error");
  EXPECT_EQ(reply_to("POST", "/v1/messages2", "{}")["error"]["code"], "not_found");
}

TEST(RequestFieldTableTest, ANameHasOneRowForEachKind) {
  std::set<std::pair<BodyKinds, std::string>> seen;
  for (const RequestField& field : RequestFields()) {
    EXPECT_FALSE(field.name.empty());
    EXPECT_EQ(field.verdict == kRefused, !field.reason.empty()) << field.name;
    for (BodyKinds kind = 1; kind != 0; kind *= 2) {
      if ((field.kinds & kind) == 0) continue;
      EXPECT_TRUE(seen.emplace(kind, field.name).second) << field.name;
    }
  }
}

// The properties of a schema, of what it refers to and of its parts.
void Collect(const Json& api, const Json& schema, std::set<std::string>* names) {
  if (schema.contains("$ref")) {
    const std::string pointer = schema["$ref"].get<std::string>().substr(1);
    Collect(api, api[Json::json_pointer(pointer)], names);
  }
  if (schema.contains("allOf")) {
    for (const Json& part : schema["allOf"]) Collect(api, part, names);
  }
  if (!schema.contains("properties")) return;
  for (const auto& [name, property] : schema["properties"].items()) names->insert(name);
}

TEST(RequestFieldTableTest, OpenApiHasWhatIsServed) {
  const Json api = Json::parse(OpenApiJson(/*max_choices=*/16));
  std::vector<Body> bodies = Bodies();
  bodies.push_back({kBatchBody, "/v1/batches", "{}"});  // tests/http/batches_test.py sends such
  for (const Body& body : bodies) {
    if (!body.pointer.empty() || body.path.starts_with("/lm_eval/")) continue;
    std::set<std::string> served;
    for (const RequestField& field : RequestFields()) {
      if (field.verdict == kServed && (field.kinds & body.kind) != 0) {
        served.emplace(field.name);
      }
    }
    std::set<std::string> described;
    Collect(api,
            api["paths"][body.path]["post"]["requestBody"]["content"]["application/json"]["schema"],
            &described);
    EXPECT_EQ(described, served) << body.path;
  }
}

// What is open in a request's schema, with all that it refers to: an object with properties that
// allows others, an integer without a minimum or maximum. `seen`: schemas by name.
void FindOpen(const Json& api, const Json& schema, const std::string& place,
              std::set<std::string>* seen, std::vector<std::string>* open) {
  if (schema.is_array()) {
    for (const Json& part : schema) FindOpen(api, part, place, seen, open);
  }
  if (!schema.is_object()) return;
  if (schema.contains("$ref")) {
    const std::string pointer = schema["$ref"].get<std::string>().substr(1);
    if (!seen->insert(pointer).second) return;
    FindOpen(api, api[Json::json_pointer(pointer)], pointer, seen, open);
  }
  const auto is_a = [&schema](const Json& name) {
    if (!schema.contains("type")) return false;
    const Json& type = schema["type"];
    return type == name || (type.is_array() && std::ranges::find(type, name) != type.end());
  };
  if (is_a("object") && schema.contains("properties") && !schema.contains("additionalProperties")) {
    open->push_back(place);
  }
  const auto has = [&schema](const std::string& limit) {
    return schema.contains(limit) || schema.contains("exclusive" + limit);
  };
  if (is_a("integer") && !(has("minimum") && has("maximum"))) open->push_back(place);
  if (schema.contains("properties")) {
    for (const auto& [name, property] : schema["properties"].items()) {
      FindOpen(api, property, StrCat(place, ".", name), seen, open);
    }
  }
  for (const char* const part : {"items", "anyOf", "oneOf", "allOf"}) {
    if (schema.contains(part)) FindOpen(api, schema[part], place, seen, open);
  }
}

TEST(RequestFieldTableTest, OpenApiBoundsWhatIsRead) {
  const Json api = Json::parse(OpenApiJson(/*max_choices=*/16));
  std::set<std::string> seen;
  std::vector<std::string> open;
  int num_bodies = 0;
  for (const auto& [path, methods] : api["paths"].items()) {
    const Json::json_pointer schema("/post/requestBody/content/application~1json/schema");
    if (!methods.contains(schema)) continue;
    FindOpen(api, methods[schema], path, &seen, &open);
    ++num_bodies;
  }
  EXPECT_GE(num_bodies, 11);
  EXPECT_THAT(open, IsEmpty());
}

TEST_F(RequestFieldsTest, APenaltyThatFp32DoesNotHaveIsAboveZero) {
  const std::string start = R"({"prompt":"a","max_tokens":2,"repetition_penalty":)";
  const auto status_of = [this, &start](const std::string& penalty) {
    const HttpTarget target{.host = "127.0.0.1", .port = server_.GetServer().HttpPort()};
    const auto reply = SendRequest(target, "POST", "/v1/completions", {}, start + penalty + "}");
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.ok() ? reply->status : 0;
  };
  EXPECT_EQ(status_of("1e-300"), 200);
  EXPECT_EQ(status_of("1e-45"), 200);
  for (const char* const bad : {"0", "-1e-300", "10.1", "1e300"}) EXPECT_EQ(status_of(bad), 400);
}

}  // namespace
}  // namespace lssar
