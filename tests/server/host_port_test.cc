#include "server/net/host_port.h"

#include <gtest/gtest.h>

#include <string>

namespace lssar {
namespace {

TEST(HostPortTest, NamesAndAddresses) {
  for (const char* text : {"localhost:50051", "127.0.0.1:0", "[::1]:65535", "a.b:1"}) {
    const auto address = SplitHostPort(text);
    ASSERT_TRUE(address.has_value()) << text;
    EXPECT_EQ(address->Text(), text);
  }
  const auto ipv6 = SplitHostPort("[::1]:80");
  EXPECT_EQ(ipv6->host, "::1");
  EXPECT_EQ(ipv6->port, 80);
}

TEST(HostPortTest, NothingElse) {
  for (const char* text :
       {"",      ":",       ":80",     "80",    "a:",         "a:b",    "a:65536",
        "a:-1",  "a:+1",    "a: 1",    "a:1 ",  "a:1.5",      "::1:80", "::1",
        "[]:80", "[::1:80", "::1]:80", "[::1]", "[[::1]]:80", "[a]:80", "a:b:80"}) {
    EXPECT_FALSE(SplitHostPort(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace lssar
