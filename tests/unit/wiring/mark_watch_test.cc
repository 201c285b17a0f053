// Marks are looked at over real connections on loopback: a host that says how they came, and one that says what it
// likes.
#include "daemon/wiring/mark_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "common/probe/answerer.h"
#include "common/probe/session.h"

namespace tensorlane::wiring {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr const char* kPeer = "127.0.0.2";

// Listens on so many ports in a row and answers every probe with one DSCP.
class Liar {
 public:
  Liar(std::uint16_t port, int ports, std::uint8_t dscp) : dscp_(dscp) {
    for (int i = 0; i < ports; ++i) {
      const probe::Address at = *probe::Address::parse(kPeer, static_cast<std::uint16_t>(port + i));
      const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      const int yes = 1;
      ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
      EXPECT_EQ(::bind(fd, at.get(), at.length), 0);
      EXPECT_EQ(::listen(fd, 8), 0);
      threads_.emplace_back([this, fd] { serve(fd); });
      listeners_.push_back(fd);
    }
  }
  ~Liar() {
    for (const int fd : listeners_) ::shutdown(fd, SHUT_RDWR);
    for (std::thread& thread : threads_) thread.join();
    for (const int fd : listeners_) ::close(fd);
  }

 private:
  void serve(int listener) {
    for (int fd = 0; (fd = ::accept(listener, nullptr, nullptr)) >= 0; ::close(fd)) {
      probe::Hello hello;
      if (::recv(fd, &hello, sizeof hello, MSG_WAITALL) != sizeof hello) continue;
      probe::Answer answer;
      answer.dscp = dscp_;
      answer.nonce = hello.nonce;
      EXPECT_EQ(::send(fd, &answer, sizeof answer, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof answer));
    }
  }

  const std::uint8_t dscp_;
  std::vector<int> listeners_;
  std::vector<std::thread> threads_;
};

class MarkWatchTest : public ::testing::Test {
 protected:
  MarkWatchTest() {
    fabric_.classes = fabric::preset(fabric::Preset::kGreenfield);
    for (const char* name : {"self", "peer"}) {
      fabric::Host host;
      host.name = name;
      host.addresses["tcp"] = {host.name == "peer" ? kPeer : "127.0.0.1"};
      host.data_port = static_cast<std::uint16_t>(20000 + ::getpid() % 8000);
      fabric_.hosts.push_back(std::move(host));
    }
  }
  MarkWatch::Parts parts(MarkWatch::Ask ask, Duration every = Duration(0)) {
    return {&fabric_, "self", fabric_.classes, every, &tokens_, std::move(ask)};
  }
  const fabric::Host& peer() const { return fabric_.hosts[1]; }

  // As the peer's daemon: its listeners answer the token that it is told.
  MarkWatch::Ask honest() {
    return [this](const std::string& host, const std::string& kind, const json& args, Duration, ports::Answered done) {
      EXPECT_EQ(host, "peer");
      EXPECT_EQ(kind, "marks");
      probe::Token token{};
      ASSERT_TRUE(probe::parse_token(args["token"].get<std::string>(), &token));
      answerer_ = std::make_unique<probe::Answerer>(token, nullptr);
      for (std::uint16_t i = 0; i < 3; ++i)
        EXPECT_EQ(answerer_->listen_at({kPeer, static_cast<std::uint16_t>(peer().data_port + i), {}}), 0);
      answerer_->start();
      done(std::string("{}"));
    };
  }
  static MarkWatch::Ask says_yes() {
    return [](const std::string&, const std::string&, const json&, Duration, const ports::Answered& done) {
      done(std::string("{}"));
    };
  }

  fabric::Fabric fabric_;
  ports::ProbeTokens tokens_;
  std::unique_ptr<probe::Answerer> answerer_;
};

TEST_F(MarkWatchTest, CountsMarksThatArriveAsSent) {
  MarkWatch watch(parts(honest()));
  watch.look_at(peer());
  ASSERT_THAT(watch.counts(), SizeIs(3));
  for (const auto& [cls, counts] : watch.counts()) {
    EXPECT_EQ(counts.kept, 1u) << cls;
    EXPECT_EQ(counts.changed + counts.not_known, 0u) << cls;
  }
  EXPECT_THAT(watch.describe()["changed"], IsEmpty());
  for (const telemetry::ExtraFamily& family : watch.metrics()) {
    EXPECT_EQ(family.label, "class");
    for (const auto& [cls, value] : family.read()) EXPECT_EQ(value, family.name == "marks_kept_total" ? 1 : 0) << cls;
  }
}

TEST_F(MarkWatchTest, NamesWhatArrivesWithAnotherMarkUntilItDoesNot) {
  const std::uint8_t of_bulk = fabric_.classes.data.back().dscp;
  MarkWatch watch(parts(says_yes()));
  {
    const Liar liar(peer().data_port, 3, of_bulk);
    watch.look_at(peer());
    watch.look_at(peer());
  }
  for (const auto& [cls, counts] : watch.counts()) {
    EXPECT_EQ(counts.changed, cls == "bulk" ? 0u : 2u) << cls;
    EXPECT_EQ(counts.kept, cls == "bulk" ? 2u : 0u) << cls;
  }
  const json changed = watch.describe()["changed"];
  ASSERT_THAT(changed, SizeIs(2));
  EXPECT_EQ(changed[1], (json{{"peer", "peer"}, {"rail", 0}, {"class", "urgent"}, {"arrived_dscp", of_bulk}}));
  {
    const Liar liar(peer().data_port, 3, fabric_.classes.data.front().dscp);
    watch.look_at(peer());
  }
  EXPECT_THAT(watch.describe()["changed"], SizeIs(2)) << "now of control and bulk";
  EXPECT_EQ(watch.describe()["changed"][0]["class"], "bulk");
}

TEST_F(MarkWatchTest, WhatDoesNotArriveIsNotKnown) {
  MarkWatch watch(parts(says_yes()));
  watch.look_at(peer());  // nothing listens there
  const Liar liar(peer().data_port, 3, probe::kUnknown);
  watch.look_at(peer());
  for (const auto& [cls, counts] : watch.counts()) {
    EXPECT_EQ(counts.not_known, 2u) << cls;
    EXPECT_EQ(counts.kept + counts.changed, 0u) << cls;
  }
}

TEST_F(MarkWatchTest, AHostThatDoesNotAnswerIsNotProbed) {
  MarkWatch watch(parts([](const auto&, const auto&, const auto&, Duration, const ports::Answered& done) {
    done(Status(Code::kUnavailable, "its daemon could not be reached"));
  }));
  watch.look_at(peer());
  for (const auto& [cls, counts] : watch.counts()) EXPECT_EQ(counts.kept + counts.changed + counts.not_known, 0u);
}

TEST_F(MarkWatchTest, LooksAgainAndAgainAndStopsAtOnce) {
  std::atomic<int> asked = 0;
  MarkWatch watch(parts([&](const auto&, const auto&, const auto&, Duration, const ports::Answered&) { ++asked; },
                        milliseconds(20)));
  watch.start();
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (asked == 0 && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_GE(asked, 1);
  const auto begin = std::chrono::steady_clock::now();
  watch.stop();  // although nobody has answered
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
}

TEST_F(MarkWatchTest, OnlyOperatorsGetAnAnswerAndOnlyForATime) {
  MarkWatch watch(parts(says_yes()));
  const auto answer = [&](std::uint32_t uid, const std::string& args) {
    Status said;
    watch.answer({uid, "peer", false, {}, args}, [&](const Result<std::string>& text) { said = text.status(); });
    return said;
  };
  const probe::Token token{1, 2, 3};
  const std::string args = json{{"token", probe::token_text(token)}}.dump();
  EXPECT_EQ(answer(1000, args).code(), Code::kPermissionDenied);
  for (const char* wrong : {"", "[]", "{}", R"({"token": 5})", R"({"token": "00"})"})
    EXPECT_EQ(answer(0, wrong).code(), Code::kInvalidArgument) << wrong;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const Time at(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
  EXPECT_FALSE(tokens_.take(token, at));
  EXPECT_TRUE(answer(0, args).ok());
  EXPECT_TRUE(tokens_.take(token, at));
  EXPECT_FALSE(tokens_.take(token, at + seconds(60)));
}

}  // namespace
}  // namespace tensorlane::wiring
