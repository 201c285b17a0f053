// What a host learns of a job's secret before it has proved it: nothing. And what it gets when it has: keys.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <set>
#include <thread>
#include <vector>

#include "cluster.h"
#include "daemon/control/agreement.h"
#include "daemon/control/job_key.h"
#include "daemon/control/proof.h"
#include "stranger.h"

namespace tensorlane::control::testing {
namespace {

using nlohmann::json;

constexpr Epoch kNoEpoch{0};
const JobKey kKey{1000, "h0", 0, "j"};
const JobId kJob = job_id("j");
const json kClaims = json::array({json::array({1, 2, 0, 1, 4711})});

// Two hosts, of which h1 is an impostor's; rank 0 waits on h0.
struct Scene {
  explicit Scene(std::byte secret) : cluster({.hosts = 2, .join_timeout = seconds(20)}) {
    EXPECT_TRUE(cluster.start_host(0).ok());
    auto request = cluster.request(0);
    request.secret.assign(16, secret);
    cluster.control(0).join(request);
  }
  Message ask(const std::string& nonce) {
    h1.send({MessageType::kJoin, kJob, kNoEpoch, 0, json::array({kKey.uid, kKey.leader_port, kKey.name, nonce})});
    return h1.receive().value_or(Message{});
  }
  Message prove(Epoch epoch, const std::string& nonce, const std::string& proof) {
    h1.send({MessageType::kProof, kJob, epoch, 0, json::array({nonce, proof, kClaims, settings_to_json({})})});
    return h1.receive().value_or(Message{});
  }
  Cluster cluster;
  Impostor h1{cluster, 1, 0};
};

TEST(Secrets, a_host_that_has_not_proved_the_secret_is_told_nothing_that_depends_on_it) {
  const std::string nonce(64, 'a');
  std::set<std::string> challenges;
  std::set<json> refusals;
  for (const std::byte secret : {std::byte{0x5a}, std::byte{0x5b}}) {
    Scene scene(secret);
    const Message challenge = scene.ask(nonce);
    ASSERT_EQ(challenge.type, MessageType::kChallenge);
    ASSERT_EQ(challenge.body.size(), 2u);
    EXPECT_EQ(challenge.body[0], nonce);
    challenges.insert(challenge.body[1].get<std::string>());
    const Message refusal = scene.prove(challenge.epoch, nonce, std::string(64, 'b'));
    ASSERT_EQ(refusal.type, MessageType::kRefuse);
    refusals.insert(refusal.body);
    EXPECT_FALSE(scene.h1.receive().has_value()) << "and nothing more";
    // What the leader has said is fresh, and no proof of the secret for any of the nonces.
    const Secret known(16, secret);
    for (const Role role : {Role::kFollower, Role::kLeader}) {
      for (const std::string& leader_nonce : {std::string(), nonce, std::string(64, '0')}) {
        EXPECT_NE(challenge.body[1],
                  control::prove(known, role, nonce, leader_nonce, kKey.text(), challenge.epoch, "h1"));
      }
    }
  }
  EXPECT_EQ(challenges.size(), 2u) << "random";
  EXPECT_EQ(refusals.size(), 1u) << "the same for every secret";
}

// Words are tried in seconds, whoever asks how often; the host itself gets in once the pause is over.
TEST(Secrets, guessing_with_the_key_of_a_host_is_slow) {
  const auto start = std::chrono::steady_clock::now();
  const auto soon = start + std::chrono::milliseconds(2500);
  Scene scene(std::byte{0x5a});
  const std::string nonce(64, 'a');
  const Message challenge = scene.ask(nonce);
  std::uint64_t guesses = 0;
  for (; std::chrono::steady_clock::now() < soon; ++guesses) {
    scene.h1.send({MessageType::kJoin, kJob, kNoEpoch, 0, json::array({kKey.uid, kKey.leader_port, kKey.name, nonce})});
    scene.h1.send({MessageType::kProof, kJob, challenge.epoch, 0,
                   json::array({nonce, fmt::format("{:064x}", guesses), kClaims, settings_to_json({})})});
    if (guesses % 16 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_GT(guesses, 1000u);
  const double waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const auto refused = scene.cluster.control(0).counts().refused_secrets;
  EXPECT_GE(refused, 1u);
  EXPECT_LE(static_cast<double>(refused), 1 + std::log2(1 + waited)) << "pauses of one second, two, four between them";
}

TEST(Secrets, a_host_gets_in_after_a_wrong_proof_of_its_own) {
  Cluster cluster({.hosts = 2});
  cluster.start();
  cluster.control(0).join(cluster.request(0));
  auto wrong = cluster.request(1, 1, "j", 10);
  wrong.secret.back() = std::byte{1};
  cluster.control(1).join(wrong);
  EXPECT_FALSE(cluster.sessions(1).wait_joined(11)->ok());
  EXPECT_EQ(cluster.control(0).counts().refused_secrets, 1u);
  cluster.control(1).join(cluster.request(1));
  EXPECT_TRUE(cluster.sessions(1).wait_joined(1)->ok());
  EXPECT_TRUE(cluster.sessions(0).wait_joined(0)->ok());
}

// What its ranks had said before counts no more: they may be others now.
TEST(Secrets, a_host_that_begins_anew_has_to_prove_itself_anew) {
  Cluster cluster({.hosts = 3, .join_timeout = seconds(20)});
  for (const std::size_t host : {0, 2}) ASSERT_TRUE(cluster.start_host(host).ok());
  Impostor h1(cluster, 1, 0);
  cluster.control(0).join(cluster.request(0));
  const auto ask = [&](const std::string& nonce) {
    h1.send({MessageType::kJoin, kJob, kNoEpoch, 0, json::array({kKey.uid, kKey.leader_port, kKey.name, nonce})});
    return h1.receive().value_or(Message{});
  };
  const auto prove = [&](const Message& challenge) {
    const auto nonce = challenge.body[0].get<std::string>(), leader_nonce = challenge.body[1].get<std::string>();
    const json claims = json::array({json::array({1, 3, 0, 1, 4711})});
    const std::string proof = control::prove(cluster.request(0).secret, Role::kFollower, nonce, leader_nonce,
                                             kKey.text(), challenge.epoch, "h1");
    h1.send({MessageType::kProof, kJob, challenge.epoch, 0, json::array({nonce, proof, claims, settings_to_json({})})});
  };
  const Message first = ask(std::string(64, 'a'));
  ASSERT_EQ(first.type, MessageType::kChallenge);
  prove(first);
  const Message second = ask(std::string(64, 'b'));
  ASSERT_EQ(second.type, MessageType::kChallenge);
  cluster.control(2).join(cluster.request(2));
  EXPECT_FALSE(h1.receive().has_value()) << "the world is not complete";
  prove(second);
  EXPECT_EQ(h1.receive().value_or(Message{}).type, MessageType::kRoster);
}

TEST(Secrets, every_pair_of_hosts_gets_a_random_key_and_the_secret_stays_on_the_control_plane) {
  Cluster cluster({.hosts = 3});
  cluster.start();
  std::set<ports::PairKey> seen;
  for (const char* job : {"j", "k"}) {
    cluster.join_all(1, job, job[0] == 'j' ? 0 : 100);
    std::vector<ports::PairKeys> keys;
    for (std::size_t host = 0; host < 3; ++host) keys.push_back(cluster.lane(host).record(job).spec.credentials.keys);
    for (std::size_t a = 0; a < 3; ++a) {
      ASSERT_EQ(keys[a].size(), 3u);
      for (std::size_t b = 0; b < a; ++b) {
        EXPECT_EQ(keys[a][b], keys[b][a]);
        EXPECT_TRUE(seen.insert(keys[a][b]).second) << "of no other pair or job";
      }
    }
  }
  ports::PairKey zeros{};
  EXPECT_FALSE(seen.contains(zeros));
}

// ---- strangers ----

std::size_t open_descriptors() {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

// Silent connections from an address that is nobody's.
std::vector<int> connect_silently(const fabric::Host& to, std::size_t count) {
  sockaddr_in from{}, target{};
  from.sin_family = target.sin_family = AF_INET;
  inet_pton(AF_INET, "127.0.0.99", &from.sin_addr);
  inet_pton(AF_INET, to.tcp_address().c_str(), &target.sin_addr);
  target.sin_port = htons(to.control_port);
  std::vector<int> sockets;
  for (std::size_t i = 0; i < count; ++i) {
    sockets.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    EXPECT_EQ(::bind(sockets.back(), reinterpret_cast<const sockaddr*>(&from), sizeof from), 0);
    ::connect(sockets.back(), reinterpret_cast<const sockaddr*>(&target), sizeof target);
    if (i % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return sockets;
}

TEST(Strangers, who_floods_the_control_port_shuts_out_nobody_else) {
  constexpr std::size_t kFlood = 1000;
  Cluster cluster({.hosts = 2});
  cluster.start();
  const std::size_t before = open_descriptors();
  const std::vector<int> flood = connect_silently(cluster.fabrics[0].hosts[0], kFlood);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  // Its own limit, and what had come before the kernel was told to take no more.
  EXPECT_LE(open_descriptors() - before, kFlood + 300);
  cluster.join_all();
  cluster.control(0).join(cluster.request(0, 1, "k", 100));
  cluster.control(1).join(cluster.request(1, 1, "k", 100));
  EXPECT_TRUE(cluster.sessions(1).wait_joined(101)->ok());
  for (const int socket : flood) ::close(socket);
}

}  // namespace
}  // namespace tensorlane::control::testing
