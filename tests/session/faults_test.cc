// Clients that die, hang or write rubbish cost themselves their session; a daemon that dies or hangs fails its clients.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "context_guard.h"
#include "fake_daemon.h"
#include "process.h"
#include "raw_client.h"

namespace tensorlane::test {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Another job on the same daemon: works() after each fault shows that it has not noticed.
class Neighbour {
 public:
  explicit Neighbour(FakeDaemon& daemon) : context_(daemon.socket(), "neighbour") {}
  bool works() {
    float x[8] = {1};
    tl_request_t* request = nullptr;
    return context_.status() == TL_OK &&
           tl_allreduce(context_, "x", x, x, 8, TL_FLOAT32, TL_SUM, nullptr, &request) == TL_OK &&
           tl_wait(request, 5) == TL_OK && x[0] == 2;
  }

 private:
  ClientContext context_;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool sessions_become(FakeDaemon& daemon, std::uint32_t count) {
  const auto until = Clock::now() + 5s;
  while (daemon.server().sessions() != count && Clock::now() < until) std::this_thread::sleep_for(5ms);
  return daemon.server().sessions() == count;
}

TEST(Faults, AKilledClientIsNamed) {
  FakeDaemon daemon;
  Neighbour neighbour(daemon);
  daemon.hold_after(1);
  Process client("session-client", {daemon.socket(), "victim", "0", "1"});
  ASSERT_EQ(client.line(), "ready");
  const auto start = Clock::now();
  client.signal(SIGKILL);
  const std::vector<Status> leaves = daemon.leaves(1);
  ASSERT_EQ(leaves.size(), 1u);
  EXPECT_LT(seconds_since(start), 2.0);
  EXPECT_EQ(leaves[0].code(), Code::kUnavailable);
  EXPECT_THAT(leaves[0].what(),
              HasSubstr("rank 0 (pid " + std::to_string(client.pid()) + ") of job 'victim' was killed"));
  daemon.set_mode(Mode::kRun);
  EXPECT_TRUE(neighbour.works());
  EXPECT_TRUE(sessions_become(daemon, 1));
}

TEST(Faults, AClientThatClosesIsNamed) {
  FakeDaemon daemon;
  {
    RawClient client(daemon.socket());
    ASSERT_TRUE(client.join("job"));
  }
  const std::vector<Status> leaves = daemon.leaves(1);
  ASSERT_EQ(leaves.size(), 1u);
  EXPECT_EQ(leaves[0].what(),
            "rank 0 (pid " + std::to_string(getpid()) + ") of job 'job' closed its session without goodbye");
}

TEST(Faults, AStoppedClientIsFoundInTheDetectionTime) {
  FakeDaemon daemon({}, {mib(512), mib(64)}, milliseconds(1000));
  Neighbour neighbour(daemon);
  daemon.hold_after(1);
  Process client("session-client", {daemon.socket(), "victim", "0", "2"});
  Process peer("session-client", {daemon.socket(), "victim", "1", "2"});
  ASSERT_EQ(client.line(), "ready");
  ASSERT_EQ(peer.line(), "ready");
  const auto start = Clock::now();
  client.signal(SIGSTOP);
  const std::vector<Status> leaves = daemon.leaves(1);
  ASSERT_EQ(leaves.size(), 1u);
  EXPECT_GT(seconds_since(start), 0.6);
  EXPECT_LT(seconds_since(start), 4.0);
  EXPECT_EQ(leaves[0].code(), Code::kTimedOut);
  EXPECT_THAT(leaves[0].to_string(),
              HasSubstr("rank 0 (pid " + std::to_string(client.pid()) + ") of job 'victim' has not been heard for "));
  EXPECT_THAT(leaves[0].to_string(), HasSubstr("check whether the process is stopped"));
  daemon.set_mode(Mode::kRun);
  EXPECT_TRUE(neighbour.works());
  const std::vector<Status> all = daemon.leaves(1);
  for (std::size_t i = 1; i < all.size(); ++i)
    EXPECT_TRUE(all[i].ok()) << "nobody else was taken for hung: " << all[i].to_string();
}

constexpr memory::MemoryLimits kLimits{mib(512), mib(64)};

// What a client may write into its ring page, and what comes of it.
struct Rubbish {
  const char* name;
  void (*write)(RawClient&);
  const char* text;
};

class RingRubbish : public testing::TestWithParam<Rubbish> {};

TEST_P(RingRubbish, EndsTheSessionAlone) {
  FakeDaemon daemon({}, kLimits, seconds(60));  // raw clients do not say that they live
  Neighbour neighbour(daemon);
  RawClient client(daemon.socket());
  ASSERT_TRUE(client.join("victim"));
  GetParam().write(client);
  (void)!write(client.wake_fd(), "\1\0\0\0\0\0\0\0", 8);
  const std::vector<Status> leaves = daemon.leaves(1);
  ASSERT_EQ(leaves.size(), 1u);
  EXPECT_EQ(leaves[0].code(), Code::kCorrupt);
  EXPECT_THAT(leaves[0].to_string(), HasSubstr(GetParam().text));
  EXPECT_THAT(leaves[0].to_string(), HasSubstr("of job 'victim'"));
  const auto answer = client.receive();
  ASSERT_TRUE(answer.has_value());
  EXPECT_THAT(answer->error, HasSubstr(GetParam().text));
  EXPECT_TRUE(client.closed());
  EXPECT_TRUE(neighbour.works());
  EXPECT_TRUE(sessions_become(daemon, 1));
}

// Registers one tensor. What the daemon answers.
std::optional<Answer> register_tensor(RawClient& client, const char* name, std::uint64_t elements,
                                      Operation operation = Operation::kAllreduce) {
  EXPECT_TRUE(
      client.send(protocol::MessageType::kRegister, 5, bytes_of(registration_of_one(name, elements, operation))));
  return client.receive();
}

// A barrier, so that there is something to complete.
void register_barrier(RawClient& client) {
  const auto answer = register_tensor(client, "b", 0, Operation::kBarrier);
  ASSERT_TRUE(answer && answer->header.type == protocol::MessageType::kRegistered);
}

// A client that looks at no completion hears of parts while half of its ring is free; what must be said has room.
TEST(RingOfCompletions, PartsInPlaceLeaveRoom) {
  session::SessionConfig config;
  config.ring_entries = 8;
  FakeDaemon daemon(config, kLimits, seconds(60));
  RawClient client(daemon.socket());
  ASSERT_TRUE(client.join("victim"));
  register_barrier(client);
  for (int i = 0; i < 20; ++i) daemon.put_in_place("victim", "b", {0, 1}, 0);
  EXPECT_EQ(client.page().completed, 4U);
  client.page().consumed = 1;
  for (int i = 0; i < 20; ++i) daemon.put_in_place("victim", "b", {0, 1}, 0);
  EXPECT_EQ(client.page().completed, 5U);
}

INSTANTIATE_TEST_SUITE_P(
    Faults, RingRubbish,
    testing::Values(Rubbish{"SubmittedTooFar", [](RawClient& c) { c.page().submitted = c.entries() + 1; },
                            "an impossible index in the submission ring"},
                    Rubbish{"SubmittedBackwards", [](RawClient& c) { c.page().submitted = ~0U; },
                            "an impossible index in the submission ring"},
                    Rubbish{"ConsumedAhead",
                            [](RawClient& c) {
                              register_barrier(c);
                              c.page().consumed = 1000;
                              c.submissions()[0] = {0, 0, 1};
                              c.page().submitted = 1;
                            },
                            "an impossible index in the completion ring"},
                    Rubbish{"NeverConsumes",
                            [](RawClient& c) {
                              register_barrier(c);
                              // One operation more than the completion ring holds, and nobody reads the completions.
                              for (std::uint32_t i = 0; i <= c.entries(); ++i) {
                                while (i - c.page().taken.load() >= c.entries()) std::this_thread::yield();
                                c.submissions()[i % c.entries()] = {0, 0, i + 1};
                                c.page().submitted = i + 1;
                                if (c.page().daemon_sleeping.load() != 0)
                                  (void)!write(c.wake_fd(), "\1\0\0\0\0\0\0\0", 8);
                              }
                            },
                            "an impossible index in the completion ring"},
                    Rubbish{"PunchesItsRings",
                            [](RawClient& c) {
                              ASSERT_EQ(
                                  fallocate(c.ring_fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1 << 16, 1 << 16),
                                  0);
                            },
                            "took memory out of its arenas"},
                    Rubbish{"PunchesItsArena",
                            [](RawClient& c) {
                              const int fd = c.arena(1 << 20);
                              ASSERT_GE(fd, 0);
                              EXPECT_EQ(ftruncate(fd, 0), -1) << "sealed";
                              ASSERT_EQ(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1 << 20), 0);
                              close(fd);
                            },
                            "took memory out of its arenas"}),
    [](const auto& info) { return info.param.name; });

// Entries, waiters, beats, the futex, everything: nothing but the session may suffer.
TEST(Faults, ScribblingOverTheWholeRingMemory) {
  FakeDaemon daemon({}, kLimits, seconds(60));  // raw clients do not say that they live
  Neighbour neighbour(daemon);
  for (unsigned seed = 1; seed <= 20; ++seed) {
    RawClient client(daemon.socket());
    ASSERT_TRUE(client.join("victim" + std::to_string(seed)));
    unsigned state = seed;
    auto* words = reinterpret_cast<std::uint32_t*>(&client.page());
    for (std::size_t i = 0; i < protocol::ring_memory_bytes(client.entries()) / 4; ++i) {
      state = state * 1664525 + 1013904223;
      __atomic_store_n(words + i, state, __ATOMIC_RELAXED);
    }
    (void)!write(client.wake_fd(), "\1\0\0\0\0\0\0\0", 8);
    ASSERT_TRUE(neighbour.works()) << seed;
  }
  EXPECT_TRUE(sessions_become(daemon, 1));
}

// A hole under an operation would be filled again by the daemon's own hands, and nobody would see it.
TEST(Faults, NoHolesUnderTheDaemonsHands) {
  FakeDaemon daemon({}, kLimits, seconds(60));  // raw clients do not say that they live
  Neighbour neighbour(daemon);
  RawClient client(daemon.socket());
  ASSERT_TRUE(client.join("victim"));
  constexpr std::size_t kPage = 4096;
  const int fd = client.arena(kPage);
  ASSERT_GE(fd, 0);
  void* memory = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_TRUE(seal(fd));
  auto* x = static_cast<float*>(memory);
  std::fill_n(x, kPage / sizeof(float), 3.0F);
  daemon.set_mode(Mode::kHold);
  ASSERT_TRUE(register_tensor(client, "x", kPage / sizeof(float)).has_value());
  client.submissions()[0] = {0, 0, 1};
  client.page().submitted = 1;
  (void)!write(client.wake_fd(), "\1\0\0\0\0\0\0\0", 8);
  ASSERT_TRUE(daemon.wait_submitted(1));
  EXPECT_EQ(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kPage), -1);
  EXPECT_EQ(madvise(memory, kPage, MADV_REMOVE), -1);
  EXPECT_EQ(mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  daemon.set_mode(Mode::kRun);
  const auto until = Clock::now() + 10s;
  while (client.page().completed == 0 && Clock::now() < until) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(x[7], 6.0F);
  EXPECT_EQ(daemon.server().sessions(), 2u);
  EXPECT_TRUE(neighbour.works());
  munmap(memory, kPage);
  close(fd);
}

TEST(Faults, AnArenaThatIsNotSealedTakesNoTensor) {
  FakeDaemon daemon({}, kLimits, seconds(60));  // raw clients do not say that they live
  RawClient client(daemon.socket());
  ASSERT_TRUE(client.join("careless"));
  const int fd = client.arena(1 << 20);
  ASSERT_GE(fd, 0);
  const auto refused = register_tensor(client, "x", 16);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code, Code::kCorrupt);
  EXPECT_THAT(refused->error, HasSubstr("an arena that its client has not sealed"));
  ASSERT_TRUE(seal(fd));
  const auto taken = register_tensor(client, "x", 16);
  ASSERT_TRUE(taken.has_value());
  EXPECT_EQ(taken->error, "");
  close(fd);
}

// It is looked at once more when a tensor is registered, not only ten times a second.
TEST(Faults, AHoleIsSeenBeforeATensorIsRegistered) {
  FakeDaemon daemon({}, kLimits, seconds(60));  // raw clients do not say that they live
  RawClient client(daemon.socket());
  ASSERT_TRUE(client.join("victim"));
  const int fd = client.arena(1 << 20);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  ASSERT_TRUE(seal(fd));
  const auto answer = register_tensor(client, "x", 16);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->code, Code::kCorrupt);
  EXPECT_THAT(answer->error, HasSubstr("took memory out of its arenas"));
  close(fd);
}

TEST(Faults, AClientThatDoesNotReadItsSocketIsDropped) {
  FakeDaemon daemon({}, kLimits, seconds(60));  // raw clients do not say that they live
  Neighbour neighbour(daemon);
  RawClient client(daemon.socket());
  ASSERT_TRUE(client.join("victim"));
  ASSERT_EQ(fcntl(client.fd(), F_SETFL, O_NONBLOCK), 0);
  const protocol::ArenaBody body{0, 0, 0};  // each is answered with an error of 2 KiB
  const auto until = Clock::now() + 10s;
  while (Clock::now() < until && daemon.server().sessions() == 2) {
    if (!client.send(protocol::MessageType::kArena, 9, bytes_of(body))) std::this_thread::sleep_for(1ms);
  }
  const std::vector<Status> leaves = daemon.leaves(1);
  ASSERT_EQ(leaves.size(), 1u);
  EXPECT_THAT(leaves[0].to_string(), HasSubstr("does not read its session's socket"));
  EXPECT_TRUE(neighbour.works());
}

TEST(Faults, ADeadDaemonFailsItsClientsAtOnce) {
  const std::string socket = fresh_socket();
  Process daemon("session-daemon", {socket, "1000"});
  ASSERT_EQ(daemon.line(), "ready");
  ClientContext context(socket);
  ASSERT_EQ(context.status(), TL_OK) << context.error();
  float* x = context.floats(16);
  tl_request_t* request = nullptr;
  ASSERT_EQ(tl_allreduce(context, "x", x, x, 16, TL_FLOAT32, TL_SUM, nullptr, &request), TL_OK);
  ASSERT_EQ(tl_wait(request, 5), TL_OK);
  ASSERT_EQ(tl_allreduce(context, "x", x, x, 16, TL_FLOAT32, TL_SUM, nullptr, &request), TL_OK);
  std::thread killer([&] {
    std::this_thread::sleep_for(100ms);
    daemon.signal(SIGKILL);
  });
  const auto start = Clock::now();
  EXPECT_EQ(tl_wait(request, -1), TL_ERROR_UNAVAILABLE);
  EXPECT_LT(seconds_since(start), 4.0);
  EXPECT_THAT(tl_last_error(), HasSubstr("the daemon closed the session: " + socket));
  killer.join();
  EXPECT_EQ(tl_allreduce(context, "x", x, x, 16, TL_FLOAT32, TL_SUM, nullptr, &request), TL_ERROR_UNAVAILABLE);
  EXPECT_EQ(tl_barrier(context, -1), TL_ERROR_UNAVAILABLE);
  void* memory = nullptr;
  EXPECT_EQ(tl_alloc(context, std::size_t{1} << 28, &memory), TL_ERROR_UNAVAILABLE);
  EXPECT_EQ(context.leave(), TL_ERROR_UNAVAILABLE);
  unlink(socket.c_str());
}

TEST(Faults, AStoppedDaemonFailsItsClientsInTheDetectionTime) {
  const std::string socket = fresh_socket();
  Process daemon("session-daemon", {socket, "1000"});
  ASSERT_EQ(daemon.line(), "ready");
  ClientContext context(socket);
  ASSERT_EQ(context.status(), TL_OK) << context.error();
  float* x = context.floats(16);
  tl_request_t* request = nullptr;
  ASSERT_EQ(tl_allreduce(context, "x", x, x, 16, TL_FLOAT32, TL_SUM, nullptr, &request), TL_OK);
  ASSERT_EQ(tl_wait(request, 5), TL_OK);
  daemon.signal(SIGSTOP);
  ASSERT_EQ(tl_allreduce(context, "x", x, x, 16, TL_FLOAT32, TL_SUM, nullptr, &request), TL_OK);
  const auto start = Clock::now();
  EXPECT_EQ(tl_wait(request, 30), TL_ERROR_ABORTED);
  EXPECT_GT(seconds_since(start), 0.6);
  EXPECT_LT(seconds_since(start), 4.0);
  EXPECT_THAT(tl_last_error(), HasSubstr("the daemon has not been heard for "));
  EXPECT_THAT(tl_last_error(), HasSubstr("check whether tensorlaned is stopped"));
  EXPECT_EQ(context.leave(), TL_ERROR_ABORTED);
  unlink(socket.c_str());
}

TEST(Faults, AStoppingDaemonSaysSo) {
  auto daemon = std::make_unique<FakeDaemon>();
  daemon->set_mode(Mode::kHold);
  ClientContext context(daemon->socket());
  float* x = context.floats(16);
  tl_request_t* request = nullptr;
  ASSERT_EQ(tl_allreduce(context, "x", x, x, 16, TL_FLOAT32, TL_SUM, nullptr, &request), TL_OK);
  ASSERT_TRUE(daemon->wait_submitted(1));
  daemon.reset();
  EXPECT_EQ(tl_wait(request, -1), TL_ERROR_UNAVAILABLE);
  EXPECT_THAT(tl_last_error(), HasSubstr("the daemon is shutting down"));
}

}  // namespace
}  // namespace tensorlane::test
