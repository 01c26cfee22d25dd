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

}  // namespace
}  // namespace lssar
