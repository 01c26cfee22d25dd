#include "server/net/client_address.h"

#include <gtest/gtest.h>

#include <string>

namespace lssar {
namespace {

TEST(TrustedProxies, TheConnectionsClientIsBelieved) {
  const TrustedProxies none;
  const ClientAddress ipv4 = none.Find("ipv4:192.0.2.1:50000", "198.51.100.7");
  EXPECT_EQ(ipv4.text, "192.0.2.1") << "anyone can send x-forwarded-for";
  EXPECT_EQ(ipv4.limited, "192.0.2.1");
  const ClientAddress ipv6 = none.Find("ipv6:%5B2001:db8::1%5D:50000", "");
  EXPECT_EQ(ipv6.text, "2001:db8::1");
  EXPECT_EQ(ipv6.limited, "2001:db8::/64");
  EXPECT_EQ(none.Find("unix:", "198.51.100.7").text, "unix");
}

TEST(TrustedProxies, TheLastAddressThatIsNoProxyIsTheClient) {
  const auto proxies = TrustedProxies::Parse("10.0.0.0/8, 2001:db8::/32,192.0.2.1");
  ASSERT_TRUE(proxies.ok()) << proxies.status();
  const auto find = [&](const std::string& peer, const std::string& forwarded_for) {
    return proxies->Find(peer, forwarded_for).text;
  };
  EXPECT_EQ(find("ipv4:10.1.2.3:5", "198.51.100.7"), "198.51.100.7");
  EXPECT_EQ(find("ipv4:10.1.2.3:5", ""), "10.1.2.3") << "the proxy itself: its probe";
  EXPECT_EQ(find("ipv4:11.1.2.3:5", "198.51.100.7"), "11.1.2.3");
  EXPECT_EQ(find("ipv4:192.0.2.1:5", "203.0.113.9, 198.51.100.7, 10.0.0.2"), "198.51.100.7")
      << "what the client itself wrote comes first, and is not believed";
  EXPECT_EQ(find("ipv6:%5B2001:db8::5%5D:5", "[2001:dead::9]:4711"), "2001:dead::9");
  EXPECT_EQ(find("ipv4:10.1.2.3:5", "198.51.100.7:4711"), "198.51.100.7");
  EXPECT_EQ(find("ipv4:10.1.2.3:5", "198.51.100.7, nonsense"), "10.1.2.3");
  EXPECT_EQ(find("ipv4:10.1.2.3:5", "10.0.0.9"), "10.0.0.9") << "a client within the network";
  EXPECT_EQ(find("unix:", "198.51.100.7"), "unix");
  EXPECT_EQ(TrustedProxies::Parse("unix")->Find("unix:", "198.51.100.7").text, "198.51.100.7");
}

TEST(TrustedProxies, BadListsAreRefused) {
  for (const char* const list : {"", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0", "localhost", "::/129",
                                 "10.0.0.1,", "10.0.0.0/", "unix:"}) {
    EXPECT_EQ(TrustedProxies::Parse(list).status().code(), absl::StatusCode::kInvalidArgument)
        << list;
  }
}

}  // namespace
}  // namespace lssar
