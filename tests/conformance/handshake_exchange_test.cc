// The handshake of a transport whose exchange takes its time, at either end, over TCP and without a device: who waits
// for whom, for how long, and what is said in the end.
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/transport/handshake/connector.h"
#include "daemon/transport/handshake/listener.h"
#include "harness.h"

namespace tensorlane::conformance {
namespace {

using namespace std::chrono_literals;
using handshake::Connection;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::size_t kBytes = 8;

// What the exchanges of one end do, and have seen.
struct Script {
  Result<bool> may_answer = true, settled = true;
  Status delay;
  int made = 0, alive = 0, accepted = 0;
};

class ScriptedExchange final : public handshake::Exchange {
 public:
  explicit ScriptedExchange(Script& script) : script_(script) { ++script_.made, ++script_.alive; }
  ~ScriptedExchange() override { --script_.alive; }
  ScriptedExchange(const ScriptedExchange&) = delete;
  ScriptedExchange& operator=(const ScriptedExchange&) = delete;
  Result<std::vector<std::byte>> offer(std::span<const std::byte> /*peer*/) override {
    return std::vector<std::byte>(kBytes);
  }
  Status accept(std::span<const std::byte> /*peer*/) override {
    ++script_.accepted;
    return {};
  }
  Result<bool> may_answer() override { return script_.may_answer; }
  Result<bool> settled() override { return script_.settled; }
  Status delay() const override { return script_.delay; }

 private:
  Script& script_;
};

// A transport that is nothing but handshakes.
class End final : private handshake::ConnectorEvents {
 public:
  explicit End(HostIndex self)
      : connector(*this,
                  {kBytes, [this](const auto&, const auto&) { return std::make_unique<ScriptedExchange>(script); }}),
        self_(self) {}
  Status open(std::uint16_t port) {
    handshake::ConnectorConfig config{"test", "127.0.0.1", port, {}};
    for (const ClassSetup& c : three_classes()) config.listeners.push_back({c.tag, c.window});
    TL_RETURN_IF_ERROR(connector.open(config));
    add_job(kJob);
    return {};
  }
  void add_job(JobId job, Duration resume_within = {}) {
    ports::JobCredentials of = credentials(self_);
    of.job = job;
    of.resume_within = resume_within;
    connector.add_job(of);
  }
  void poll(Time now) {
    connector.begin(now);
    connector.waker().clear_kick();
    for (const epoll_event& event : connector.ready()) connector.serve(event);
    connector.run_deadlines();
    connector.end();
  }

  Script script;
  handshake::Connector connector;
  int connected = 0;
  std::optional<Status> given_up;

 private:
  void on_connected(Connection& connection) override {
    ++connected;
    connection.take_exchange();
    kept_.push_back(connection.take_socket());
  }
  void on_given_up(const ports::FlowKey& /*key*/, Status cause) override { given_up = std::move(cause); }

  const HostIndex self_;
  std::list<handshake::Fd> kept_;
};

class SlowExchange : public ::testing::Test {
 protected:
  void SetUp() override {
    // Ports that are free: those that a host which has gone again had.
    const std::uint16_t from = Host(tcp_ipv4(), HostIndex(0)).data_port;
    const std::uint16_t to = Host(tcp_ipv4(), HostIndex(1)).data_port;
    ASSERT_TRUE(a->open(from).ok());
    ASSERT_TRUE(b->open(to).ok());
    port = to;
  }
  void dial(Duration within = seconds(20)) {
    a->connector.begin(clock.now());
    ASSERT_TRUE(a->connector.dial(to_b, "127.0.0.1", port, clock.now() + within, false).ok());
  }
  bool run(const std::function<bool()>& done, std::chrono::milliseconds timeout = 10s) {
    const auto end = std::chrono::steady_clock::now() + timeout;
    while (!done()) {
      if (std::chrono::steady_clock::now() > end) return false;
      if (a) a->poll(clock.now());
      b->poll(clock.now());
    }
    return true;
  }
  bool both_connected() const { return a->connected == 1 && b->connected == 1; }

  TestClock clock;
  std::unique_ptr<End> a = std::make_unique<End>(HostIndex(0)), b = std::make_unique<End>(HostIndex(1));
  const ports::FlowKey to_b{kJob, HostIndex(1), kUrgent}, to_a{kJob, HostIndex(0), kUrgent};
  std::uint16_t port = 0;
};

TEST_F(SlowExchange, ThePeerGoesOnOnlyWhenTheAcceptingEndMayAnswer) {
  b->script.may_answer = false;
  dial();
  ASSERT_TRUE(run([&] { return b->script.accepted == 1; }));
  ASSERT_FALSE(run([&] { return a->script.accepted > 0; }, 100ms)) << "the verdict has come";
  b->script.may_answer = true;
  b->connector.settle(to_a);
  ASSERT_TRUE(run([&] { return both_connected(); }));
}

TEST_F(SlowExchange, TheConnectingEndIsReadyOnlyWhenItHasSettled) {
  a->script.settled = false;
  dial();
  ASSERT_TRUE(run([&] { return a->script.accepted == 1; }));
  ASSERT_FALSE(run([&] { return b->connected > 0; }, 100ms));
  a->script.settled = true;
  a->connector.settle(to_b);
  ASSERT_TRUE(run([&] { return both_connected(); }));
}

// For the connecting end the flow is up as soon as it has said that it is ready, however late; so the accepting one has
// to take that.
TEST_F(SlowExchange, TheAcceptingEndWaitsLongerThanTheConnectingOne) {
  b->script.may_answer = false;
  a->script.settled = false;
  dial();
  ASSERT_TRUE(run([&] { return b->script.accepted == 1; }));
  clock.skip(handshake::kAnswerTimeout);
  b->script.may_answer = true;
  b->connector.begin(clock.now());
  b->connector.settle(to_a);
  ASSERT_TRUE(run([&] { return a->script.accepted == 1; }));
  const Time late = clock.now() + (handshake::kHandshakeTimeout - handshake::kAnswerTimeout) + milliseconds(100);
  b->poll(late);
  EXPECT_EQ(b->script.alive, 1);
  a->script.settled = true;
  a->connector.settle(to_b);
  ASSERT_TRUE(run([&] { return both_connected(); }));
}

TEST_F(SlowExchange, APeerThatGoesWhileItIsToBeAnsweredIsNoticed) {
  b->script.may_answer = false;
  dial();
  ASSERT_TRUE(run([&] { return b->script.accepted == 1; }));
  LogCapture log;
  a.reset();
  ASSERT_TRUE(run([&] { return b->script.alive == 0; }));
  EXPECT_THAT(log.text(), HasSubstr("failed while waiting for this host's end of the transport's connection: closed by "
                                    "the peer"));
}

TEST_F(SlowExchange, AJobThatEndsBeforeTheAnswerIsNotAnswered) {
  b->script.may_answer = false;
  dial();
  ASSERT_TRUE(run([&] { return b->script.accepted == 1; }));
  b->connector.remove_job(kJob);
  b->script.may_answer = true;
  b->connector.settle(to_a);
  ASSERT_TRUE(run([&] { return a->given_up.has_value(); }));
  EXPECT_THAT(a->given_up->to_string(), HasSubstr("was refused by the peer: the job has ended on this host"));
  EXPECT_EQ(b->connected, 0);
}

TEST_F(SlowExchange, AJobThatEndsBeforeThePeerIsReadyHasNoFlow) {
  a->script.settled = false;
  dial();
  ASSERT_TRUE(run([&] { return a->script.accepted == 1; }));
  b->connector.remove_job(kJob);
  LogCapture log;
  a->script.settled = true;
  a->connector.settle(to_b);
  ASSERT_TRUE(run([&] { return b->script.alive == 0; }));
  EXPECT_EQ(b->connected, 0);
  EXPECT_THAT(log.text(), HasSubstr("was refused by this host: the job has ended on this host"));
}

// They have proved themselves, so they are not among those that a stranger's crowd could be.
TEST_F(SlowExchange, AnyNumberOfJobsOfOneHostIsWaitedFor) {
  constexpr int kJobs = static_cast<int>(handshake::kMaxUnauthenticatedPerAddress) + 10;
  b->script.may_answer = false;
  LogCapture log;
  std::vector<ports::FlowKey> flows;
  for (int i = 0; i < kJobs; ++i) {
    flows.push_back({JobId(kJob.value + 1 + static_cast<std::uint64_t>(i)), HostIndex(1), kUrgent});
    for (End* end : {a.get(), b.get()}) end->add_job(flows.back().job);
    a->connector.begin(clock.now());
    ASSERT_TRUE(a->connector.dial(flows.back(), "127.0.0.1", port, clock.now() + seconds(20), false).ok());
    ASSERT_TRUE(run([&] { return b->script.accepted > i; }));
  }
  EXPECT_EQ(b->script.alive, kJobs);
  b->script.may_answer = true;
  for (const ports::FlowKey& flow : flows) b->connector.settle({flow.job, HostIndex(0), kUrgent});
  ASSERT_TRUE(run([&] { return a->connected == kJobs && b->connected == kJobs; }));
  EXPECT_THAT(log.text(), Not(HasSubstr("was dropped")));
}

TEST_F(SlowExchange, OfOneFlowTheNewestIsWaitedFor) {
  b->script.may_answer = false;
  dial();
  ASSERT_TRUE(run([&] { return b->script.accepted == 1; }));
  // Its other self, which has not told anybody that it began anew.
  const std::unique_ptr<End> before = std::exchange(a, std::make_unique<End>(HostIndex(0)));
  const std::uint16_t from = Host(tcp_ipv4(), HostIndex(0)).data_port;
  ASSERT_TRUE(a->open(from).ok());
  dial();
  ASSERT_TRUE(run([&] { return b->script.accepted == 2; }));
  ASSERT_TRUE(run([&] { return b->script.alive == 1; }, 2s)) << "the older one waits until it is late";
  b->script.may_answer = true;
  b->connector.settle(to_a);
  ASSERT_TRUE(run([&] { return both_connected(); }));
}

TEST_F(SlowExchange, AnErrorOfTheAnswerIsTold) {
  b->script.may_answer = Status(Code::kUnavailable, "no way to 10.0.0.1", "rxe0", "look at the routes");
  dial();
  ASSERT_TRUE(run([&] { return a->given_up.has_value(); }));
  EXPECT_EQ(a->given_up->code(), Code::kMismatch);
  EXPECT_THAT(a->given_up->to_string(), HasSubstr("was refused by the peer: no way to 10.0.0.1: rxe0"));
}

// What is in the way is told early enough for the peer to hear it; the peer comes again until its deadline.
TEST_F(SlowExchange, WhatTheAnswerWaitsForIsTheCauseInTheEnd) {
  b->script.may_answer = false;
  b->script.delay = Status(Code::kInProgress, "cannot reach 10.0.0.1", "rxe0", "look there");
  LogCapture log;
  dial(seconds(12));
  for (int attempt = 1; attempt < 4; ++attempt) {
    ASSERT_TRUE(run([&] { return b->script.accepted == attempt; })) << attempt;
    clock.skip(handshake::kAnswerTimeout);
  }
  clock.skip(seconds(10));
  ASSERT_TRUE(run([&] { return a->given_up.has_value(); }));
  EXPECT_EQ(a->given_up->code(), Code::kTimedOut);
  EXPECT_THAT(a->given_up->to_string(),
              AllOf(HasSubstr("was refused by the peer: cannot reach 10.0.0.1: rxe0: look there"),
                    HasSubstr(", and so until the deadline")));
  EXPECT_THAT(log.text(), AllOf(HasSubstr("was refused by this host: cannot reach 10.0.0.1: rxe0")));
  EXPECT_EQ(b->script.alive, 0);
}

// However short the time is in which a flow must be resumed, and the attempts are with it.
TEST_F(SlowExchange, WhatTheAnswerWaitsForIsTheCauseWhenAFlowMustBeResumedSoon) {
  for (const Duration within : {seconds(1), seconds(4)}) {
    for (End* end : {a.get(), b.get()}) end->add_job(kJob, within);
    b->script.may_answer = false;
    b->script.delay = Status(Code::kInProgress, "cannot reach 10.0.0.1", "rxe0", "look there");
    a->connector.begin(clock.now());
    const Time now = clock.now();
    ASSERT_TRUE(a->connector.redial(to_b, "127.0.0.1", port, now, now + within).ok());
    ASSERT_TRUE(run([&] { return a->given_up.has_value(); }));
    EXPECT_THAT(std::exchange(a->given_up, std::nullopt)->to_string(),
                HasSubstr("was refused by the peer: cannot reach 10.0.0.1: rxe0: look there, and so until"));
  }
}

// While nothing is known to be in the way it may take all of the handshake's time.
TEST_F(SlowExchange, AnAnswerWithNothingInTheWayIsWaitedForUntilTheHandshakesDeadline) {
  b->script.may_answer = false;
  dial();
  ASSERT_TRUE(run([&] { return b->script.accepted == 1; }));
  clock.skip(handshake::kAnswerTimeout + seconds(1));
  ASSERT_FALSE(run([&] { return b->script.alive == 0; }, 100ms));
  b->script.delay = Status(Code::kInProgress, "cannot reach 10.0.0.1");
  ASSERT_TRUE(run([&] { return b->script.alive == 0; }, 2s)) << "it is not asked for again";
  b->script.delay = {};
  ASSERT_TRUE(run([&] { return b->script.accepted == 2; }));
  LogCapture log;
  clock.skip(handshake::kHandshakeTimeout);
  ASSERT_TRUE(run([&] { return b->script.accepted == 3; }));
  EXPECT_THAT(log.text(), HasSubstr("host's end of the transport's connection"));
}

TEST_F(SlowExchange, WhatTheConnectingEndWaitsForIsTheCauseInTheEnd) {
  a->script.settled = false;
  a->script.delay = Status(Code::kInProgress, "cannot reach 10.0.0.2", "rxe0", "look there");
  dial(seconds(3));
  ASSERT_TRUE(run([&] { return a->script.accepted == 1; }));
  LogCapture log;
  clock.skip(seconds(3));
  ASSERT_TRUE(run([&] { return a->given_up.has_value(); }));
  EXPECT_EQ(a->given_up->code(), Code::kTimedOut);
  EXPECT_THAT(a->given_up->to_string(),
              HasSubstr("failed: the transport's connection did not come in time: cannot reach 10.0.0.2: rxe0, and so "
                        "until the deadline: look there"));
  ASSERT_TRUE(run([&] { return b->script.alive == 0; }));
  EXPECT_THAT(log.text(), AllOf(HasSubstr("was refused by the peer: it was not ready in time"),
                                Not(HasSubstr("could not use this host's parameters"))));
}

}  // namespace
}  // namespace tensorlane::conformance
