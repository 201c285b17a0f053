// The choice between transports: what was measured decides, both ends agree, and the reasons are told.
#include "daemon/transport/mixed/mixed_transport.h"

#include <sys/eventfd.h>

#include "daemon/transport/handshake/socket.h"
#include "harness.h"

namespace tensorlane::conformance {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::uint16_t kBetterOffset = 8;

// A transport that looks at what has come only now and then.
class LazyTransport final : public ports::Transport {
 public:
  LazyTransport(std::unique_ptr<ports::Transport> inner, Duration pause) : inner_(std::move(inner)), pause_(pause) {}
  void add_job(const ports::JobCredentials& credentials) override { inner_->add_job(credentials); }
  void remove_job(JobId job) override { inner_->remove_job(job); }
  Status connect(const ports::FlowKey& flow, const std::string& address, std::uint16_t data_port,
                 Time deadline) override {
    return inner_->connect(flow, address, data_port, deadline);
  }
  void close(const ports::FlowKey& flow) override { inner_->close(flow); }
  Bytes in_flight(ClassId cls) override { return inner_->in_flight(cls); }
  std::size_t poll(Time now) override {
    if (now < next_) return 0;
    next_ = now + pause_;
    return inner_->poll(now);
  }
  int wake_fd() const override { return inner_->wake_fd(); }
  bool arm() override { return inner_->arm(); }
  ports::TransportCounters counters() const override { return inner_->counters(); }

 private:
  const std::unique_ptr<ports::Transport> inner_;
  const Duration pause_;
  Time next_;
};

// What a host has: "better", before "tcp" in the order of capability.
struct Members {
  bool better = true, tcp = true;
  Duration better_pause{};
};

TransportKind mixed_kind(const Members& members) {
  TransportKind kind;
  kind.name = "mixed";
  kind.address = "127.0.0.1";
  kind.make = [members](const HostOptions& options, std::uint16_t port, ports::FlowOwner& owner) {
    const auto offered = [](const std::string&) { return Status(); };
    mixed::MixedConfig config;
    for (const ClassSetup& c : options.classes) config.classes.push_back(c.tag.cls);
    const auto better_port = static_cast<std::uint16_t>(port + kBetterOffset);
    const auto make_better = [=](ports::FlowOwner& own) -> Result<std::unique_ptr<ports::Transport>> {
      TL_ASSIGN_OR_RETURN(auto inner, tcp_ipv4().make(options, better_port, own));
      return std::unique_ptr<ports::Transport>(std::make_unique<LazyTransport>(std::move(inner), members.better_pause));
    };
    if (members.better) config.members.push_back({"better", kBetterOffset, make_better, offered});
    const auto make_tcp = [=](ports::FlowOwner& own) { return tcp_ipv4().make(options, port, own); };
    if (members.tcp) config.members.push_back({"tcp", 0, make_tcp, offered});
    return mixed::make_mixed_transport(std::move(config), owner);
  };
  return kind;
}

std::string chosen(const ports::PathReport& report) {
  std::string names;
  for (const ports::PathCandidate& c : report.candidates) names += c.chosen ? c.transport : "";
  return names;
}

class Mixed : public ::testing::Test {
 protected:
  void make(const Members& of_a, const Members& of_b) {
    a = std::make_unique<Host>(mixed_kind(of_a), HostIndex(0));
    b = std::make_unique<Host>(mixed_kind(of_b), HostIndex(1));
    add_job(kJob);
  }
  void add_job(JobId job) {
    a->transport->add_job(credentials(HostIndex(0), "correct horse", Epoch(7), job));
    b->transport->add_job(credentials(HostIndex(1), "correct horse", Epoch(7), job));
    a->transport->poll(clock.now());
  }
  Status connect(JobId job, Duration patience = seconds(12)) {
    for (const ClassId cls : {kUrgent, kBulk, kControlClass})
      TL_RETURN_IF_ERROR(
          a->transport->connect({job, HostIndex(1), cls}, "127.0.0.1", b->data_port, clock.now() + patience));
    return {};
  }
  bool all_up(JobId job) const {
    for (const ClassId cls : {kUrgent, kBulk, kControlClass}) {
      if (!a->sink->up({job, HostIndex(1), cls}) || !b->sink->up({job, HostIndex(0), cls})) return false;
    }
    return true;
  }
  bool run(const std::function<bool()>& done) { return run_until(clock, {a.get(), b.get()}, done); }
  void bring_up(JobId job, Duration patience = seconds(12)) {
    const Status status = connect(job, patience);
    ASSERT_TRUE(status.ok()) << status.to_string();
    ASSERT_TRUE(run([&] { return all_up(job); }));
  }
  ports::PathReport path_of_a(JobId job = kJob) const { return a->transport->path(job, HostIndex(1)); }
  ports::PathReport path_of_b(JobId job = kJob) const { return b->transport->path(job, HostIndex(0)); }
  // Over which transport each flow of either end really goes.
  std::set<std::string> carriers(JobId job = kJob) const {
    std::set<std::string> names;
    for (const ClassId cls : {kUrgent, kBulk, kControlClass}) {
      // The lazy one is TCP, too: its ports tell.
      const std::string text = a->stats({job, HostIndex(1), cls}).describe;
      const int port = std::stoi(text.substr(text.rfind(':') + 1)) - b->data_port;
      names.insert(port >= kBetterOffset ? "better" : "tcp");
    }
    return names;
  }

  TestClock clock;
  std::unique_ptr<Host> a, b;
};

TEST_F(Mixed, TakesTheFasterOneWhereCapabilityWouldChooseWrongly) {
  make({.better_pause = milliseconds(3)}, {.better_pause = milliseconds(3)});
  bring_up(kJob);
  EXPECT_EQ(carriers(), std::set<std::string>{"tcp"});
  for (const ports::PathReport& report : {path_of_a(), path_of_b()}) {
    ASSERT_EQ(report.candidates.size(), 2u);
    EXPECT_EQ(chosen(report), "tcp");
    EXPECT_GT(report.measured, Time());
    const ports::PathCandidate &better = report.candidates[0], &tcp = report.candidates[1];
    EXPECT_EQ(better.transport, "better");
    EXPECT_GT(better.latency, milliseconds(1)) << "a round trip waits for two pauses";
    EXPECT_LT(better.latency, milliseconds(400));
    EXPECT_GT(tcp.latency, Duration());
    EXPECT_LT(tcp.latency, better.latency);
    EXPECT_GT(tcp.bandwidth.value, 10'000'000u);
    EXPECT_THAT(better.verdict, AllOf(HasSubstr("ms for 256 KiB, tcp takes "), HasSubstr(" ms")));
    EXPECT_EQ(tcp.verdict, "fastest");
  }
  EXPECT_TRUE(a->sink->downs.empty() && b->sink->downs.empty()) << "measuring is nobody's business";
  EXPECT_TRUE(a->sink->frames.empty() && b->sink->frames.empty());
}

TEST_F(Mixed, BothEndsAgreeAndBothWereMeasuredWhereTheyAreAlike) {
  make({}, {});
  bring_up(kJob);
  EXPECT_EQ(carriers(), std::set<std::string>{chosen(path_of_a())});
  EXPECT_EQ(chosen(path_of_a()), chosen(path_of_b()));
  for (const ports::PathCandidate& c : path_of_b().candidates) EXPECT_GT(c.bandwidth.value, 0u) << c.verdict;
}

TEST_F(Mixed, TakesTheOneThatThePeerHas) {
  make({}, {.better = false});
  bring_up(kJob);
  EXPECT_EQ(carriers(), std::set<std::string>{"tcp"});
  const ports::PathReport report = path_of_a();
  EXPECT_EQ(chosen(report), "tcp");
  EXPECT_THAT(report.candidates.at(0).verdict, HasSubstr("not measured: "));
  EXPECT_EQ(chosen(path_of_b()), "tcp");
}

TEST_F(Mixed, DecidesByCapabilityWhereNothingCanBeMeasured) {
  make({}, {});
  // It speaks TCP on both ports, and knows of no measuring.
  TransportKind plain = tcp_ipv4();
  b = std::make_unique<Host>(plain, HostIndex(1));
  RecordingSink second_sink;
  auto second = plain.make({}, static_cast<std::uint16_t>(b->data_port + kBetterOffset), second_sink);
  ASSERT_TRUE(second.ok());
  add_job(kJob);
  (*second)->add_job(credentials(HostIndex(1)));
  ASSERT_TRUE(connect(kJob, milliseconds(1500)).ok());
  ASSERT_TRUE(run([&] {
    (*second)->poll(clock.now());
    return a->sink->ups.size() == 3;
  }));
  EXPECT_EQ(carriers(), std::set<std::string>{"better"});
  EXPECT_EQ(chosen(path_of_a()), "better");
  EXPECT_EQ(path_of_a().measured, Time());
  EXPECT_THAT(path_of_a().candidates.at(0).verdict, HasSubstr("the most capable; none could be measured: "));
}

TEST_F(Mixed, LaterJobsUseTheFigures) {
  make({.better_pause = milliseconds(3)}, {.better_pause = milliseconds(3)});
  bring_up(kJob);
  const JobId later(99);
  add_job(later);
  const std::uint64_t before = b->transport->counters().accepted;
  bring_up(later);
  EXPECT_EQ(b->transport->counters().accepted - before, 3u) << "flows, and nothing else";
  EXPECT_EQ(carriers(later), std::set<std::string>{"tcp"});
  EXPECT_EQ(path_of_a(later).measured, path_of_a().measured);
  // Figures age.
  clock.skip(seconds(301));
  const JobId last(100);
  add_job(last);
  bring_up(last);
  EXPECT_GT(path_of_a(last).measured, path_of_a().measured);
}

TEST_F(Mixed, GoesOnWithTheNextOneWhereTheChosenOneHasGone) {
  make({.better_pause = milliseconds(3)}, {.better_pause = milliseconds(3)});
  bring_up(kJob);
  ASSERT_EQ(chosen(path_of_a()), "tcp");
  const std::uint16_t port = b->data_port;
  b->transport.reset();
  ASSERT_TRUE(run_until(clock, {a.get()}, [&] { return a->sink->downs.size() == 3; }));
  auto made = mixed_kind({.tcp = false}).make({}, port, *(b->sink = std::make_unique<RecordingSink>()));
  ASSERT_TRUE(made.ok());
  b->transport = std::move(made).value();
  const JobId later(99);
  add_job(later);
  bring_up(later, milliseconds(900));
  EXPECT_EQ(carriers(later), std::set<std::string>{"better"});
  EXPECT_EQ(chosen(path_of_a(later)), "better");
  EXPECT_THAT(path_of_a(later).candidates.at(1).verdict, HasSubstr("Connection refused"));
}

TEST_F(Mixed, AJobMayEndWhileItsPeersAreMeasured) {
  make({.better_pause = milliseconds(20)}, {.better_pause = milliseconds(20)});
  ASSERT_TRUE(connect(kJob).ok());
  EXPECT_EQ(
      a->transport->connect({kJob, HostIndex(1), kBulk}, "127.0.0.1", b->data_port, clock.now() + seconds(9)).code(),
      Code::kAlreadyExists);
  run_for(clock, {a.get(), b.get()}, std::chrono::milliseconds(50));
  ASSERT_TRUE(a->sink->ups.empty()) << "it is still measured";
  a->transport->close({kJob, HostIndex(1), kBulk});
  ASSERT_TRUE(run([&] { return a->sink->downs.size() == 1; }));
  a->transport->remove_job(kJob);
  ASSERT_TRUE(run([&] { return a->sink->downs.size() == 3; }));
  for (const auto& [flow, cause] : a->sink->downs) EXPECT_TRUE(cause.ok()) << cause.to_string();
  // Nothing of it is left: the same job comes again.
  add_job(kJob);
  bring_up(kJob);
  EXPECT_EQ(chosen(path_of_a()), chosen(path_of_b()));
}

TEST_F(Mixed, AJobThatEndsWhileItsPeersAreMeasuredTakesNoOtherWithIt) {
  make({.better_pause = milliseconds(20)}, {.better_pause = milliseconds(20)});
  const JobId other(99);
  add_job(other);
  ASSERT_TRUE(connect(kJob).ok());
  ASSERT_TRUE(connect(other).ok());
  run_for(clock, {a.get(), b.get()}, std::chrono::milliseconds(20));
  ASSERT_TRUE(a->sink->ups.empty()) << "both are still measured";
  a->transport->remove_job(kJob);
  ASSERT_TRUE(run([&] { return a->sink->downs.size() == 3 && all_up(other); }));
  for (const auto& [flow, cause] : a->sink->downs) EXPECT_EQ(flow.job, kJob);
}

// Nothing but poll() tells of the end of a flow that no member has.
TEST_F(Mixed, NobodySleepsOnTheEndOfAFlowThatWaits) {
  make({.better_pause = milliseconds(20)}, {.better_pause = milliseconds(20)});
  ASSERT_TRUE(connect(kJob).ok());
  ASSERT_TRUE(run([&] { return a->transport->arm(); }));
  ASSERT_TRUE(a->sink->ups.empty()) << "it is still measured";
  a->transport->close({kJob, HostIndex(1), kBulk});
  EXPECT_FALSE(a->transport->arm());
  a->transport->poll(clock.now());
  EXPECT_EQ(a->sink->downs.size(), 1u);
}

// A member whose flows come and go when the test says so.
class PlayedMember final : public ports::Transport {
 public:
  explicit PlayedMember(ports::FlowOwner& owner) : owner_(owner) {}
  void add_job(const ports::JobCredentials&) override {}
  void remove_job(JobId) override {}
  Status connect(const ports::FlowKey&, const std::string&, std::uint16_t, Time) override { return {}; }
  void close(const ports::FlowKey& flow) override { closing_.push_back(flow); }
  Bytes in_flight(ClassId) override { return {}; }
  std::size_t poll(Time) override {
    if (!slow) {
      for (const ports::FlowKey& flow : std::exchange(closing_, {})) owner_.on_flow_down(flow, {});
    }
    return 0;
  }
  int wake_fd() const override { return wake_.get(); }

  void up(const ports::FlowKey& flow) { owner_.on_flow_up(flow, flow_); }
  void down(const ports::FlowKey& flow) { owner_.on_flow_down(flow, {Code::kUnavailable, "it has gone", "", ""}); }
  bool slow = false;  // closing takes until it is not

 private:
  struct Nothing final : ports::Flow {
    bool writable() const override { return false; }
    void send(const ports::Outgoing&) override {}
    ports::FlowStats stats() const override { return {}; }
  };
  ports::FlowOwner& owner_;
  Nothing flow_;
  const handshake::Fd wake_{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  std::vector<ports::FlowKey> closing_;
};

// The end of the one that was not wanted is nobody's; that of the next one, over the same member, is.
TEST(MixedEnds, OfAFlowThatCameTooEarlyHidesNoOther) {
  std::vector<PlayedMember*> members;
  mixed::MixedConfig config{.classes = {kControlClass, kUrgent, kBulk}};
  for (const char* name : {"better", "tcp"}) {
    config.members.push_back({name, 0,
                              [&](ports::FlowOwner& owner) -> Result<std::unique_ptr<ports::Transport>> {
                                auto made = std::make_unique<PlayedMember>(owner);
                                members.push_back(made.get());
                                return std::unique_ptr<ports::Transport>(std::move(made));
                              },
                              [](const std::string&) { return Status(); }});
  }
  RecordingSink sink;
  auto made = mixed::make_mixed_transport(std::move(config), sink);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  ports::Transport& mixed = **made;
  PlayedMember &better = *members.at(0), &tcp = *members.at(1);
  const ports::FlowKey flow{kJob, HostIndex(0), kBulk};
  tcp.up(flow);
  tcp.slow = true;
  better.up(flow);  // while the old one cannot be closed at once
  EXPECT_EQ(sink.ups.size(), 1u);
  mixed.poll(Time(1));
  EXPECT_TRUE(sink.downs.empty()) << "nobody has heard of the flow that ends";
  tcp.slow = false;
  mixed.poll(Time(2));
  EXPECT_EQ(sink.downs.size(), 1u);
  better.up(flow);
  EXPECT_EQ(sink.ups.size(), 2u);
  better.down(flow);
  EXPECT_EQ(sink.downs.size(), 2u);
  EXPECT_FALSE(sink.up(flow));
}

}  // namespace
}  // namespace tensorlane::conformance
