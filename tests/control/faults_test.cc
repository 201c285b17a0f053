// What can go wrong between clients, daemons and the network, and what everybody is told.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <thread>

#include "cluster.h"
#include "daemon/control/message.h"
#include "relay.h"
#include "stranger.h"

namespace tensorlane::control::testing {
namespace {

using Clock = std::chrono::steady_clock;

// Seconds until all know of a dead host, detection time 1 s; tests/end_to_end/test_faults.py allows less, on its own.
constexpr double kSoon = 2.5;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// ---- who may join ----

TEST(Joining, ranks_that_do_not_come_are_named_at_every_host_that_has) {
  Cluster cluster({.hosts = 2, .join_timeout = milliseconds(500)});
  cluster.start();
  cluster.control(0).join(cluster.request(0, 2));
  cluster.control(0).join(cluster.request(1, 2));
  cluster.control(1).join(cluster.request(2, 2));
  for (const auto& [host, session] : {std::pair(0, 0), {0, 1}, {1, 2}}) {
    const Status status = joined_error(cluster, host, session);
    EXPECT_EQ(status.code(), Code::kTimedOut);
    EXPECT_EQ(
        status.to_string(),
        "rank 3 of 4 has not come within 0.5 s: job 'j' of user 1000, led by host h0; here: h0 (ranks 0-1), h1 (rank "
        "2): start the missing ranks as the same user, with the same job name, MASTER_ADDR and MASTER_PORT, on hosts "
        "whose daemon answers `tensorlane status`");
  }
}

// Else it gives up by itself, and the others hear that it closed its session.
TEST(Joining, a_rank_that_waits_less_long_hears_who_is_missing_before_it_gives_up) {
  Cluster cluster({.hosts = 2, .join_timeout = seconds(60)});
  cluster.start();
  ports::JoinRequest impatient = cluster.request(0, 2);
  impatient.timeout = milliseconds(1500);
  cluster.control(0).join(cluster.request(1, 2));
  cluster.control(1).join(cluster.request(2, 2));
  cluster.control(0).join(impatient);
  for (const auto& [host, session] : {std::pair(0, 0), {0, 1}, {1, 2}}) {
    const Status status = joined_error(cluster, host, session);
    EXPECT_EQ(status.code(), Code::kTimedOut);
    EXPECT_EQ(
        status.to_string(),
        "rank 3 of 4 has not come within 1.5 s: job 'j' of user 1000, led by host h0; here: h0 (ranks 0-1), h1 (rank "
        "2): start the missing ranks as the same user, with the same job name, MASTER_ADDR and MASTER_PORT, on hosts "
        "whose daemon answers `tensorlane status`, or raise "
        "TENSORLANE_TIMEOUT of rank 0, which waits no longer");
  }
}

TEST(Joining, without_a_rank_on_the_leader_the_error_says_so) {
  Cluster cluster({.hosts = 2, .join_timeout = milliseconds(500)});
  cluster.start();
  cluster.control(1).join(cluster.request(1));
  EXPECT_EQ(joined_error(cluster, 1, 1).to_string(),
            "no rank of the job has come on the leader h0 within 0.5 s: job 'j' of user 1000, led by host h0; here: h1 "
            "(rank 1): start rank 0 there as the same user, with the same job name and MASTER_PORT");
}

TEST(Joining, a_leader_that_starts_later_is_found) {
  Cluster cluster({.hosts = 2});
  ASSERT_TRUE(cluster.start_host(1).ok());
  cluster.control(1).join(cluster.request(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  ASSERT_TRUE(cluster.start_host(0).ok());
  cluster.control(0).join(cluster.request(0));
  EXPECT_TRUE(cluster.sessions(1).wait_joined(1)->ok());
}

TEST(Joining, another_secret_on_another_host_is_refused_and_named_at_the_leader) {
  Cluster cluster({.hosts = 2, .join_timeout = milliseconds(2500)});
  cluster.start();
  cluster.control(0).join(cluster.request(0));
  auto wrong = cluster.request(1);
  wrong.secret.back() = std::byte{1};
  cluster.control(1).join(wrong);
  const Status at_follower = joined_error(cluster, 1, 1);
  EXPECT_EQ(at_follower.code(), Code::kPermissionDenied);
  EXPECT_EQ(at_follower.to_string(),
            "the secret of the ranks on host h1 is not that of the leader h0: job 'j': set the same "
            "TENSORLANE_JOB_SECRET on every rank");
  const Status at_leader = joined_error(cluster, 0, 0);
  EXPECT_EQ(
      at_leader.to_string(),
      "rank 1 of 2 has not come within 2.5 s: job 'j' of user 1000, led by host h0; here: h0 (rank 0); host h1 was "
      "refused: its secret is not the job's: start the missing ranks as the same user, with the same job name, "
      "MASTER_ADDR and MASTER_PORT, on hosts whose daemon answers `tensorlane status`");
}

TEST(Joining, a_host_that_was_refused_and_has_come_since_is_not_blamed_for_another) {
  Cluster cluster({.hosts = 3, .join_timeout = seconds(4)});
  cluster.start();
  cluster.control(0).join(cluster.request(0));
  auto wrong = cluster.request(1, 1, "j", 10);
  wrong.secret.back() = std::byte{1};
  cluster.control(1).join(wrong);
  ASSERT_EQ(joined_error(cluster, 1, 11).code(), Code::kPermissionDenied);
  cluster.control(1).join(cluster.request(1));
  const Status missing = joined_error(cluster, 0, 0);
  EXPECT_EQ(missing.what().substr(0, 6), "rank 2") << missing.to_string();
  EXPECT_EQ(missing.where().find("was refused"), std::string::npos) << missing.to_string();
}

std::vector<std::uint8_t> of_version_1() {
  return nlohmann::json::to_cbor(nlohmann::json::array({1, 1, 7, 0, 0, {"of", "another", "form"}}));
}

TEST(Joining, another_version_of_the_daemon_is_refused_named_at_the_leader_and_told) {
  Cluster cluster({.hosts = 2, .join_timeout = milliseconds(2500)});
  cluster.start();
  cluster.control(0).join(cluster.request(0));
  Stranger old(cluster, 0, cluster.keys[1]);
  for (int i = 0; i < 3; ++i) {  // it asks again and again, as hosts do that are early
    old.send(of_version_1());
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  // h1's daemon, which is of this version and in no job, gets the answers.
  EXPECT_TRUE(eventually([&] { return cluster.control(1).counts().dropped_stale >= 3; }));
  EXPECT_EQ(
      joined_error(cluster, 0, 0).to_string(),
      "rank 1 of 2 has not come within 2.5 s: job 'j' of user 1000, led by host h0; here: h0 (rank 0); host h1 was "
      "refused: control protocol version 1 is not " +
          std::to_string(kWireVersion) +
          "; run the same version of tensorlaned on all hosts: start the "
          "missing ranks as the same user, with the same job name, MASTER_ADDR and MASTER_PORT, on hosts whose daemon "
          "answers `tensorlane status`");
}

TEST(Joining, a_leader_of_another_version_is_named_at_once) {
  Cluster cluster({.hosts = 2});
  cluster.start();
  cluster.control(1).join(cluster.request(1));
  Stranger old_leader(cluster, 1, cluster.keys[0]);
  old_leader.send(of_version_1());
  EXPECT_EQ(joined_error(cluster, 1, 1).to_string(),
            "the leader h0 is of another version: control protocol version 1 is not " + std::to_string(kWireVersion) +
                ": job 'j' on host h1: run the "
                "same version of tensorlaned on all hosts");
}

TEST(Joining, another_secret_on_the_same_host_is_refused_and_nobody_else_notices) {
  Cluster cluster({.hosts = 1});
  cluster.start();
  cluster.control(0).join(cluster.request(0, 2));
  auto wrong_secret = cluster.request(1, 2, "j", 10);
  wrong_secret.secret.push_back(std::byte{0});
  cluster.control(0).join(wrong_secret);
  EXPECT_EQ(joined_error(cluster, 0, 11).to_string(),
            "rank 1 brings another secret than the job's first rank: job 'j' on host h0: set the same "
            "TENSORLANE_JOB_SECRET on every rank");
  cluster.control(0).join(cluster.request(1, 2));
  EXPECT_TRUE(cluster.sessions(0).wait_joined(0)->ok());
  EXPECT_TRUE(cluster.sessions(0).wait_joined(1)->ok());
}

TEST(Joining, a_job_that_spans_hosts_needs_a_secret) {
  Cluster cluster({.hosts = 2});
  cluster.start();
  auto request = cluster.request(0);
  request.secret.clear();
  cluster.control(0).join(request);
  EXPECT_EQ(joined_error(cluster, 0, 0).to_string(),
            "a job that spans hosts needs a secret: job 'j' on host h0: set TENSORLANE_JOB_SECRET to the same value on "
            "every rank");
}

TEST(Joining, an_unknown_leader_is_an_error_that_lists_the_hosts) {
  Cluster cluster({.hosts = 2});
  cluster.start();
  auto request = cluster.request(0);
  request.leader = "node17";
  cluster.control(0).join(request);
  EXPECT_EQ(joined_error(cluster, 0, 0).to_string(),
            "MASTER_ADDR 'node17' is not a host of the fabric: job 'j' on host h0, fabric.yaml: set MASTER_ADDR to one "
            "of h0 (127.0.0.1), h1 "
            "(127.0.0.2)");
}

TEST(Joining, a_job_of_one_host_is_led_by_it_whatever_master_addr_says) {
  Cluster cluster({.hosts = 2});
  cluster.start();
  auto request = cluster.request(0, 2);
  request.world_size = request.local_world_size = 1;
  request.leader = "localhost";
  request.secret.clear();
  cluster.control(1).join(request);
  EXPECT_TRUE(cluster.sessions(1).wait_joined(0)->ok());
}

TEST(Joining, a_rank_that_comes_twice_is_named_with_both_processes) {
  Cluster cluster({.hosts = 2});
  cluster.start();
  cluster.control(0).join(cluster.request(0, 2));
  cluster.control(0).join(cluster.request(1, 2));
  auto first = cluster.request(1, 2, "j", 10), second = cluster.request(2, 2);  // 1 on h1 instead of 3
  first.local_rank = 0;
  second.local_rank = 1;
  cluster.control(1).join(first);
  cluster.control(1).join(second);
  const std::string text =
      "rank 1 comes twice: from process 101 on host h0 and from process 101 on host h1: job 'j' on host h1: give every "
      "process a RANK of "
      "its own";
  EXPECT_EQ(joined_error(cluster, 1, 11).to_string(), text);
  EXPECT_EQ(joined_error(cluster, 1, 2).to_string(), text);
  EXPECT_EQ(joined_error(cluster, 0, 0).to_string(), text);
}

TEST(Joining, a_second_job_of_the_same_name_is_refused_on_the_hosts_of_the_first_and_elsewhere) {
  Cluster cluster({.hosts = 3});
  cluster.start();
  auto rank0 = cluster.request(0), rank1 = cluster.request(1);
  rank0.world_size = rank1.world_size = 2;
  cluster.control(0).join(rank0);
  cluster.control(1).join(rank1);
  ASSERT_TRUE(cluster.sessions(0).wait_joined(0)->ok());
  auto again = cluster.request(0, 1, "j", 10);
  cluster.control(0).join(again);
  const Status here = joined_error(cluster, 0, 10);
  EXPECT_EQ(here.code(), Code::kAlreadyExists);
  EXPECT_EQ(here.to_string(),
            "a job of this name is running: job 'j' on host h0: wait until it ends, or set another "
            "TENSORLANE_JOB or MASTER_PORT");
  cluster.control(2).join(cluster.request(2));
  EXPECT_EQ(joined_error(cluster, 2, 2).to_string(), here.to_string());
  EXPECT_FALSE(cluster.sessions(0).wait_failed(0, 0.1)) << "the first job is not disturbed";
}

TEST(Joining, a_name_is_free_again_as_soon_as_the_job_has_failed) {
  Cluster cluster({.hosts = 2});
  cluster.start();
  cluster.join_all();
  cluster.control(1).leave(ports::SessionId(1), Status(Code::kAborted, "the client died"));
  ASSERT_TRUE(cluster.sessions(0).wait_failed(0));
  cluster.join_all(1, "j", 10);
}

TEST(Joining, a_client_that_goes_while_the_job_gathers_ends_it_for_all) {
  Cluster cluster({.hosts = 2});
  cluster.start();
  cluster.control(1).join(cluster.request(2, 2));
  cluster.control(0).join(cluster.request(0, 2));
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // h1 has proven itself to h0
  cluster.control(1).leave(ports::SessionId(2), Status(Code::kAborted, "process 102 was killed"));
  EXPECT_EQ(joined_error(cluster, 0, 0).to_string(), "process 102 was killed: rank 2 on host h1, job 'j'");
}

TEST(Joining, flows_that_do_not_come_up_are_an_error_that_names_the_host) {
  Cluster cluster({.hosts = 2, .join_timeout = milliseconds(2500)});
  cluster.start();
  cluster.lane(1).never_connect();
  cluster.control(0).join(cluster.request(0));
  cluster.control(1).join(cluster.request(1));
  EXPECT_EQ(joined_error(cluster, 0, 0).what(), "h1 did not get ready for the job within 2.5 s");
  EXPECT_FALSE(joined_error(cluster, 1, 1).ok());
}

// ---- keys ----

TEST(Keys, a_host_whose_key_the_file_has_wrong_cannot_be_reached_and_the_error_says_what_to_check) {
  Cluster cluster({.hosts = 2, .join_timeout = milliseconds(2500)});
  cluster.fabrics[1].hosts[0].public_key = make_keys().public_key;
  cluster.start();
  cluster.control(0).join(cluster.request(0));
  cluster.control(1).join(cluster.request(1));
  const Status status = joined_error(cluster, 1, 1);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_EQ(status.what(),
            "the daemon of the leader h0 at 127.0.0.1:" + std::to_string(cluster.fabrics[0].hosts[0].control_port) +
                " cannot be reached within 2.5 s");
  EXPECT_EQ(status.fix(),
            "start tensorlaned there, and check that address and public_key in the fabric files of both hosts agree");
}

TEST(Keys, a_key_that_is_not_in_the_file_is_refused) {
  Cluster cluster({.hosts = 2});
  cluster.start();
  Stranger stranger(cluster, 0, make_keys());
  stranger.send(Message{MessageType::kJoin, JobId(1), Epoch(0), 0, nlohmann::json::array()});
  EXPECT_TRUE(eventually([&] { return cluster.control(0).counts().refused_connections > 0; }));
  EXPECT_EQ(cluster.control(0).counts().messages_received, 0u);
  cluster.join_all();
}

TEST(Keys, a_daemon_with_anothers_secret_key_does_not_start) {
  Cluster cluster({.hosts = 2});
  cluster.keys[1] = make_keys();
  const Status status = cluster.start_host(1);
  EXPECT_EQ(status.to_string(),
            "the secret key is not that of host 'h1': fabric.yaml:0: the file that 'secret_key_file' of the daemon's "
            "configuration names has the other half of '" +
                cluster.keys[1].public_key +
                "': name the file with this host's key there, or give the host this public key in the fabric file");
}

TEST(Keys, a_fabric_of_two_hosts_without_keys_and_a_port_in_use_are_errors) {
  Cluster without({.hosts = 2});
  without.fabrics[0].hosts[1].public_key.clear();
  without.fabrics[0].hosts[1].line = 12;
  EXPECT_EQ(without.start_host(0).to_string(),
            "host 'h1' has no public key of 40 Z85 characters: fabric.yaml:12: add public_key: KEY");
  Cluster cluster({.hosts = 2});
  ASSERT_TRUE(cluster.start_host(0).ok());
  cluster.fabrics[1].hosts[1].addresses["tcp"] = {"127.0.0.1"};
  cluster.fabrics[1].hosts[1].control_port = cluster.fabrics[0].hosts[0].control_port;
  const Status status = cluster.start_host(1);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_EQ(status.what(), "the control port cannot be bound (Address already in use)");
}

// ---- rubbish ----

TEST(Rubbish, raw_bytes_on_the_control_port_disturb_nobody) {
  Cluster cluster({.hosts = 2});
  cluster.start();
  cluster.join_all();
  std::mt19937 random(1);
  for (int i = 0; i < 50; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(cluster.fabrics[0].hosts[0].control_port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    std::vector<std::uint8_t> bytes(random() % 5000);
    for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random());
    ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    close(fd);
  }
  EXPECT_FALSE(cluster.sessions(0).wait_failed(0, 1.2));
  EXPECT_EQ(cluster.control(0).counts().dropped_malformed, 0u);
}

TEST(Rubbish, messages_that_make_no_sense_are_dropped_and_counted) {
  Cluster cluster({.hosts = 2});
  cluster.start();
  cluster.join_all();
  Stranger peer(cluster, 0, cluster.keys[1]);
  std::mt19937 random(2);
  for (int i = 0; i < 200; ++i) {
    std::vector<std::uint8_t> bytes(random() % 300);
    for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random());
    peer.send(bytes);
  }
  peer.send(std::vector<std::uint8_t>(kMaxWireMessage, 0x81));      // arrays in arrays, a million deep
  peer.send(std::vector<std::uint8_t>(kMaxWireMessage + 1, 0x80));  // oversized
  peer.send(std::vector<std::uint8_t>{0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff});  // an array of 2^64 items
  EXPECT_TRUE(eventually([&] { return cluster.control(0).counts().dropped_malformed >= 203; }))
      << cluster.control(0).counts().dropped_malformed;
  EXPECT_FALSE(cluster.sessions(0).wait_failed(0, 0.1));
}

TEST(Rubbish, messages_of_another_epoch_or_job_or_of_a_host_without_a_part_in_it_are_dropped) {
  Cluster cluster({.hosts = 3});
  cluster.start();
  auto rank0 = cluster.request(0), rank1 = cluster.request(1);
  rank0.world_size = rank1.world_size = 2;
  cluster.control(0).join(rank0);
  cluster.control(1).join(rank1);
  const Epoch epoch = cluster.sessions(0).wait_joined(0)->value().epoch;
  const JobId job = job_id("j");
  const auto abort = nlohmann::json::array({status_to_json(Status(Code::kAborted, "lies"))});
  Stranger member(cluster, 0, cluster.keys[1]), outsider(cluster, 0, cluster.keys[2]);
  member.send(Message{MessageType::kAbort, job, Epoch(epoch.value - 1), 0, abort});
  member.send(Message{MessageType::kAbort, JobId(5), epoch, 0, abort});
  outsider.send(Message{MessageType::kAbort, job, epoch, 0, abort});
  EXPECT_TRUE(eventually([&] {
    return cluster.control(0).counts().dropped_stale >= 2 && cluster.control(0).counts().dropped_malformed >= 1;
  }));
  EXPECT_FALSE(cluster.sessions(0).wait_failed(0, 0.1));
}

// Each takes a tenth of a second to read as a whole, and they come faster than that.
TEST(Rubbish, a_host_without_a_part_in_a_job_does_not_keep_its_hosts_from_hearing_each_other) {
  Cluster cluster({.hosts = 3});
  cluster.start();
  auto rank0 = cluster.request(0), rank1 = cluster.request(1);
  rank0.world_size = rank1.world_size = 2;
  cluster.control(0).join(rank0);
  cluster.control(1).join(rank1);
  const Epoch epoch = cluster.sessions(0).wait_joined(0)->value().epoch;
  auto empty = nlohmann::json::array();
  for (int i = 0; i < 1'000'000; ++i) empty.push_back(nlohmann::json::array());
  const auto of_job = encode({MessageType::kHeartbeat, job_id("j"), epoch, 1, empty});
  const auto join = encode({MessageType::kJoin, JobId(7), Epoch(0), 0, empty});
  Stranger outsider(cluster, 0, cluster.keys[2]);
  const auto end = Clock::now() + std::chrono::seconds(4);
  for (int i = 0; Clock::now() < end; ++i) {
    outsider.send(i % 2 == 0 ? of_job : join);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_FALSE(cluster.sessions(0).wait_failed(0, 0.1));
  EXPECT_FALSE(cluster.sessions(1).wait_failed(1, 0.1));
  EXPECT_GT(cluster.control(0).counts().dropped_malformed, 20u);
}

TEST(Rubbish, a_lost_control_message_fails_the_job_instead_of_leaving_it_waiting) {
  Cluster cluster({.hosts = 2});
  cluster.start();
  cluster.join_all();
  const Epoch epoch = cluster.sessions(0).wait_joined(0)->value().epoch;
  Stranger member(cluster, 0, cluster.keys[1]);
  member.send(Message{MessageType::kHeartbeat, job_id("j"), epoch, 1000, nlohmann::json::array()});
  const auto cause = cluster.sessions(1).wait_failed(1);
  ASSERT_TRUE(cause.has_value());
  EXPECT_EQ(cause->what(), "control messages from host h1 to host h0 were lost");
}

// ---- hosts that die, stop or are cut off ----

TEST(Dead, a_daemon_that_dies_fails_every_other_host_within_the_detection_time) {
  Cluster cluster({.hosts = 4});
  cluster.start();
  cluster.join_all();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const auto start = Clock::now();
  cluster.kill(2);
  for (const std::uint32_t rank : {0, 1, 3}) {
    const auto cause = cluster.sessions(rank).wait_failed(rank, 3);
    ASSERT_TRUE(cause.has_value()) << "rank " << rank;
    EXPECT_LT(seconds_since(start), kSoon);
    EXPECT_EQ(cause->code(), Code::kUnavailable);
    EXPECT_EQ(cause->what().substr(0, 29), "host h2 has not been heard by");
    EXPECT_NE(cause->what().find("(detection time 1 s): its daemon is dead or stopped, or the network from h2 to h"),
              std::string::npos);
    EXPECT_TRUE(eventually([&] { return cluster.lane(rank).record("j").aborted.has_value(); }));
  }
  // The survivors take the next job; the dead daemon, too, once it is back.
  ASSERT_TRUE(cluster.start_host(2).ok());
  cluster.join_all(1, "next", 10);
}

TEST(Dead, a_cut_in_one_direction_fails_both_sides_within_the_detection_time) {
  Cluster cluster({.hosts = 3});
  Relay relay("127.0.0.1", cluster.fabrics[0].hosts[0].control_port);
  cluster.fabrics[1].hosts[0].addresses["tcp"] = {"127.0.0.1"};
  cluster.fabrics[1].hosts[0].control_port =
      relay.port();  // h1 speaks to h0 through the relay; h0 speaks to h1 directly
  cluster.start();
  cluster.join_all();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const auto start = Clock::now();
  relay.cut();
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const auto cause = cluster.sessions(rank).wait_failed(rank, 3);
    ASSERT_TRUE(cause.has_value()) << "rank " << rank;
    EXPECT_LT(seconds_since(start), kSoon);
    EXPECT_EQ(cause->what().substr(0, 36), "host h1 has not been heard by h0 for");
    EXPECT_NE(cause->what().find("or the network from h1 to h0 is cut"), std::string::npos);
  }
}

TEST(Dead, a_daemon_that_stood_still_is_named_and_does_not_accuse_the_others) {
  Cluster cluster({.hosts = 3});
  cluster.start();
  cluster.join_all();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  cluster.sessions(1).block_status(std::chrono::milliseconds(1600));
  cluster.control(1).status(ports::SessionId(1), 0, 1);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const auto cause = cluster.sessions(rank).wait_failed(rank, 4);
    ASSERT_TRUE(cause.has_value()) << "rank " << rank;
    const bool accused = cause->what().starts_with("host h1 has not been heard by");
    const bool own = cause->what().starts_with("the daemon of host h1 stood still");
    EXPECT_TRUE(accused || (rank == 1 && own)) << cause->to_string();
  }
}

// Detection is 1 s; 120 statuses of 50 ms are 6 s.
TEST(Dead, a_host_whose_users_ask_for_its_status_again_and_again_lives) {
  Cluster cluster({.hosts = 2});
  cluster.more_status = [] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return nlohmann::json::object();
  };
  cluster.start();
  cluster.join_all();
  for (std::uint32_t request = 0; request < 120; ++request)
    cluster.control(1).status(ports::SessionId(100 + request % 30), 3000 + request % 30, request);
  for (std::uint32_t request = 0; request < 120; ++request)
    EXPECT_TRUE(cluster.sessions(1).wait_status(100 + request % 30, request)) << request;
  EXPECT_FALSE(cluster.sessions(0).wait_failed(0, 0.5));
}

TEST(Dead, a_daemon_that_stops_says_so) {
  Cluster cluster({.hosts = 2});
  cluster.start();
  cluster.join_all();
  cluster.control(1).stop();
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const auto cause = cluster.sessions(rank).wait_failed(rank, 2);
    ASSERT_TRUE(cause.has_value());
    EXPECT_EQ(cause->to_string(),
              "the daemon of host h1 stops: job 'j': start it again, then restart the job from a checkpoint");
  }
}

TEST(Dead, quiet_hosts_stay_alive) {
  Cluster cluster({.hosts = 4});
  cluster.start();
  cluster.join_all();
  EXPECT_FALSE(cluster.sessions(0).wait_failed(0, 2.5));
  cluster.control(0).status(ports::SessionId(0), 0, 1);
  const auto status = cluster.sessions(0).wait_status(0, 1);
  for (int host = 1; host < 4; ++host) EXPECT_LT((*status)["jobs"][0]["hosts"][host]["last_heard_s"], 0.4);
}

// ---- what clients and lanes report ----

TEST(Failing, the_death_of_a_client_reaches_every_rank_with_its_cause) {
  Cluster cluster({.hosts = 4});
  cluster.start();
  cluster.join_all(2);
  cluster.control(2).leave(ports::SessionId(5), Status(Code::kAborted, "process 105 was killed"));
  for (const std::uint32_t rank : {0, 1, 2, 3, 4, 6, 7}) {
    const auto cause = cluster.sessions(rank / 2).wait_failed(rank, 2);
    ASSERT_TRUE(cause.has_value()) << "rank " << rank;
    EXPECT_EQ(cause->to_string(), "process 105 was killed: rank 5 on host h2, job 'j'");
  }
  EXPECT_EQ(cluster.lane(3).record("j").aborted->what(), "process 105 was killed");
  EXPECT_FALSE(cluster.sessions(2).wait_failed(5, 0));
}

TEST(Failing, what_a_lane_reports_reaches_every_host_and_the_first_cause_wins) {
  Cluster cluster({.hosts = 3});
  cluster.start();
  cluster.join_all();
  const JobId job = job_id("j");
  cluster.control(1).on_job_failed(job, Status(Code::kCorrupt, "first"));
  cluster.control(1).on_job_failed(job, Status(Code::kCorrupt, "second"));
  for (std::uint32_t rank = 0; rank < 3; ++rank)
    EXPECT_EQ(cluster.sessions(rank).wait_failed(rank, 2)->what(), "first");
}

TEST(Failing, after_its_ranks_have_left_a_host_does_not_take_closed_flows_for_a_failure) {
  Cluster cluster({.hosts = 2});
  cluster.start();
  cluster.join_all();
  cluster.control(1).leave(ports::SessionId(1), {});
  EXPECT_TRUE(cluster.sessions(1).wait_left(1));
  cluster.control(1).on_job_failed(job_id("j"), Status(Code::kUnavailable, "flow closed"));
  EXPECT_FALSE(cluster.sessions(0).wait_failed(0, 0.3));
  cluster.control(0).leave(ports::SessionId(0), {});
  EXPECT_TRUE(eventually([&] { return cluster.lane(0).record("j").closed && cluster.lane(1).record("j").closed; }));
  EXPECT_FALSE(cluster.lane(0).record("j").aborted || cluster.lane(1).record("j").aborted);
}

}  // namespace
}  // namespace tensorlane::control::testing
