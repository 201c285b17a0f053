#include "daemon/control/strangers.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <set>
#include <string>

#include "daemon/control/accept_filter.h"

namespace tensorlane::control {
namespace {

AddressBytes address(const std::string& text) {
  AddressBytes bytes{};
  EXPECT_TRUE(parse_address(text, &bytes)) << text;
  EXPECT_EQ(address_text(bytes), text);
  return bytes;
}

TEST(Strangers, an_address_is_shut_out_at_its_limit_and_let_in_at_half_of_it) {
  Strangers strangers(2);
  const AddressBytes flooder = address("10.0.0.9"), other = address("fd00::4");
  const int limit = static_cast<int>(strangers.per_address());
  for (int i = 0; i < limit; ++i) {
    EXPECT_TRUE(strangers.shut().addresses.empty());
    strangers.connected(i, flooder);
  }
  strangers.connected(1000, other);
  EXPECT_EQ(strangers.shut(), (Strangers::Shut{{flooder}, false}));
  for (int i = 0; i < limit / 2 - 1; ++i) EXPECT_TRUE(strangers.gone(i));
  EXPECT_FALSE(strangers.shut().addresses.empty());
  EXPECT_TRUE(strangers.gone(limit - 1));
  EXPECT_TRUE(strangers.shut().addresses.empty());
  EXPECT_FALSE(strangers.gone(limit - 1)) << "it is gone";
}

TEST(Strangers, hosts_of_the_fabric_do_not_count) {
  Strangers strangers(2);
  for (int i = 0; i < 1000; ++i) {
    strangers.connected(i, address("10.0.0.1"));
    strangers.proved(i);
    EXPECT_FALSE(strangers.gone(i)) << "not a stranger any more";
  }
  EXPECT_EQ(strangers.shut(), Strangers::Shut{});
  EXPECT_EQ(strangers.count(), 0u);
}

TEST(Strangers, many_addresses_leave_only_those_of_the_fabric_in) {
  Strangers strangers(2);
  for (std::size_t i = 0; i < strangers.total(); ++i) {
    EXPECT_FALSE(strangers.shut().all_but_known);
    strangers.connected(static_cast<int>(i), address("10.1.0." + std::to_string(i % 250)));
  }
  EXPECT_TRUE(strangers.shut().all_but_known);
  for (std::size_t i = 0; i < strangers.total() / 2; ++i) {
    EXPECT_TRUE(strangers.shut().all_but_known) << "each change costs the kernel a new filter: half of them go first";
    strangers.gone(static_cast<int>(i));
  }
  EXPECT_FALSE(strangers.shut().all_but_known);
}

// The start of a job: all hosts come at once, and their first messages later.
TEST(Strangers, hosts_that_begin_a_job_together_shut_nobody_out) {
  constexpr int kHosts = 1000;
  Strangers strangers(kHosts);
  for (int i = 0; i < kHosts; ++i) strangers.connected(i, address(fmt::format("10.1.{}.{}", i / 250, i % 250 + 1)));
  EXPECT_EQ(strangers.shut(), Strangers::Shut{});
}

TEST(Strangers, who_has_shown_a_key_does_not_count_while_nobody_has_read_what_it_says) {
  Strangers strangers(2);
  const AddressBytes host = address("10.0.0.1");
  for (int i = 0; i < 1000; ++i) {
    strangers.connected(i, host);
    strangers.vouched(host);
  }
  EXPECT_EQ(strangers.shut(), Strangers::Shut{});
  EXPECT_EQ(strangers.count(), 0u);
  strangers.connected(1000, host);
  EXPECT_EQ(strangers.count(), 1u);
  for (int i = 0; i < 500; ++i) strangers.proved(i);
  for (int i = 500; i < 1000; ++i) strangers.gone(i);
  strangers.vouched(address("10.0.0.2"));
  EXPECT_LE(strangers.count(), 1u);
  strangers.gone(1000);
  EXPECT_EQ(strangers.count(), 0u);
}

TEST(Strangers, a_descriptor_that_comes_again_stands_for_the_new_connection) {
  Strangers strangers(2);
  for (int i = 0; i < 100; ++i) strangers.connected(7, address("10.0.0.1"));
  EXPECT_EQ(strangers.count(), 1u);
  EXPECT_EQ(strangers.shut(), Strangers::Shut{});
}

// ---- the kernel's part ----

class Listener {
 public:
  explicit Listener(const std::string& text) {
    address_.sin6_family = AF_INET6;
    EXPECT_EQ(inet_pton(AF_INET6, text.c_str(), &address_.sin6_addr), 1);
    socket_ = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int off = 0;
    ::setsockopt(socket_, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    available_ = ::bind(socket_, get(), sizeof address_) == 0 && ::listen(socket_, 16) == 0;
    socklen_t length = sizeof address_;
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address_), &length);
  }
  ~Listener() { ::close(socket_); }
  int get_socket() const { return socket_; }
  bool available() const { return available_; }
  // Whether somebody who comes from there gets in within this time.
  bool takes(const std::string& from, int milliseconds) const {
    const int s = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_in6 source{};
    source.sin6_family = AF_INET6;
    EXPECT_EQ(inet_pton(AF_INET6, from.c_str(), &source.sin6_addr), 1);
    EXPECT_EQ(::bind(s, reinterpret_cast<const sockaddr*>(&source), sizeof source), 0);
    ::connect(s, reinterpret_cast<const sockaddr*>(&address_), sizeof address_);
    pollfd ready{s, POLLOUT, 0};
    const bool connected = ::poll(&ready, 1, milliseconds) == 1 && (ready.revents & POLLERR) == 0;
    ::close(s);
    return connected;
  }

 private:
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }
  sockaddr_in6 address_{};
  int socket_ = -1;
  bool available_ = false;
};

constexpr int kSoon = 2000, kNever = 200;  // milliseconds

TEST(Filter, lets_an_address_in_or_not) {
  const Listener listener("::ffff:127.0.0.1");
  ASSERT_TRUE(listener.available());
  const KnownAddresses known = known_addresses({address("10.0.0.1"), address("127.0.0.3"), address("fd00::1")});
  const auto filter = [&](const Strangers::Shut& shut) {
    const Status status = filter_connections(listener.get_socket(), shut, known);
    ASSERT_TRUE(status.ok()) << status.to_string();
  };
  filter({{address("fd00::9"), address("127.0.0.9"), address("127.0.0.8")}, false});
  EXPECT_TRUE(listener.takes("::ffff:127.0.0.2", kSoon));
  EXPECT_FALSE(listener.takes("::ffff:127.0.0.9", kNever));
  EXPECT_FALSE(listener.takes("::ffff:127.0.0.8", kNever));
  filter({{address("127.0.0.9")}, true});
  EXPECT_FALSE(listener.takes("::ffff:127.0.0.2", kNever)) << "not one of the fabric";
  EXPECT_TRUE(listener.takes("::ffff:127.0.0.3", kSoon));
  EXPECT_FALSE(listener.takes("::ffff:127.0.0.9", kNever));
  filter({{address("127.0.0.3")}, true});
  EXPECT_FALSE(listener.takes("::ffff:127.0.0.3", kNever)) << "one of the fabric that floods";
  filter({});
  EXPECT_TRUE(listener.takes("::ffff:127.0.0.9", kSoon));
}

TEST(Filter, knows_more_addresses_than_it_has_room_for_by_their_prefixes) {
  std::set<AddressBytes> addresses{address("fd00::1")};
  for (int i = 0; i < 1000; ++i) addresses.insert(address(fmt::format("127.9.{}.{}", i / 250, i % 250 + 1)));
  const KnownAddresses known = known_addresses(addresses);
  EXPECT_LE(known.prefixes.size(), kMaxKnown);
  EXPECT_EQ(known.bits, 126u);
  const Listener listener("::ffff:127.0.0.1");
  ASSERT_TRUE(listener.available());
  const Status status = filter_connections(listener.get_socket(), {{}, true}, known);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_TRUE(listener.takes("::ffff:127.9.0.1", kSoon));
  EXPECT_TRUE(listener.takes("::ffff:127.9.3.250", kSoon));
  EXPECT_FALSE(listener.takes("::ffff:127.9.4.1", kNever));
  EXPECT_FALSE(listener.takes("::ffff:127.8.0.1", kNever));
}

TEST(Filter, prefixes_of_ipv6_leave_addresses_of_ipv4_what_they_are) {
  std::set<AddressBytes> addresses{address("10.0.0.1")};
  for (int i = 0; i < 1000; ++i) addresses.insert(address(fmt::format("fd00:0:0:{:x}::1", i + 1)));
  const KnownAddresses known = known_addresses(addresses);
  EXPECT_LE(known.prefixes.size(), kMaxKnown);
  EXPECT_LT(known.bits, 96u);
  EXPECT_TRUE(known.prefixes.contains(address("0.0.0.0")));
}

TEST(Filter, compares_whole_addresses_of_ipv6) {
  const Listener listener("::1");
  if (!listener.available()) GTEST_SKIP() << "no IPv6 on loopback";
  // They differ from ::1 in one word each.
  const Strangers::Shut others{{address("1::1"), address("0:0:1::1"), address("::1:0:1"), address("::2")}, false};
  ASSERT_TRUE(filter_connections(listener.get_socket(), others, {}).ok());
  EXPECT_TRUE(listener.takes("::1", kSoon));
  ASSERT_TRUE(filter_connections(listener.get_socket(), {{address("::1")}, false}, {}).ok());
  EXPECT_FALSE(listener.takes("::1", kNever));
  ASSERT_TRUE(filter_connections(listener.get_socket(), {{}, true}, known_addresses({address("::1")})).ok());
  EXPECT_TRUE(listener.takes("::1", kSoon));
}

TEST(Filter, knows_who_is_at_the_other_end) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  AddressBytes bytes{};
  EXPECT_FALSE(peer_address(pair[0], &bytes));
  EXPECT_FALSE(peer_address(-1, &bytes));
  EXPECT_FALSE(parse_address("h1.example", &bytes));
  EXPECT_EQ(network_text(address("10.0.0.1")), "10.0.0.1");
  EXPECT_EQ(network_text(address("fd00:1:2:3:4:5:6:7")), "fd00:1:2:3::/64");
  ::close(pair[0]);
  ::close(pair[1]);
}

}  // namespace
}  // namespace tensorlane::control
