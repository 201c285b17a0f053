// Who may come in, how many, with how much, and in what words.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "common/protocol/plan.h"
#include "context_guard.h"
#include "fake_daemon.h"
#include "open_daemon.h"
#include "process.h"
#include "raw_client.h"

namespace tensorlane::test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using namespace std::chrono_literals;
using protocol::MessageType;

std::string hello_error(FakeDaemon& daemon, const protocol::HelloBody& body) {
  RawClient client(daemon.socket());
  client.send(MessageType::kHello, 3, bytes_of(body));
  const auto answer = client.receive();
  EXPECT_TRUE(client.closed());
  return answer ? answer->error : "no answer";
}

TEST(Limits, AClientOfAnotherVersion) {
  FakeDaemon daemon;
  RawClient client(daemon.socket());
  const protocol::HelloBody body = hello("job");
  ASSERT_TRUE(client.send(MessageType::kHello, 1, bytes_of(body), protocol::kSessionVersion + 1));
  const auto answer = client.receive();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->code, Code::kVersionMismatch);
  EXPECT_EQ(answer->error,
            "the client library and the daemon have different versions: the client speaks session version " +
                std::to_string(protocol::kSessionVersion + 1) + ", the daemon " +
                std::to_string(protocol::kSessionVersion) + ": install the same release of both");
  EXPECT_TRUE(client.closed());
}

TEST(Limits, AnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become somebody else";
  constexpr uid_t kNobody = 65534;
  FakeDaemon daemon;
  Process stranger("session-client", {daemon.socket(), "job", "0", "1"}, kNobody);
  EXPECT_EQ(stranger.line(),
            "tl_init: this user may not use the daemon: uid 65534: add the uid to users of the daemon's "
            "configuration");
  EXPECT_EQ(stranger.wait(), 1);
  session::SessionConfig config;
  config.allowed_uids = {kNobody};
  FakeDaemon open_daemon(config);
  Process guest("session-client", {open_daemon.socket(), "job", "0", "1"}, kNobody);
  EXPECT_EQ(guest.line(), "ready");
}

TEST(Limits, AHelloThatCannotBe) {
  FakeDaemon daemon;
  protocol::HelloBody body = hello("job");
  body.rank = 5;
  EXPECT_EQ(hello_error(daemon, body), "cannot join: rank is 5: set RANK below the world size 1");
  body = hello("job");
  body.world_size = 0;
  EXPECT_THAT(hello_error(daemon, body), HasSubstr("world size is 0"));
  body = hello("job");
  body.local_world_size = 9;
  EXPECT_THAT(hello_error(daemon, body), HasSubstr("local world size is 9"));
  body = hello("job");
  body.world_size = body.local_world_size = 65;
  EXPECT_EQ(hello_error(daemon, body),
            "cannot join: local world size is 65, a host has at most 64 ranks of a job: start fewer processes on each "
            "host");
  body = hello("job");
  body.local_rank = 1;
  EXPECT_THAT(hello_error(daemon, body), HasSubstr("local rank is 1"));
  EXPECT_THAT(hello_error(daemon, hello("")), HasSubstr("the job has no name"));
  // Also where a terminal takes it for one ("ESC [" in a single character), and where a page of metrics would break.
  for (const char* name : {"a\x1b[31m", "a\xc2\x9b\x33\x31m", "\xff\xfe\xfd"}) {
    EXPECT_THAT(hello_error(daemon, hello(name)),
                HasSubstr("a name with a control character, or not in UTF-8: the job's name"));
  }
  body = hello("job");
  std::memset(body.job, 'x', sizeof body.job);
  EXPECT_THAT(hello_error(daemon, body), HasSubstr("a name without an end: the job's name"));
  body = hello("job");
  body.secret_bytes = 100000;
  EXPECT_THAT(hello_error(daemon, body), HasSubstr("a secret that is too long: 100000 bytes"));
  EXPECT_EQ(hello_error(daemon, hello("refused")), "the secret is wrong: job 'refused': set TENSORLANE_JOB_SECRET");
  EXPECT_TRUE(daemon.leaves(0).empty()) << "control never had them";
}

TEST(Limits, PacketsThatMakeNoSense) {
  FakeDaemon daemon;
  const auto error_of = [&](auto&& act, bool joined = false) {
    RawClient client(daemon.socket());
    if (joined) {
      EXPECT_TRUE(client.join("job"));
    }
    act(client);
    const auto answer = client.receive();
    EXPECT_TRUE(client.closed());
    return answer ? answer->error : "no answer";
  };
  const std::byte few[3] = {};
  EXPECT_THAT(error_of([&](RawClient& c) { c.send_bytes(few); }),
              HasSubstr("a packet shorter than its header: 3 bytes"));
  EXPECT_THAT(error_of([&](RawClient& c) { c.send(MessageType::kHello, 1, few, 1, 0xdeadbeef); }),
              HasSubstr("a packet of another protocol"));
  EXPECT_THAT(error_of([&](RawClient& c) { c.send(MessageType::kHello, 1, few); }),
              HasSubstr("a hello of the wrong length: 3 bytes"));
  EXPECT_THAT(error_of([&](RawClient& c) { c.send(MessageType::kArena, 1, few); }),
              HasSubstr("a message that does not belong here: type 4"));
  EXPECT_THAT(error_of([&](RawClient& c) { c.send(static_cast<MessageType>(77), 1, {}); }), HasSubstr("type 77"));
  EXPECT_THAT(error_of([&](RawClient& c) {
                const protocol::MessageHeader header{protocol::kSessionMagic, protocol::kSessionVersion,
                                                     MessageType::kHello, 1, 500};
                c.send_bytes(bytes_of(header));
              }),
              HasSubstr("a packet of the wrong length: 500 bytes announced, 0 sent"));
  EXPECT_THAT(error_of([&](RawClient& c) { c.send_bytes(std::vector<std::byte>(protocol::kMaxMessage + 1)); }),
              HasSubstr("a packet that is too long"));
  const auto body = hello("job");
  EXPECT_THAT(error_of([&](RawClient& c) { c.send(MessageType::kHello, 1, bytes_of(body)); }, true),
              HasSubstr("type 1"));
  EXPECT_THAT(error_of([&](RawClient& c) { c.send(MessageType::kRegister, 1, few); }, true),
              HasSubstr("a registration that is too short"));
  protocol::RegisterBody registration;
  std::strcpy(registration.group, "g");
  registration.count = 4000000000;
  EXPECT_THAT(error_of([&](RawClient& c) { c.send(MessageType::kRegister, 1, bytes_of(registration)); }, true),
              HasSubstr("a registration of the wrong length: 4000000000 tensors and 0 ranks in 0 bytes"));
}

TEST(Limits, TensorsThatCannotBe) {
  FakeDaemon daemon({}, {mib(512), mib(64)}, seconds(60));
  RawClient client(daemon.socket());
  ASSERT_TRUE(client.join("job"));
  const int arena = client.arena(1 << 20);
  ASSERT_TRUE(arena >= 0 && seal(arena));
  struct Packet {
    protocol::RegisterBody head;
    protocol::TensorBody tensor;
  } good;
  std::strcpy(good.head.group, "g");
  good.head.count = 1;
  std::strcpy(good.tensor.name, "x");
  good.tensor.elements = 16;
  good.tensor.positions = 1;
  const auto error_of = [&](auto&& change) {
    Packet packet = good;
    change(packet.tensor);
    EXPECT_TRUE(client.send(MessageType::kRegister, 8, bytes_of(packet)));
    const auto answer = client.receive();
    EXPECT_TRUE(answer && answer->header.request == 8u);
    return answer ? answer->error : "no answer";
  };
  using Tensor = protocol::TensorBody;
  EXPECT_EQ(error_of([](Tensor& t) { t.elements = 0; }),
            "tensor 'x' cannot be registered: elements is 0: give a tensor at least one element");
  EXPECT_EQ(error_of([](Tensor& t) { t.elements = std::uint64_t{1} << 33; }),
            "tensor 'x' cannot be registered: elements is 8589934592: split it: the limit is 4294967296");
  EXPECT_THAT(error_of([](Tensor& t) { t.elements = 1 << 19; }),
              HasSubstr("not inside segment 0 of its arenas (offset 0, 2097152 bytes)"));
  EXPECT_THAT(error_of([](Tensor& t) { t.offset = (1 << 20) - 32; }), HasSubstr("align buffers to 64 bytes"));
  EXPECT_THAT(error_of([](Tensor& t) { t.offset = ~std::uint64_t{63}; }), HasSubstr("not inside segment 0"));
  EXPECT_THAT(error_of([](Tensor& t) { t.segment = 1; }), HasSubstr("not inside segment 1"));
  EXPECT_THAT(error_of([](Tensor& t) { t.root = 1; }), HasSubstr("root is 1"));
  EXPECT_THAT(error_of([](Tensor& t) { t.dtype = static_cast<Dtype>(200); }), HasSubstr("dtype is 200"));
  EXPECT_THAT(error_of([](Tensor& t) { t.operation = static_cast<Operation>(11); }), HasSubstr("operation is 11"));
  EXPECT_THAT(error_of([](Tensor& t) { t.reduce = static_cast<ReduceOp>(5); }), HasSubstr("reduction is 5"));
  EXPECT_THAT(error_of([](Tensor& t) {
                t.dtype = Dtype::kUint8;
                t.reduce = ReduceOp::kAverage;
              }),
              HasSubstr("reduction is average of uint8: use sum, and divide"));
  EXPECT_THAT(error_of([](Tensor& t) {
                t.operation = Operation::kReduceScatter;
                t.row = 3;
              }),
              HasSubstr("row is 3: a reducescatter's divides its elements"));
  EXPECT_THAT(error_of([](Tensor& t) { t.row = 2; }), HasSubstr("row is 2"));
  EXPECT_THAT(error_of([](Tensor& t) { t.positions = 0; }), HasSubstr("position is 0"));
  EXPECT_THAT(error_of([](Tensor& t) {
                t.explicit_urgency = 1;
                t.urgency = std::numeric_limits<float>::quiet_NaN();
              }),
              HasSubstr("urgency is nan"));
  EXPECT_THAT(error_of([](Tensor& t) { t.urgency = std::numeric_limits<float>::infinity(); }),
              HasSubstr("urgency is inf"))
      << "also where layer order decides";
  EXPECT_THAT(error_of([](Tensor& t) { t.pattern = 1 + static_cast<std::uint8_t>(protocol::Pattern::kWholeServer); }),
              HasSubstr("pattern is 5: use a tl_pattern_t"));
  EXPECT_THAT(error_of([](Tensor& t) {
                t.operation = Operation::kPush;
                t.pattern = 1 + static_cast<std::uint8_t>(protocol::Pattern::kTree);
              }),
              HasSubstr("pattern is 4: a push and its pull are cut in one way"));
  EXPECT_THAT(error_of([](Tensor& t) { t.name[0] = '\0'; }), HasSubstr("a tensor without a name"));
  EXPECT_EQ(error_of([](Tensor&) {}), "") << "the session is none the worse";
}

TEST(Limits, TooManySessions) {
  session::SessionConfig config;
  config.max_sessions = 2;
  FakeDaemon daemon(config);
  ClientContext a(daemon.socket(), "a"), b(daemon.socket(), "b");
  ClientContext c(daemon.socket(), "c");
  EXPECT_EQ(c.status(), TL_ERROR_RESOURCE_EXHAUSTED);
  EXPECT_EQ(
      c.error(),
      "sessions over the daemon's limit: 1 needed, 2 of max_sessions = 2 in use: raise max_sessions or end other jobs");
  EXPECT_EQ(a.leave(), TL_OK);
  const auto until = std::chrono::steady_clock::now() + 5s;
  while (daemon.server().sessions() > 1 && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(2ms);
  ClientContext d(daemon.socket(), "d");
  EXPECT_EQ(d.status(), TL_OK) << d.error();
}

TEST(Limits, ConnectionsThatSayNothing) {
  session::SessionConfig config;
  config.max_pending = 8;
  config.hello_timeout = milliseconds(400);
  FakeDaemon daemon(config);
  std::vector<std::unique_ptr<RawClient>> silent;
  for (int i = 0; i < 8; ++i) silent.push_back(std::make_unique<RawClient>(daemon.socket()));
  RawClient one_more(daemon.socket());
  const auto refused = one_more.receive();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(
      refused->error,
      "connections that have not said hello over the daemon's limit: 1 needed, 8 of max_pending = 8 in use: raise "
      "max_pending or try again in a few seconds");
  const auto answer = silent[3]->receive(3000);
  ASSERT_TRUE(answer.has_value());
  EXPECT_THAT(answer->error, StartsWith("no hello: 0."));
  for (auto& client : silent) EXPECT_TRUE(client->closed(3000));
  ClientContext context(daemon.socket());
  EXPECT_EQ(context.status(), TL_OK) << context.error();
}

TEST(Limits, AQuestionMayTakeLongerThanAHello) {
  session::SessionConfig config;
  config.hello_timeout = milliseconds(200);
  config.socket_path = fresh_socket();
  memory::ArenaPool pool(std::make_shared<memory::MemoryBudget>(memory::MemoryLimits{mib(64), mib(64)}));
  session::SessionServer server(config, pool);
  OpenControl control;
  control.server = &server;
  ASSERT_TRUE(server.start(control).ok());
  RawClient client(config.socket_path);
  const auto ask = [&](std::size_t bytes) {
    const std::string question(bytes, 'q');
    return client.send(MessageType::kAsk, 5, std::as_bytes(std::span(question)));
  };
  ASSERT_TRUE(ask(protocol::kMaxQuestion));
  ASSERT_TRUE(ask(1));
  auto answer = client.receive(3000);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->error, "a question of this session is under way: wait for its answer first");
  std::this_thread::sleep_for(800ms);
  EXPECT_EQ(control.questions, 1);
  control.server->status(control.asked, 5, "the answer");
  answer = client.receive(3000);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->error, "");
  EXPECT_TRUE(client.closed(3000)) << "once it has its answer it is to say hello";
  RawClient liar(config.socket_path);
  const std::string too_long(protocol::kMaxQuestion + 1, 'q');
  ASSERT_TRUE(liar.send(MessageType::kAsk, 5, std::as_bytes(std::span(too_long))));
  answer = liar.receive(3000);
  ASSERT_TRUE(answer.has_value());
  EXPECT_THAT(answer->error, HasSubstr("a question of the wrong length"));
  server.stop();
}

// A socket at this path on which nobody accepts yet.
int listening_socket(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(listen(fd, 16), 0);
  return fd;
}

// Its hello lies unread in the socket that the daemon closes.
TEST(Limits, AClientThatIsRefusedBeforeItIsHeardReadsWhy) {
  session::SessionConfig config;
  config.socket_path = fresh_socket();
  config.listen_fd = listening_socket(config.socket_path);
  config.max_pending = 1;
  RawClient silent(config.socket_path), refused(config.socket_path);
  const protocol::HelloBody body = hello("job");
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(refused.send(MessageType::kHello, 1, bytes_of(body)));
  FakeDaemon daemon(config);
  const auto answer = refused.receive();
  ASSERT_TRUE(answer.has_value());
  EXPECT_THAT(answer->error, HasSubstr("connections that have not said hello over the daemon's limit"));
  EXPECT_TRUE(refused.closed());
  unlink(config.socket_path.c_str());
  EXPECT_EQ(daemon.server().refused(), 1u);
}

TEST(Limits, ArenasOverTheBudgets) {
  session::SessionConfig config;
  config.arena_per_session = mib(128);
  FakeDaemon daemon(config, {mib(200), mib(16)});
  ClientContext a(daemon.socket(), "a"), b(daemon.socket(), "b");
  void* memory = nullptr;
  EXPECT_EQ(tl_alloc(a, 129 << 20, &memory), TL_ERROR_RESOURCE_EXHAUSTED);
  EXPECT_STREQ(tl_last_error(),
               "arenas over the limit of one session: 129 MiB needed, 0 MiB of arena_limit = 128 MiB in "
               "use: raise "
               "arena_limit or register less");
  ASSERT_EQ(tl_alloc(a, 128 << 20, &memory), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_alloc(b, 100 << 20, &memory), TL_ERROR_RESOURCE_EXHAUSTED);
  EXPECT_STREQ(tl_last_error(),
               "memory over the daemon's limit: 100 MiB needed, 131 MiB of memory_limit = 200 MiB in use: "
               "raise memory_limit or "
               "register less");
  EXPECT_EQ(tl_alloc(b, 8 << 20, &memory), TL_OK) << "less does fit: " << tl_last_error();
  EXPECT_EQ(tl_alloc(b, 60 << 20, &memory), TL_ERROR_RESOURCE_EXHAUSTED);
  EXPECT_EQ(a.leave(), TL_OK);
  const auto until = std::chrono::steady_clock::now() + 5s;
  while (daemon.pool().in_use() > mib(100) && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(2ms);
  EXPECT_EQ(tl_alloc(b, 60 << 20, &memory), TL_OK) << "given back: " << tl_last_error();
}

// What waits for its turn counts, too.
TEST(Limits, ArenasThatAreAskedForAtOnce) {
  session::SessionConfig config;
  config.arena_per_session = mib(128);
  FakeDaemon daemon(config, {mib(1024), mib(16)}, seconds(60));
  RawClient client(daemon.socket());
  ASSERT_TRUE(client.join("job"));
  protocol::ArenaBody body;
  body.bytes = 100 << 20;
  for (std::uint32_t request = 1; request <= 4; ++request)
    ASSERT_TRUE(client.send(MessageType::kArena, request, bytes_of(body)));
  int granted = 0;
  for (int i = 0; i < 4; ++i) {
    const auto answer = client.receive();
    ASSERT_TRUE(answer.has_value());
    for (const int fd : answer->fds) close(fd);
    if (answer->error.empty()) ++granted;
    if (!answer->error.empty()) {
      EXPECT_THAT(answer->error, HasSubstr("arenas over the limit of one session: 100 MiB needed, 100 MiB of "));
    }
  }
  EXPECT_EQ(granted, 1);
}

TEST(Limits, StatusesThatNobodyReadsOn) {
  FakeDaemon daemon({}, {mib(512), mib(64)}, seconds(60));
  daemon.set_status(std::string(protocol::kMaxStatus, ' '));
  const auto ask = [](RawClient& client) {
    const protocol::StatusBody first{};
    EXPECT_TRUE(client.send(MessageType::kStatus, 1, bytes_of(first)));
    const auto answer = client.receive(20000);
    return answer ? answer->error : "no answer";
  };
  std::vector<std::unique_ptr<RawClient>> clients;
  std::string error;
  for (int i = 0; i < 6 && error.empty(); ++i) {
    clients.push_back(std::make_unique<RawClient>(daemon.socket()));
    ASSERT_TRUE(clients.back()->join("job" + std::to_string(i)));
    error = ask(*clients.back());
  }
  EXPECT_THAT(error, HasSubstr("pages of status reports over the daemon's limit"));
  EXPECT_THAT(error, ::testing::EndsWith("read those that were asked for"))
      << "no advice to raise what cannot be raised";
  EXPECT_GT(clients.size(), 2u);
  const auto end = std::chrono::steady_clock::now() + 30s;
  while (!error.empty() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(100ms);
    error = ask(*clients.back());
  }
  EXPECT_EQ(error, "") << "those that nobody has read on for a while are gone";
}

// The sessions end, the client keeps what it has mapped: it is the client's until it lets go, and the next one is
// refused.
TEST(Limits, MemoryThatAClientKeepsStaysItsOwn) {
  constexpr std::uint64_t kBytes = 8 << 20;
  FakeDaemon daemon({}, {mib(20), mib(64)});
  std::vector<void*> kept;
  const auto take_one = [&] {
    RawClient client(daemon.socket());
    if (!client.join("job")) return false;
    const int fd = client.arena(kBytes);
    if (fd < 0) return false;
    kept.push_back(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    close(fd);
    return true;
  };
  const auto eventually_in_use = [&](Bytes least, Bytes most) {
    const auto end = std::chrono::steady_clock::now() + 20s;
    const auto good = [&] { return daemon.pool().in_use() >= least && daemon.pool().in_use() <= most; };
    while (!good() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(20ms);
    return good();
  };
  EXPECT_TRUE(take_one() && take_one());
  EXPECT_FALSE(take_one());
  EXPECT_TRUE(eventually_in_use(mib(16), mib(17))) << daemon.pool().in_use().value;
  EXPECT_EQ(daemon.pool().leftovers(), 2u);
  std::this_thread::sleep_for(1500ms);
  EXPECT_FALSE(take_one());
  for (void* mapping : kept) munmap(mapping, kBytes);
  EXPECT_TRUE(eventually_in_use(Bytes(), Bytes())) << daemon.pool().in_use().value << ": though nobody is connected";
  EXPECT_TRUE(take_one());
  munmap(kept.back(), kBytes);
}

TEST(Limits, TheSocket) {
  FakeDaemon daemon;
  memory::ArenaPool pool(memory::MemoryLimits{});
  session::SessionConfig config;
  config.socket_path = daemon.socket();
  Status status = session::SessionServer(config, pool).start(daemon);
  EXPECT_EQ(status.code(), Code::kAlreadyExists);
  EXPECT_EQ(status.to_string(),
            "cannot serve sessions: another daemon serves " + daemon.socket() + ": stop it or set socket");
  config.socket_path = std::string(108, 'x');
  EXPECT_THAT(session::SessionServer(config, pool).start(daemon).to_string(),
              HasSubstr("has 108 bytes, 1 to 107 are possible"));
  config.socket_path = "/nonexistent-folder/x.sock";
  EXPECT_THAT(session::SessionServer(config, pool).start(daemon).to_string(), HasSubstr("No such file or directory"));
  config.socket_path = fresh_socket();
  { std::ofstream(config.socket_path) << "a file"; }
  EXPECT_THAT(session::SessionServer(config, pool).start(daemon).to_string(), HasSubstr("exists and is not a socket"));
  unlink(config.socket_path.c_str());
  // A socket that a dead daemon left behind is taken over.
  {
    Process dead("session-daemon", {config.socket_path, "1000"});
    ASSERT_EQ(dead.line(), "ready");
  }
  EXPECT_TRUE(std::filesystem::is_socket(config.socket_path));
  {
    session::SessionServer server(config, pool);
    EXPECT_TRUE(server.start(daemon).ok());
  }
  EXPECT_FALSE(std::filesystem::exists(config.socket_path));
}

TEST(Limits, ASocketFromTheServiceManager) {
  session::SessionConfig first;
  first.socket_path = fresh_socket();
  first.listen_fd = listening_socket(first.socket_path);
  {
    FakeDaemon daemon(first);
    ClientContext context(daemon.socket());
    EXPECT_EQ(context.status(), TL_OK) << context.error();
  }
  EXPECT_TRUE(std::filesystem::exists(first.socket_path)) << "it belongs to the service manager";
  unlink(first.socket_path.c_str());
}

TEST(Limits, NoDaemonAndWrongSettings) {
  ClientContext nobody("/tmp/tensorlane-nobody.sock", "job", 0, 2);
  EXPECT_EQ(nobody.status(), TL_ERROR_UNAVAILABLE);
  EXPECT_EQ(nobody.error(),
            "no daemon to speak to: connect to /tmp/tensorlane-nobody.sock: No such file or directory: start the "
            "program by 'tensorlane run -n RANKS -- PROGRAM', which starts daemons, too, or a daemon by 'tensorlaned "
            "--config daemon.yaml', or set TENSORLANE_SOCKET to the socket of one");
  setenv("RANK", "three", 1);
  tl_context_t* context = nullptr;
  EXPECT_EQ(tl_init(nullptr, &context), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(tl_last_error(), "the configuration is wrong: RANK is 'three': set it to a number from 0 to 65536");
  setenv("RANK", "2", 1);
  setenv("WORLD_SIZE", "2", 1);
  EXPECT_EQ(tl_init(nullptr, &context), TL_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(tl_last_error(), "the configuration is wrong: rank (RANK) is '2': set it below the world size 2");
  unsetenv("RANK");
  unsetenv("WORLD_SIZE");
  tl_config_t config = TL_CONFIG_INIT;
  config.version = 9;
  EXPECT_EQ(tl_init(&config, &context), TL_ERROR_VERSION_MISMATCH);
  EXPECT_EQ(context, nullptr);
}

TEST(Limits, TheEnvironmentFillsIn) {
  FakeDaemon daemon;
  setenv("RANK", "0", 1);
  setenv("WORLD_SIZE", "1", 1);
  setenv("TENSORLANE_SOCKET", daemon.socket().c_str(), 1);
  setenv("TORCHELASTIC_RUN_ID", "refused", 1);
  tl_context_t* context = nullptr;
  EXPECT_EQ(tl_init(nullptr, &context), TL_ERROR_PERMISSION_DENIED) << "the job's name is the run's";
  setenv("TENSORLANE_JOB", "mine", 1);
  ASSERT_EQ(tl_init(nullptr, &context), TL_OK) << tl_last_error();
  EXPECT_EQ(tl_finalize(context), TL_OK);
  tl_config_t config = TL_CONFIG_INIT;
  config.job = "refused";
  EXPECT_EQ(tl_init(&config, &context), TL_ERROR_PERMISSION_DENIED) << "the program comes before the environment";
  for (const char* name : {"RANK", "WORLD_SIZE", "TENSORLANE_SOCKET", "TORCHELASTIC_RUN_ID", "TENSORLANE_JOB"})
    unsetenv(name);
}

TEST(Limits, AJobThatDoesNotComeTogether) {
  FakeDaemon daemon;
  const auto start = std::chrono::steady_clock::now();
  ClientContext alone(daemon.socket(), "job", 0, 2, 0.3);
  EXPECT_EQ(alone.status(), TL_ERROR_TIMED_OUT);
  EXPECT_THAT(alone.error(), StartsWith("job 'job' has not come together: not all 2 ranks have joined"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 4s);
  EXPECT_THAT(daemon.leaves(1), testing::SizeIs(1));
}

std::size_t open_descriptors() {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator()));
}

// Of rings and arenas, in the daemon's and the client's place.
std::size_t mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("memfd:tensorlane") != std::string::npos ? 1 : 0;
  return count;
}

// Once no more of them go: the server's sockets are closed a moment after their sessions.
std::size_t settled_descriptors() {
  std::size_t before = 0, now = open_descriptors();
  do {
    before = now;
    std::this_thread::sleep_for(100ms);
    now = open_descriptors();
  } while (now != before);
  return now;
}

TEST(Limits, FiveHundredSessionsLeaveNothing) {
  FakeDaemon daemon;
  std::size_t descriptors = 0;
  for (int i = 0; i < 500; ++i) {
    if (i % 5 != 0) {
      RawClient client(daemon.socket());  // goes without goodbye
      ASSERT_TRUE(client.join("raw"));
      const int fd = client.arena(1 << 16);
      ASSERT_GE(fd, 0);
      close(fd);
    } else {
      RawClient client(daemon.socket());
      ASSERT_TRUE(client.join("raw"));
      ASSERT_TRUE(client.send(MessageType::kGoodbye, 4, {}));
      const auto answer = client.receive();
      ASSERT_TRUE(answer && answer->header.type == MessageType::kGoodbye);
    }
    ASSERT_GE(daemon.leaves(static_cast<std::size_t>(i) + 1).size(), static_cast<std::size_t>(i) + 1);
    if (i != 50 && i != 499) continue;
    const auto until = std::chrono::steady_clock::now() + 5s;
    const auto some = [&] { return daemon.server().sessions() > 0 || daemon.pool().in_use().value > 0; };
    while (some() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(2ms);
    ASSERT_EQ(daemon.server().sessions(), 0u);
    EXPECT_EQ(daemon.pool().in_use().value, 0u);
    if (i == 50) descriptors = settled_descriptors();
  }
  EXPECT_EQ(settled_descriptors(), descriptors);
  EXPECT_EQ(mappings(), 0u);
}

}  // namespace
}  // namespace tensorlane::test
