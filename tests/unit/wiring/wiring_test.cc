// What a changed daemon.yaml means for a daemon that runs, how its log's lines look, and what --check-config tries.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/details/log_msg.h>
#include <spdlog/formatter.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "daemon/wiring/lane_config.h"
#include "daemon/wiring/log.h"
#include "daemon/wiring/packet_ports.h"
#include "daemon/wiring/reload.h"
#include "daemon/wiring/try_out.h"

namespace tensorlane::wiring {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class WiringTest : public ::testing::Test {
 protected:
  WiringTest() : folder_(std::filesystem::temp_directory_path() / fmt::format("tl-wiring-{}", getpid())) {
    std::filesystem::create_directories(folder_);
    write_fabric("127.0.0.1");
  }
  ~WiringTest() override { std::filesystem::remove_all(folder_); }

  void write_fabric(const std::string& address) {
    std::ofstream(folder_ / "fabric.yaml") << "classes: greenfield\nhosts:\n  - {name: h0, addresses: {tcp: " << address
                                           << "}, public_key: \"rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7\"}\n";
  }
  config::DaemonConfig config(const std::string& more) {
    std::ofstream(folder_ / "daemon.yaml") << "fabric: fabric.yaml\nhost: h0\n" + more;
    Result<config::DaemonConfig> loaded = config::load((folder_ / "daemon.yaml").string());
    EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
    return loaded.ok() ? *loaded : config::DaemonConfig();
  }
  std::string tried(const std::string& more) { return try_out(config(more)).to_string(); }

  std::filesystem::path folder_;
};

TEST_F(WiringTest, WhatDpdkIsToldIsCheckedWithoutStartingIt) {
  config::DaemonConfig with = config("dpdk: {devices: ['net_af_packet0,iface=eth1']}\n");
  with.fabric.hosts.front().addresses["dpdk"] = {"10.1.0.1"};
  EXPECT_TRUE(check_packet_ports(with).ok()) << check_packet_ports(with).to_string();
  const auto said = [&with](auto change) {
    config::DaemonConfig wrong = with;
    change(wrong);
    return check_packet_ports(wrong).to_string();
  };
  EXPECT_THAT(said([](auto& c) { c.dpdk.eal = {"--frobnicate"}; }),
              ::testing::AllOf(HasSubstr("--frobnicate"), HasSubstr("daemon.yaml:3")));
  EXPECT_THAT(said([](auto& c) { c.dpdk.devices = {",iface=eth1"}; }), HasSubstr(",iface=eth1"));
  EXPECT_THAT(said([](auto& c) { c.dpdk.networks = {"10.1.0.0"}; }), HasSubstr("'10.1.0.0' is no network"));
  EXPECT_THAT(said([](auto& c) { c.dpdk.neighbours = {"10.1.0.2"}; }), HasSubstr("'10.1.0.2' is no neighbour"));
  EXPECT_THAT(said([](auto& c) { c.fabric.hosts.front().addresses["dpdk"] = {"h0.example"}; }),
              HasSubstr("write the dpdk address of host 'h0' as a number"));
  EXPECT_THAT(said([](auto& c) { c.fabric.hosts.front().addresses["dpdk"] = {"127.0.0.1"}; }),
              HasSubstr("the dpdk address 127.0.0.1 of host 'h0' is one of its kernel's, on lo"));
}

TEST_F(WiringTest, AReloadTakesOverWhatCanChangeAndNamesTheRest) {
  config::DaemonConfig running = config("users: [7]\nlog_level: info\ncpu: 1\n");
  const config::DaemonConfig next =
      config("users: [7, 8]\nlog_level: debug\nmax_sessions: 9\nmetrics: 127.0.0.1:9400\npattern: tree\n");
  const Changes changes = compare(running, next);
  EXPECT_THAT(changes.taken, ElementsAre("log_level", "max_sessions", "users"));
  EXPECT_THAT(changes.restart, ElementsAre("cpu", "metrics", "pattern"));
  EXPECT_EQ(
      text_of(changes),
      "log_level, max_sessions and users changed; cpu, metrics and pattern take effect when the daemon is started "
      "again");
  take_over(next, &running);
  EXPECT_THAT(running.users, ElementsAre(7u, 8u));
  EXPECT_EQ(running.max_sessions, 9u);
  EXPECT_EQ(running.log_level, config::DaemonConfig::LogLevel::kDebug);
  EXPECT_EQ(running.cpu, 1) << "that needs a restart";
  // The second time only what still waits for a restart is named.
  EXPECT_THAT(compare(running, next).taken, IsEmpty());
  EXPECT_THAT(compare(running, next).restart, ElementsAre("cpu", "metrics", "pattern"));
}

TEST_F(WiringTest, AReloadTakesOverAllOrNothingOfWhatItSaysHasChanged) {
  config::DaemonConfig running = config("");
  const config::DaemonConfig next = config(
      "users: [7]\nusers_guaranteed: 30\nlog_level: debug\nmax_sessions: 91\nmax_pending: 92\nmax_tensors: 93\n"
      "arena_limit: 94 MiB\n");
  EXPECT_EQ(compare(running, next).taken.size(), 7u);
  EXPECT_THAT(compare(running, next).restart, IsEmpty());
  take_over(next, &running);
  EXPECT_THAT(running.users, ElementsAre(7u));
  EXPECT_EQ(running.users_guaranteed, 30u);
  EXPECT_EQ(running.log_level, config::DaemonConfig::LogLevel::kDebug);
  EXPECT_EQ(running.max_sessions, 91u);
  EXPECT_EQ(running.max_pending, 92u);
  EXPECT_EQ(running.max_tensors, 93u);
  EXPECT_EQ(running.arena_limit, mib(94));
  EXPECT_EQ(text_of(compare(running, next)), "nothing changed");
}

TEST_F(WiringTest, AnotherKeyInTheSameFileNeedsARestart) {
  const config::DaemonConfig running = config("");
  config::DaemonConfig next = running;
  next.secret_key += "x";
  EXPECT_THAT(compare(running, running).restart, IsEmpty());
  EXPECT_THAT(compare(running, next).restart, IsEmpty()) << "no file is named";
  config::DaemonConfig before = running;
  before.written["secret_key_file"] = next.written["secret_key_file"] = "key";
  EXPECT_THAT(compare(before, next).restart, ElementsAre("secret_key_file"));
}

TEST_F(WiringTest, AFabricFileThatSaysSomethingElseNeedsARestart) {
  const config::DaemonConfig running = config("");
  EXPECT_EQ(text_of(compare(running, config("# a comment\n"))), "nothing changed");
  write_fabric("127.0.0.2");
  EXPECT_EQ(text_of(compare(running, config(""))),
            "nothing changed; fabric takes effect when the daemon is started again");
}

TEST_F(WiringTest, LinesForTheJournalHaveAPriorityAndNoTime) {
  const auto line = [](spdlog::level::level_enum level, bool journal) {
    const auto format = line_format("h0", journal);
    spdlog::memory_buf_t text;
    format->format(spdlog::details::log_msg("tensorlaned", level, "what it says"), text);
    return fmt::to_string(text);
  };
  EXPECT_EQ(line(spdlog::level::debug, true), "<7>h0: what it says\n");
  EXPECT_EQ(line(spdlog::level::info, true), "<6>h0: what it says\n");
  EXPECT_EQ(line(spdlog::level::warn, true), "<4>h0: what it says\n");
  EXPECT_EQ(line(spdlog::level::err, true), "<3>h0: what it says\n");
  EXPECT_THAT(line(spdlog::level::warn, false), ::testing::MatchesRegex("20[0-9: .-]+ warning h0: what it says\n"));
}

TEST_F(WiringTest, TheJournalIsWhatSystemdNames) {
  std::FILE* file = std::fopen((folder_ / "log").c_str(), "w");
  struct stat info {};
  ASSERT_EQ(fstat(fileno(file), &info), 0);
  const std::string named = fmt::format("{}:{}", info.st_dev, info.st_ino);
  EXPECT_TRUE(is_journal(fileno(file), named.c_str()));
  EXPECT_FALSE(is_journal(fileno(file), (named + "1").c_str())) << "standard error went elsewhere since";
  EXPECT_FALSE(is_journal(fileno(file), nullptr));
  std::fclose(file);
}

TEST_F(WiringTest, WhatTheHostCannotDoIsFoundByTrying) {
  EXPECT_EQ(tried("metrics: 127.0.0.1:9400\ntimeline: t.json\nrecord: .\n"), "ok");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "t.json"));
  EXPECT_THAT(tried("metrics: '9400'\n"), HasSubstr("'9400' is no address to serve metrics on: " +
                                                    (folder_ / "daemon.yaml").string() + ":3: write ADDRESS:PORT"));
  EXPECT_THAT(tried("metrics: 192.0.2.1:9400\n"), HasSubstr("Cannot assign requested address"));
  EXPECT_THAT(tried("timeline: /nowhere/t.json\n"), HasSubstr("cannot write the timeline: No such file or directory"));
  EXPECT_THAT(tried("cpu: 4095\n"), HasSubstr("'cpu' is 4095, and this host has "));
  EXPECT_THAT(tried("socket: /nowhere/s.sock\n"), HasSubstr("the folder of 'socket' is not there: /nowhere"));
  EXPECT_THAT(tried("socket: /tmp/" + std::string(121, 's') + "\n"), HasSubstr("'socket' has 126 bytes"));
  std::ofstream(folder_ / "h0.key") << "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6\n";
  std::filesystem::permissions(folder_ / "h0.key", std::filesystem::perms::owner_read);
  EXPECT_EQ(tried("secret_key_file: h0.key\n"), "ok") << "the pair of the fabric file's public key";
  std::filesystem::permissions(folder_ / "h0.key", std::filesystem::perms::owner_write,
                               std::filesystem::perm_options::add);
  std::ofstream(folder_ / "h0.key") << "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs\n";
  EXPECT_THAT(tried("secret_key_file: h0.key\n"),
              HasSubstr("the secret key in " + (folder_ / "h0.key").string() +
                        " is not that of host 'h0': " + (folder_ / "daemon.yaml").string() + ":3: "));
  EXPECT_THAT(tried("record: /nowhere\n"), HasSubstr("cannot write an engine's log: No such file or directory"));
  write_fabric("192.0.2.1");
  EXPECT_EQ(tried(""),
            "this is not the host that 'h0' names: it has no address 192.0.2.1 (Cannot assign requested "
            "address): " +
                (folder_ / "fabric.yaml").string() +
                ":3: write an address of this host into the fabric file, or another 'host' into daemon.yaml");
}

TEST_F(WiringTest, EveryLaneHasACoreWhereTheFirstIsGivenOne) {
  const long cores = sysconf(_SC_NPROCESSORS_CONF);
  const auto keys = [](long cpu, long lanes) { return fmt::format("cpu: {}\nlanes: {}\n", cpu, lanes); };
  EXPECT_EQ(tried(keys(cores - 1, 1)), "ok");
  EXPECT_THAT(tried(keys(cores - 1, 2)),
              HasSubstr(fmt::format("'cpu' is {}, so that its 2 lanes would end on core {}, and this host has {} cores",
                                    cores - 1, cores, cores)));
  if (cores >= 2) {
    EXPECT_EQ(tried(keys(cores - 2, 2)), "ok");
    EXPECT_THAT(tried(keys(cores - 1, 2)), HasSubstr(fmt::format("expected 0 to {}", cores - 2)));
  }
  EXPECT_EQ(tried("lanes: 16\n"), "ok") << "they have any core";
  if (cores < 16) {
    EXPECT_THAT(tried(keys(0, 16)), HasSubstr(fmt::format("expected no 'cpu', or at most {} 'lanes'", cores)));
  }
}

TEST_F(WiringTest, RailsGoRoundTheLanes) {
  std::ofstream(folder_ / "fabric.yaml") << "classes: greenfield\nhosts:\n  - {name: h0, addresses: {tcp: [127.0.0.1, "
                                            "127.0.0.2, 127.0.0.3]}, public_key: "
                                            "\"rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7\"}\n";
  const auto lanes_of_rails = [this](const std::string& more) {
    std::vector<std::size_t> lanes;
    for (const host::RailConfig& rail : lane_config(config(more)).rails) lanes.push_back(rail.lane);
    return lanes;
  };
  EXPECT_THAT(lanes_of_rails(""), ElementsAre(0, 0, 0));
  EXPECT_THAT(lanes_of_rails("lanes: 2\n"), ElementsAre(0, 1, 0));
  EXPECT_THAT(lanes_of_rails("lanes: 16\n"), ElementsAre(0, 1, 2));
}

TEST_F(WiringTest, RootIsToldOfAKeyThatTheServiceCannotRead) {
  if (geteuid() != 0) GTEST_SKIP() << "only root reads what the service cannot";
  std::ofstream(folder_ / "h0.key") << "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6\n";
  std::filesystem::permissions(folder_ / "h0.key", std::filesystem::perms::owner_read);
  const config::DaemonConfig root_has_it = config("secret_key_file: h0.key\n");
  EXPECT_THAT(key_warning(root_has_it, "nobody"),
              HasSubstr("service runs as user 'nobody': " + root_has_it.secret_key_path + ": chown nobody "));
  EXPECT_EQ(key_warning(root_has_it, "no-such-user"), "") << "the service is not installed here";
  EXPECT_EQ(key_warning(root_has_it, "root"), "");
  EXPECT_EQ(key_warning(config(""), "nobody"), "");
}

}  // namespace
}  // namespace tensorlane::wiring
