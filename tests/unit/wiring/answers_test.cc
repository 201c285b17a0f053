// What a daemon answers to `tensorlane verify` and `tensorlane explain`, and to whom.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <set>
#include <thread>

#include "common/json/json.h"
#include "common/probe/exchange.h"
#include "common/probe/socket.h"
#include "daemon/lane/clocks.h"
#include "daemon/wiring/job_report.h"
#include "daemon/wiring/probing.h"

namespace tensorlane::wiring {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class AnswersTest : public ::testing::Test {
 protected:
  AnswersTest() : folder_(std::filesystem::temp_directory_path() / fmt::format("tl-answers-{}", getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~AnswersTest() override { std::filesystem::remove_all(folder_); }

  static Result<std::string> said(const ports::Answerer& answerer, const json& args, std::vector<JobId> jobs = {}) {
    std::promise<Result<std::string>> answer;
    answerer({0, "h0", true, std::move(jobs), args.dump()},
             [&answer](Result<std::string> one) { answer.set_value(std::move(one)); });
    return answer.get_future().get();
  }

  static ports::Answerer of(Probing& probing) {
    return [&probing](const ports::Question& question, ports::Answered done) {
      probing.answer(question, std::move(done));
    };
  }
  // Of a daemon of one host.
  config::DaemonConfig load_config() const {
    std::ofstream(folder_ / "fabric.yaml")
        << "classes: greenfield\nhosts:\n  - {name: h0, addresses: {tcp: 127.0.0.1}, "
           "public_key: \"rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7\"}\n";
    std::ofstream(folder_ / "daemon.yaml") << "fabric: fabric.yaml\nhost: h0\n";
    return config::load((folder_ / "daemon.yaml").string()).value();
  }
  // A shell's, in the place of tensorlane-probe.
  std::string write_program(const std::string& text) const {
    const std::string path = folder_ / "tensorlane-probe";
    std::ofstream(path) << "#!/bin/sh\n" << text << "\n";
    EXPECT_EQ(chmod(path.c_str(), 0700), 0);
    return path;
  }
  static ports::ProbeTokens::Token token() {  // kListen's
    ports::ProbeTokens::Token token{};
    token.fill(0x11);
    return token;
  }

  const json kListen{{"do", "listen"}, {"token", std::string(32, '1')}};
  const std::string kSaysDone = R"(echo '{"kind": "done"}')", kDone = "while read line; do " + kSaysDone + "; done";
  const std::string kDoneOrGone = "while read line; do case \"$line\" in *go*) exit;; esac; " + kSaysDone + "; done";
  ports::ProbeTokens tokens_;
  const std::filesystem::path folder_;
};

// A session is its own: others neither use it nor end it, and what it was given ends with it.
TEST_F(AnswersTest, ProbesAreOfOneSessionAtATime) {
  const std::string program = folder_ / "tensorlane-probe";
  std::ofstream(program) << "#!/bin/sh\nwhile read line; do echo '{\"kind\": \"done\"}'; done\n";
  ASSERT_EQ(chmod(program.c_str(), 0700), 0);
  ports::ProbeTokens tokens;
  Probing probing({program, [] { return false; }, &tokens, fabric::ClassTable()});
  const ports::Answerer answerer = [&](const ports::Question& question, ports::Answered done) {
    probing.answer(question, std::move(done));
  };
  ports::ProbeTokens::Token token{};
  token.fill(0x11);
  const json listen{{"do", "listen"}, {"token", std::string(32, '1')}};
  const json first{{"session", "first"}, {"commands", {listen}}}, second{{"session", "second"}, {"commands", {listen}}};
  const auto end = [](const char* session) { return json{{"session", session}, {"end", true}}; };
  EXPECT_TRUE(said(answerer, first).ok());
  EXPECT_TRUE(tokens.take(token, Time(0)));
  EXPECT_THAT(said(answerer, second).status().to_string(), HasSubstr("another tensorlane verify is under way"));
  EXPECT_THAT(said(answerer, second).status().fix(), HasSubstr("one that was killed ends in a minute"));
  EXPECT_TRUE(said(answerer, end("second")).ok());
  EXPECT_TRUE(tokens.take(token, Time(0))) << "the first one goes on";
  EXPECT_THAT(said(answerer, second).status().to_string(), HasSubstr("another tensorlane verify is under way"));
  EXPECT_TRUE(said(answerer, end("first")).ok());
  EXPECT_FALSE(tokens.take(token, Time(0)));
  EXPECT_THAT(said(answerer, first).status().to_string(), HasSubstr("this session of tensorlane verify has ended"));
  EXPECT_TRUE(said(answerer, second).ok());
}

TEST_F(AnswersTest, TokensOfASessionPushNoOthersOut) {
  const std::string program = folder_ / "tensorlane-probe";
  std::ofstream(program) << "#!/bin/sh\nwhile read line; do echo '{\"kind\": \"done\"}'; done\n";
  ASSERT_EQ(chmod(program.c_str(), 0700), 0);
  ports::ProbeTokens tokens;
  const ports::ProbeTokens::Token others{};
  tokens.allow(others, Time(1), 10);  // the first to go where there are too many
  Probing probing({program, [] { return false; }, &tokens, fabric::ClassTable()});
  const ports::Answerer answerer = [&](const ports::Question& question, ports::Answered done) {
    probing.answer(question, std::move(done));
  };
  json commands = json::array();
  for (int i = 0; i < 40; ++i) commands.push_back({{"do", "listen"}, {"token", fmt::format("{:032x}", i + 1)}});
  ASSERT_TRUE(said(answerer, {{"session", "many"}, {"commands", commands}}).ok());
  EXPECT_TRUE(tokens.take(others, Time(0)));
  ports::ProbeTokens::Token last{};
  last.back() = 40;
  EXPECT_TRUE(tokens.take(last, Time(0)));
}

// Whatever the program says, the daemon lives and passes it on.
TEST_F(AnswersTest, AProgramThatProbesMaySayAnything) {
  const std::string program = folder_ / "tensorlane-probe";
  std::ofstream(program) << "#!/bin/sh\nwhile read line; do echo '{\"kind\": 5}'; echo '{\"kind\": [\"done\"]}'; "
                            "echo '{\"kind\": null}'; echo rubbish; echo '[]'; echo '{\"kind\": \"done\"}'; done\n";
  ASSERT_EQ(chmod(program.c_str(), 0700), 0);
  ports::ProbeTokens tokens;
  std::vector<RailTransport> rails(2);
  rails[0].name = "dpdk", rails[1].name = "local, rdma, tcp";
  Probing probing({program, [] { return false; }, &tokens, fabric::preset(fabric::Preset::kGreenfield), &rails});
  const ports::Answerer answerer = [&](const ports::Question& question, ports::Answered done) {
    probing.answer(question, std::move(done));
  };
  const Result<std::string> lines = said(answerer, {{"session", "s"}, {"commands", {json{{"do", "describe"}}}}});
  ASSERT_TRUE(lines.ok()) << lines.status().to_string();
  const json own = json::parse(lines->substr(0, lines->find('\n')));
  EXPECT_EQ(own["kind"], "daemon");
  ASSERT_EQ(own["classes"].size(), 3u);
  EXPECT_EQ(own["classes"][1], (json{{"name", "urgent"}, {"dscp", 43}, {"pcp", 5}, {"lossless", true}}));
  EXPECT_EQ(own["transports"], (json{{"dpdk"}, {"local", "rdma", "tcp"}}));
  EXPECT_THAT(*lines, HasSubstr("rubbish"));
}

// A lane hands connections over while sessions begin and end, and while the program goes.
TEST_F(AnswersTest, BurstsGoToTheProgramAsLongAsThereIsOne) {
  const std::string program = folder_ / "tensorlane-probe";
  std::ofstream(program) << "#!/bin/sh\nwhile read line; do case \"$line\" in *go*) exit;; esac; echo '{\"kind\": "
                            "\"done\"}'; done\n";
  ASSERT_EQ(chmod(program.c_str(), 0700), 0);
  ports::ProbeTokens tokens;
  Probing probing({program, [] { return false; }, &tokens, fabric::ClassTable()});
  const ports::Answerer answerer = [&](const ports::Question& question, ports::Answered done) {
    probing.answer(question, std::move(done));
  };
  ports::ProbeTokens::Token token{};
  token.fill(0x11);
  using Handed = ports::ProbeTokens::Handed;
  std::array<std::atomic<std::uint64_t>, 3> seen{};
  std::atomic<bool> stops = false;
  const probe::Socket some(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  std::thread lane([&] {
    const std::array<std::byte, sizeof(probe::Hello)> hello{};
    while (!stops) {
      ++seen[static_cast<std::size_t>(tokens.hand_over(token, Time(0), some.fd(), hello))];
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });
  // Until one more has been handed over with that outcome.
  const auto wait_for = [&](Handed outcome) {
    const auto& count = seen[static_cast<std::size_t>(outcome)];
    const std::uint64_t before = count;
    for (int tries = 0; tries < 5000 && count == before; ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_GT(count, before) << static_cast<int>(outcome);
  };
  const json listen{{"do", "listen"}, {"token", std::string(32, '1')}};
  for (int round = 0; round < 5; ++round) {
    const std::string session = "s" + std::to_string(round);
    wait_for(Handed::kUnknown);
    const std::uint64_t in_vain = seen[static_cast<std::size_t>(Handed::kNobody)];
    EXPECT_TRUE(said(answerer, {{"session", session}, {"commands", {listen}}}).ok());
    wait_for(Handed::kTaken);
    if (round % 2 == 0) {
      EXPECT_FALSE(said(answerer, {{"session", session}, {"commands", {json{{"do", "go"}}}}}).ok());
      wait_for(Handed::kNobody);
    }
    EXPECT_TRUE(said(answerer, {{"session", session}, {"end", true}}).ok());
    if (round % 2 != 0) {
      EXPECT_EQ(seen[static_cast<std::size_t>(Handed::kNobody)], in_vain) << "the token goes first";
    }
  }
  stops = true;
  lane.join();
  EXPECT_EQ(tokens.answered(), seen[static_cast<std::size_t>(Handed::kTaken)]);
}

// However a session ends, the daemon has as many descriptors as before.
TEST_F(AnswersTest, NoDescriptorOfASessionStays) {
  Probing probing({write_program(kDoneOrGone), [] { return false; }, &tokens_, fabric::ClassTable()});
  const ports::Answerer answerer = of(probing);
  const auto open_descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  const auto before = open_descriptors();
  for (const char* session : {"a", "b", "c"}) {
    EXPECT_TRUE(said(answerer, {{"session", session}, {"commands", {kListen}}}).ok());
    EXPECT_GT(open_descriptors(), before);
    if (*session == 'b') {
      EXPECT_FALSE(said(answerer, {{"session", session}, {"commands", {json{{"do", "go"}}}}}).ok());
    }
    EXPECT_TRUE(said(answerer, {{"session", session}, {"end", true}}).ok());
    EXPECT_EQ(open_descriptors(), before) << session;
  }
}

// Where the program has gone and nobody has ended the session, the next one does.
TEST_F(AnswersTest, TheNextSessionTakesNothingOver) {
  Probing probing({write_program(kDoneOrGone), [] { return false; }, &tokens_, fabric::ClassTable()});
  const ports::Answerer answerer = of(probing);
  EXPECT_TRUE(said(answerer, {{"session", "first"}, {"commands", {kListen}}}).ok());
  const Status gone = said(answerer, {{"session", "first"}, {"commands", {json{{"do", "go"}}}}}).status();
  EXPECT_THAT(gone.to_string(), HasSubstr("tensorlane-probe has ended: look at the daemon's log"));
  EXPECT_TRUE(tokens_.take(token(), Time(0))) << "other hosts may still ask for marks";
  const json listen{{"do", "listen"}, {"token", std::string(32, '2')}};
  EXPECT_TRUE(said(answerer, {{"session", "second"}, {"commands", {listen}}}).ok());
  EXPECT_FALSE(tokens_.take(token(), Time(0)));
}

// Ten minutes after the last question, if nobody says that the session has ended.
TEST_F(AnswersTest, ATokenEndsByItself) {
  Probing probing({write_program(kDone), [] { return false; }, &tokens_, fabric::ClassTable()});
  EXPECT_TRUE(said(of(probing), {{"session", "s"}, {"commands", {kListen}}}).ok());
  EXPECT_TRUE(tokens_.take(token(), lane::clock_now() + seconds(500)));
  EXPECT_FALSE(tokens_.take(token(), lane::clock_now() + seconds(601)));
}

// A job that begins meanwhile stops the probes, and not the end of the session.
TEST_F(AnswersTest, BesideAJobASessionEndsAndDoesNotGoOn) {
  std::atomic<bool> job = false;
  Probing probing({write_program(kDone), [&] { return job.load(); }, &tokens_, fabric::ClassTable()});
  const ports::Answerer answerer = of(probing);
  const json question{{"session", "s"}, {"commands", {kListen}}};
  json beside = question;
  beside["beside_jobs"] = true;
  EXPECT_TRUE(said(answerer, question).ok());
  job = true;
  EXPECT_THAT(said(answerer, question).status().to_string(), HasSubstr("a job runs on this host"));
  EXPECT_TRUE(said(answerer, beside).ok());
  EXPECT_TRUE(said(answerer, {{"session", "s"}, {"end", true}}).ok());
  EXPECT_FALSE(tokens_.take(token(), Time(0)));
}

// Neither are a host's other ports scanned, nor those taken that its programs may want.
TEST_F(AnswersTest, ProbesAreOfDataPortsAlone) {
  const fabric::Fabric fabric = fabric::parse(
                                    "hosts:\n  - {name: h0, addresses: {tcp: 10.0.0.1}}\n  - {name: h1, addresses: "
                                    "{tcp: 10.0.0.2}, data_port: 8110}\n",
                                    "fabric.yaml", fabric::Keys::kOptional)
                                    .value();
  Probing probing({.program = write_program(kDone),
                   .has_jobs = [] { return false; },
                   .tokens = &tokens_,
                   .ports = ProbePorts(fabric, "h0")});
  const auto refused = [&](const char* what, const char* list, const json& port) {
    json item{{"address", "10.0.0.1"}};
    if (!port.is_null()) item["port"] = port;
    const json command{{"do", what}, {"token", std::string(32, '1')}, {list, {json{{"port", 7110U}}, item}}};
    const Status answer = said(of(probing), {{"session", "s"}, {"commands", {command}}}).status();
    EXPECT_TRUE(answer.ok() || answer.what().ends_with("is no data port of the fabric that this daemon has read"));
    return !answer.ok();
  };
  for (const json& port : {json(7110U), json(7111U), json(7118U)}) EXPECT_FALSE(refused("listen", "sockets", port));
  for (const json& port : {json(7109U), json(7119U), json(8110U), json(29511U), json("7110"), json(-1), json()})
    EXPECT_TRUE(refused("listen", "sockets", port)) << port;
  for (const auto& [what, list] : {std::pair("probe", "flows"), {"sweep", "flows"}, {"load", "bursts"}}) {
    for (const json& port : {json(7110U), json(8110U), json(8118U)}) EXPECT_FALSE(refused(what, list, port));
    for (const json& port : {json(22U), json(7100U), json(8119U), json()}) EXPECT_TRUE(refused(what, list, port));
  }
}

// A program that hangs is given up when the asker's patience ends, and not more questions than a few wait for it.
TEST_F(AnswersTest, AProgramThatHangsIsGivenUp) {
  Probing probing({write_program("exec sleep 60"), [] { return false; }, &tokens_, fabric::ClassTable()});
  json question{{"session", "s"}, {"commands", {kListen}}, {"patience_ms", 200U}};
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(said(of(probing), question).status().code(), Code::kTimedOut);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  question["patience_ms"] = 60'000U;
  std::atomic<int> refused = 0;
  for (int i = 0; i < 40; ++i)
    probing.answer({0, "h0", true, {}, question.dump()}, [&](Result<std::string> one) {
      refused += one.status().code() == Code::kResourceExhausted ? 1 : 0;
    });
  EXPECT_GE(refused, 40 - 17);  // one may be under way
  EXPECT_LT(refused, 40 - 15);
  probing.stop();
}

TEST_F(AnswersTest, AReportIsOfAJobThatTheAskerMaySee) {
  const config::DaemonConfig config = load_config();
  ports::LaneMetrics metrics;
  const auto job = std::make_shared<ports::JobMetrics>();
  job->id = JobId(42);
  job->name = "train";
  job->ranks = std::vector<ports::JobMetrics::PerRank>(1);
  job->ranks[0].blocked_ns.add(5);
  job->ranks[0].stream_waits.add(3);
  job->ranks[0].process.set(static_cast<std::uint64_t>(getpid()));
  job->ranks[0].waiter.set(static_cast<std::uint64_t>(gettid()));
  metrics.job_list.add(job);
  metrics.flows.up(RailIndex(0), {JobId(42), HostIndex(1), ClassId(0)}, {.transport = "rdma"});
  metrics.rails[0].bytes_sent[0].add(10);
  metrics.rails[0].bytes_sent[1].add(100);
  metrics.rails[0].bytes_received[0].add(7);
  metrics.rails[0].bytes_received[1].add(70);
  const JobReport report({config, metrics});
  EXPECT_THAT(said(answerer(report), {{"job_id", 42U}}).status().to_string(), HasSubstr("no such job of yours"));
  EXPECT_FALSE(said(answerer(report), {{"job_id", 42U}}, {JobId(41)}).ok());
  const Result<std::string> text = said(answerer(report), {{"job_id", 42U}}, {JobId(42)});
  ASSERT_TRUE(text.ok()) << text.status().to_string();
  const json read = json::parse(*text);
  EXPECT_EQ(read["job"], "train");
  EXPECT_EQ(read["ranks"][0]["blocked_ns"], 5);
  EXPECT_EQ(read["ranks"][0]["stream_waits"], 3);
  const json& waiter = read["ranks"][0]["waiter"];  // null where the kernel does not tell
  EXPECT_TRUE(waiter.is_null() || waiter["thread"] == gettid()) << waiter;
  EXPECT_EQ(read["rails"][0]["transports"], json({"rdma"}));
  EXPECT_EQ(read["rails"][0]["sent_bytes"], 110);
  EXPECT_EQ(read["rails"][0]["received_bytes"], 77);
}

// Real connections of this process.
class Connections {
 public:
  explicit Connections(ports::FlowBoard* board) : board_(board) {
    sockaddr_in any{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
    EXPECT_EQ(bind(listener_, reinterpret_cast<const sockaddr*>(&any), sizeof any), 0);
    EXPECT_EQ(listen(listener_, 200), 0);
    fds_.push_back(listener_);
  }
  ~Connections() {
    for (const int fd : fds_) close(fd);
  }
  void add(JobId job, std::uint16_t peer, ClassId cls, std::size_t bytes) {
    sockaddr_in near{}, far{};
    socklen_t length = sizeof far;
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&far), &length), 0);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&far), sizeof far), 0);
    EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&near), &length), 0);
    fds_.insert(fds_.end(), {fd, accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)});
    EXPECT_EQ(send(fd, std::string(bytes, 'x').data(), bytes, 0), static_cast<ssize_t>(bytes));
    ports::FlowReport flow{.peer = fmt::format("h{}", peer), .cls = cls, .rail = RailIndex(0), .transport = "tcp"};
    flow.path = fmt::format("127.0.0.1:{} -> 127.0.0.1:{}", ntohs(near.sin_port), ntohs(far.sin_port));
    board_->up(RailIndex(0), {job, HostIndex(peer), cls}, flow);
  }

 private:
  ports::FlowBoard* board_;
  const int listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::vector<int> fds_;
};

// Where there are more connections than a report has room for; those of bulk have carried more.
TEST_F(AnswersTest, AReportHasTheMostUrgentConnectionOfEachPeer) {
  const config::DaemonConfig config = load_config();
  ports::LaneMetrics metrics;
  const auto job = std::make_shared<ports::JobMetrics>();
  job->id = JobId(42);
  metrics.job_list.add(job);
  Connections connections(&metrics.flows);
  for (std::uint16_t peer = 1; peer <= 40; ++peer) {
    connections.add(job->id, peer, ClassId(0), 10);
    connections.add(job->id, peer, ClassId(1), 1000u + peer);
  }
  connections.add(job->id, 41, ClassId(1), 10);  // has no other
  const JobReport report({config, metrics});
  const json read = report.read(job->id).value();
  if (read["connections"].is_string()) GTEST_SKIP() << read["connections"];
  ASSERT_EQ(read["connections"].size(), JobReport::kMostConnections);
  EXPECT_EQ(read["connections_left_out"], 81 - JobReport::kMostConnections);
  const auto name = [&](std::size_t cls) { return config.fabric.classes.data[cls].name; };
  std::map<std::string, std::set<std::string>> peers;
  for (const json& connection : read["connections"]) peers[connection["class"]].insert(connection["peer"]);
  EXPECT_EQ(peers[name(0)].size(), 40u);
  EXPECT_TRUE(peers[name(1)].contains("h41"));
  EXPECT_TRUE(peers[name(1)].contains("h40")) << "it has carried most of its class";
  EXPECT_FALSE(peers[name(1)].contains("h1"));
}

}  // namespace
}  // namespace tensorlane::wiring
