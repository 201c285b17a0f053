// The choice between transports: the next one is tried where the better one comes to nothing, and the reason is told.
#include "daemon/transport/mixed/mixed_transport.h"
#include "harness.h"

namespace tensorlane::conformance {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr ClassId kUrgent{0};
constexpr std::uint16_t kNobodyListens = 12;

TEST(Mixed, TriesTheNextTransportWhereTheBetterOneComesToNothing) {
  std::vector<std::string> choices;
  TransportKind kind = tcp_ipv4();
  kind.make = [&choices, tcp = tcp_ipv4()](const HostOptions& options, std::uint16_t port, ports::FrameSink& sink) {
    const auto offered = [](const std::string&) { return Status(); };
    mixed::MixedConfig config;
    config.members.push_back(
        {"better", kNobodyListens,
         [=](ports::FrameSink& own) { return tcp.make(options, static_cast<std::uint16_t>(port + 8), own); }, offered});
    config.members.push_back({"tcp", 0, [=](ports::FrameSink& own) { return tcp.make(options, port, own); }, offered});
    config.chosen = [&choices](const std::string& address, const std::string& member, const std::string& reason) {
      choices.push_back(address + " " + member + ": " + reason);
    };
    return mixed::make_mixed_transport(std::move(config), sink);
  };
  TestClock clock;
  Host a(kind, HostIndex(0)), b(kind, HostIndex(1));
  a.add_job();
  b.add_job();
  a->poll(clock.now());
  const ports::FlowKey key{kJob, HostIndex(1), kUrgent};
  ASSERT_TRUE(a->connect(key, kind.address, b.data_port, clock.now() + milliseconds(900)).ok());
  ASSERT_TRUE(run_until(clock, {&a, &b}, [&] { return a.sink->up(key); }));
  EXPECT_TRUE(a.sink->downs.empty()) << "the first attempt's end is nobody's business";
  ASSERT_EQ(choices.size(), 1u);
  EXPECT_THAT(choices[0], AllOf(HasSubstr("127.0.0.1 tcp: no better: connection to host 1 (127.0.0.1:"),
                                HasSubstr("Connection refused")));
  EXPECT_THAT(a->stats(key).describe, HasSubstr("tcp: 127.0.0.1:"));
}

}  // namespace
}  // namespace tensorlane::conformance
