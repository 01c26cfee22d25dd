// Which requests of browsers are refused.
#include "server/http/cross_origin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace lssar {
namespace {

using ::testing::HasSubstr;

using Headers = std::vector<HttpHeader>;

HttpRequest RequestOf(std::string method, Headers headers) {
  HttpRequest request;
  request.method = std::move(method);
  request.headers = std::move(headers);
  return request;
}
HttpRequest Post(Headers headers) { return RequestOf("POST", std::move(headers)); }

bool Passes(const CrossOriginCheck& check, const HttpRequest& head) {
  const absl::Status status = check.Check(head);
  EXPECT_TRUE(status.ok() || absl::IsPermissionDenied(status)) << status;
  return status.ok();
}

TEST(CrossOriginTest, PagesOfOtherOriginsAreRefused) {
  const CrossOriginCheck check({"https://a.example"}, /*checks_host=*/false);
  const std::string host = "lssar.example:8080";
  for (const auto& [headers, passes] : std::vector<std::pair<Headers, bool>>{
           {{}, true},  // no browser
           {{{"host", host}}, true},
           {{{"host", host}, {"origin", "http://lssar.example:8080"}}, true},
           {{{"host", "LSSAR.example:8080"}, {"origin", "http://lssar.example:8080"}}, true},
           {{{"host", host}, {"origin", "https://a.example"}}, true},
           {{{"host", host}, {"origin", "https://b.example"}}, false},
           {{{"host", host}, {"origin", "http://lssar.example"}}, false},
           {{{"host", host}, {"origin", "null"}}, false},
           {{{"origin", "null"}}, false},
           // A proxy has changed Host: the browser says whether the page is the server's own.
           {{{"host", "127.0.0.1"},
             {"origin", "https://c.example"},
             {"sec-fetch-site", "same-origin"}},
            true},
           {{{"host", host}, {"sec-fetch-site", "none"}}, true},
           {{{"host", host}, {"sec-fetch-site", "cross-site"}}, false},
           {{{"host", host},
             {"origin", "http://lssar.example:8080"},
             {"sec-fetch-site", "same-site"}},
            false},
           {{{"host", host}, {"origin", "https://a.example"}, {"sec-fetch-site", "cross-site"}},
            true}}) {
    EXPECT_EQ(Passes(check, Post(headers)), passes) << headers.size();
    EXPECT_TRUE(Passes(check, RequestOf("GET", headers))) << "has no effect";
  }
  EXPECT_THAT(std::string(check.Check(Post({{"origin", "https://b.example"}})).message()),
              HasSubstr("Origin https://b.example: its pages may not call this server"));
}

TEST(CrossOriginTest, NamesThatMayBeReboundAreRefused) {
  const CrossOriginCheck check({"https://chat.example:8443"}, /*checks_host=*/true);
  for (const auto& [host, passes] :
       std::vector<std::pair<std::string, bool>>{{"", true},
                                                 {"localhost", true},
                                                 {"LocalHost:8080", true},
                                                 {"lssar.localhost:8080", true},
                                                 {"127.0.0.1", true},
                                                 {"127.0.0.1:8080", true},
                                                 {"[::1]:8080", true},
                                                 {"[fe80::1]", true},
                                                 {"chat.example", true},
                                                 {"chat.example:80", true},
                                                 {"evil.example:8080", false},
                                                 {"127.0.0.1.evil.example", false},
                                                 {"localhost.evil.example", false},
                                                 {"notlocalhost", false},
                                                 {"[evil.example]", false},
                                                 {"[::1", false}}) {
    for (const std::string method : {"GET", "POST"}) {
      const Headers headers = host.empty() ? Headers() : Headers{{"host", host}};
      EXPECT_EQ(Passes(check, RequestOf(method, headers)), passes) << method << " " << host;
    }
  }
  EXPECT_THAT(std::string(check.Check(Post({{"host", std::string(500, 'x')}})).message()),
              testing::AllOf(HasSubstr("Host x"), HasSubstr("--http-cors-origins"),
                             testing::SizeIs(testing::Lt(400))));
}

TEST(CrossOriginTest, AStarAllowsAll) {
  const CrossOriginCheck check({"*"}, /*checks_host=*/true);
  EXPECT_TRUE(Passes(check, Post({{"host", "evil.example"}, {"origin", "https://b.example"}})));
  EXPECT_TRUE(check.Allows("https://b.example"));
  EXPECT_FALSE(check.Allows(""));
}

TEST(CrossOriginTest, StarsMatchHostsAndPorts) {
  const CrossOriginCheck check({"https://*.example.org", "http://*:3000", "http://localhost:*"},
                               /*checks_host=*/true);
  for (const auto& [origin, allowed] :
       std::vector<std::pair<std::string, bool>>{{"https://a.example.org", true},
                                                 {"https://b.a.example.org", true},
                                                 {"https://A.Example.org", true},
                                                 {"https://example.org", false},
                                                 {"https://badexample.org", false},
                                                 {"https://a.example.org.evil.example", false},
                                                 {"https://a.example.org:8443", false},
                                                 {"http://a.example.org", false},
                                                 {"http://localhost:3000", true},
                                                 {"http://[::1]:3000", true},
                                                 {"http://evil.example:3000", true},
                                                 {"http://evil.example:3001", false},
                                                 {"http://localhost", true},
                                                 {"http://localhost:5173", true},
                                                 {"https://localhost:5173", false},
                                                 {"null", false},
                                                 {"", false}}) {
    EXPECT_EQ(check.Allows(origin), allowed) << origin;
  }
  EXPECT_TRUE(Passes(check, Post({{"host", "a.example.org"}})));
  EXPECT_FALSE(Passes(check, Post({{"host", "evil.example:3000"}}))) << "may be rebound";
}

TEST(CrossOriginTest, ApplicationsAndPortsOfTheSchemeAreOrigins) {
  const CrossOriginCheck check({"app://obsidian.md", "tauri://localhost", "capacitor://localhost",
                                "chrome-extension://abcdefghijklmnop", "https://a.example:443"},
                               /*checks_host=*/false);
  for (const std::string origin :
       {"app://obsidian.md", "tauri://localhost", "capacitor://localhost",
        "chrome-extension://abcdefghijklmnop", "https://a.example"}) {
    EXPECT_TRUE(check.Allows(origin)) << origin;
    EXPECT_TRUE(Passes(check, Post({{"host", "b.example"}, {"origin", origin}}))) << origin;
  }
  EXPECT_FALSE(check.Allows("app://localhost"));
  EXPECT_FALSE(check.Allows("http://a.example"));
}

TEST(CrossOriginTest, AnEntryThatWouldMatchNothingIsRefused) {
  for (const std::string good :
       {"*", "https://a.example", "http://localhost:3000", "http://[::1]:8080", "http://127.0.0.1",
        "https://*.example.org", "http://*", "http://*:3000", "http://localhost:*",
        "app://obsidian.md", "moz-extension://0f5e-aa", "https://xn--bcher-kva.example"}) {
    EXPECT_EQ(CheckListedOrigin(good), absl::OkStatus()) << good;
  }
  for (const std::string bad : {"",
                                "a.example",
                                "null",
                                "https://",
                                "https://a.example/",
                                "https://a.example/chat",
                                "https://u@a.example",
                                "https://a.example?x",
                                "https://a.*.example",
                                "https://*a.example",
                                "https://*.*.example",
                                "https://**",
                                "https://*.*",
                                "http://*:30*",
                                "http://a.example:",
                                "http://[::1",
                                "http://a.example:99999",
                                "http://a.example:x",
                                "https://b\xC3\xBC"
                                "cher.example",
                                " https://a.example",
                                "1app://x",
                                "https://a b.example"}) {
    const absl::Status status = CheckListedOrigin(bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad));
  }
}

}  // namespace
}  // namespace lssar
