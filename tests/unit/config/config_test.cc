// daemon.yaml: what is read, and the exact text of every mistake.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "daemon/config/config.h"

namespace tensorlane::config {
namespace {

const char* const kOtherKey = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID";
const char* const kKey = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";

class ConfigTest : public ::testing::Test {
 protected:
  ConfigTest() : folder_(std::filesystem::temp_directory_path() / ("tl-config-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
    write("fabric.yaml",
          std::string("classes: greenfield\nhosts:\n  - {name: h0, addresses: {tcp: 127.0.0.1}, public_key: \"") +
              kKey + "\"}\n  - {name: h1, addresses: {tcp: 127.0.0.2}, public_key: \"" + kOtherKey + "\"}\n");
    write("h0.key", std::string(kKey) + "\n");
    chmod((folder_ / "h0.key").c_str(), 0600);
  }
  ~ConfigTest() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) { std::ofstream(folder_ / name) << text; }
  std::string file(const std::string& name) { return (folder_ / name).string(); }
  Result<DaemonConfig> load_text(const std::string& text) {
    write("daemon.yaml", text);
    return load(file("daemon.yaml"));
  }
  std::string error(const std::string& more) {
    auto config = load_text("fabric: fabric.yaml\nhost: h0\nsecret_key_file: h0.key\n" + more);
    return config.ok() ? "no error" : config.status().to_string();
  }

  std::filesystem::path folder_;
};

TEST_F(ConfigTest, ReadsEverything) {
  auto config = load_text(
      "fabric: fabric.yaml\nhost: h1\nsecret_key_file: h0.key\nsocket: /run/x.sock\nmetrics: 127.0.0.1:9400\ntimeline: "
      "/tmp/t.json\ndetection: 1 s\n"
      "late_after: 500 ms\npattern: parameter_server\npriorities: false\ntags: false\npayload_crc: true\nusers: [7, "
      "8]\nmax_sessions: 9\narena_limit: 2 GiB\nmemory_limit: 3 GiB\nmemory_keep_free: 1 "
      "GiB\nstaging: 8 MiB\n"
      "slice_elements: 65536\nspin: 5 us\ncpu: 1\nlanes: 2\nworkers: 3\nordering: concurrent\nordering_concurrent: "
      "4\nurgency: "
      "observed\n"
      "batch: 256 KiB\n"
      "record: logs\nrecord_limit: 8 MiB\nspans: 16 MiB\nspans_on_failure: failed\n");
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->self().tcp_address(), "127.0.0.2");
  EXPECT_EQ(config->secret_key, kKey);
  EXPECT_EQ(config->socket, "/run/x.sock");
  EXPECT_EQ(config->metrics, "127.0.0.1:9400");
  EXPECT_EQ(config->spans, mib(16));
  EXPECT_EQ(config->spans_on_failure, file("failed"));
  EXPECT_EQ(config->detection, seconds(1));
  EXPECT_EQ(config->late_after, milliseconds(500));
  EXPECT_EQ(config->pattern, protocol::Pattern::kParameterServer);
  EXPECT_EQ(config->ordering, protocol::Ordering::kConcurrent);
  EXPECT_EQ(config->ordering_concurrent, 4U);
  EXPECT_EQ(config->batch, kib(256));
  EXPECT_FALSE(config->batch_automatic);
  EXPECT_TRUE(config->observe_order);
  EXPECT_FALSE(config->priorities);
  EXPECT_FALSE(config->tags);
  EXPECT_TRUE(config->payload_crc);
  EXPECT_EQ(config->users, (std::vector<std::uint32_t>{7, 8}));
  EXPECT_EQ(config->arena_limit, mib(2048));
  EXPECT_EQ(config->max_sessions, 9u);
  EXPECT_EQ(config->memory_limit, mib(3072));
  EXPECT_EQ(config->memory_keep_free, mib(1024));
  EXPECT_EQ(config->staging, mib(8));
  EXPECT_EQ(config->slice_elements, 65536u);
  EXPECT_EQ(config->lanes, 2u);
  EXPECT_EQ(config->workers, 3u);
  EXPECT_EQ(config->spin, microseconds(5));
  EXPECT_EQ(config->cpu, 1);
  EXPECT_EQ(config->record, std::filesystem::path(config->path).parent_path() / "logs");
  EXPECT_EQ(config->record_limit, mib(8));
}

TEST_F(ConfigTest, LanesAreOneUnlessTheFileSaysMore) {
  const std::string mine = "fabric: fabric.yaml\nhost: h0\nsecret_key_file: h0.key\n";
  EXPECT_EQ(load_text(mine)->lanes, 1u);
  EXPECT_EQ(load_text(mine + "lanes: 16\n")->lanes, 16u);
  for (const std::string wrong : {"0", "17", "-1", "two", "1.5"}) {
    EXPECT_THAT(error("lanes: " + wrong + "\n"),
                ::testing::AllOf(::testing::HasSubstr("is '" + wrong + "'"), ::testing::HasSubstr("daemon.yaml:4"),
                                 ::testing::HasSubstr("expected a whole number from 1 to 16")))
        << wrong;
  }
}

TEST_F(ConfigTest, TheTransportIsChosenHere) {
  const std::string mine = "fabric: fabric.yaml\nhost: h0\nsecret_key_file: h0.key\n";
  EXPECT_EQ(load_text(mine)->transport, DaemonConfig::Transport::kAuto);
  EXPECT_EQ(load_text(mine + "transport: tcp\n")->transport, DaemonConfig::Transport::kTcp);
  const auto rdma = load_text(mine + "rdma: {device: mlx5_0, port: 2, gid_index: 3, queue_pairs: 4, connect: cm}\n");
  ASSERT_TRUE(rdma.ok()) << rdma.status().to_string();
  EXPECT_EQ(rdma->rdma.device, "mlx5_0");
  EXPECT_EQ(rdma->rdma.port, 2);
  EXPECT_EQ(rdma->rdma.gid_index, 3);
  EXPECT_EQ(rdma->rdma.queue_pairs, 4);
  EXPECT_TRUE(rdma->rdma.connect_by_cm);
  EXPECT_FALSE(load_text(mine + "rdma: {connect: verbs}\n")->rdma.connect_by_cm);
  EXPECT_FALSE(load_text(mine)->rdma.connect_by_cm);
  EXPECT_EQ(rdma->rdma.retry, Duration{});
  EXPECT_EQ(load_text(mine + "on_lost_flow: resume\nrdma: {retry: 3 s}\n")->rdma.retry, seconds(3));
  EXPECT_THAT(error("rdma: {retry: 3 s}\n"), ::testing::HasSubstr("expected 'on_lost_flow: resume' beside it"));
  EXPECT_THAT(error("on_lost_flow: resume\nrdma: {retry: 1 ms}\n"), ::testing::HasSubstr("expected at least 100 ms"));
  EXPECT_THAT(error("transport: roce\n"), ::testing::HasSubstr("expected tcp, rdma, dpdk or auto"));
  EXPECT_THAT(error("transport: rdma\n"),
              ::testing::AllOf(::testing::HasSubstr("daemon.yaml:4"),
                               ::testing::HasSubstr("expected an address for rdma of host 'h0' in ")));
  EXPECT_THAT(error("rdma: {queue_pairs: 17}\n"), ::testing::HasSubstr("queue_pairs"));
  EXPECT_THAT(error("rdma: {connect: rdma_cm}\n"), ::testing::HasSubstr("expected verbs or cm"));
  EXPECT_THAT(error("rdma: {devise: x}\n"), ::testing::HasSubstr("did you mean 'device'?"));
}

TEST_F(ConfigTest, DpdkHasADeviceForEachRail) {
  const std::string mine = "fabric: fabric.yaml\nhost: h0\nsecret_key_file: h0.key\n";
  const auto dpdk = load_text(mine +
                              "dpdk: {devices: ['net_af_packet0,iface=eth1'], networks: [10.1.0.0/24], gateways: "
                              "[10.1.0.1], eal: [--no-huge], port: 7200, vlan: 0}\n");
  ASSERT_TRUE(dpdk.ok()) << dpdk.status().to_string();
  EXPECT_EQ(dpdk->dpdk.devices, std::vector<std::string>{"net_af_packet0,iface=eth1"});
  EXPECT_EQ(dpdk->dpdk.networks, std::vector<std::string>{"10.1.0.0/24"});
  EXPECT_EQ(dpdk->dpdk.gateways, std::vector<std::string>{"10.1.0.1"});
  EXPECT_EQ(dpdk->dpdk.eal, std::vector<std::string>{"--no-huge"});
  EXPECT_EQ(dpdk->dpdk.port, 7200);
  EXPECT_EQ(dpdk->dpdk.vlan, 0);
  EXPECT_LT(load_text(mine)->dpdk.vlan, 0);
  for (const auto& [text, words] : std::initializer_list<std::pair<const char*, const char*>>{
           {"transport: dpdk\n", "expected an address for dpdk of host 'h0' in "},
           {"dpdk: {devices: [a, b]}\n", "expected one for each of the 1 rails"},
           {"dpdk: {port: 7200}\n", "expected the devices of the rails"},
           {"dpdk: {devices: [a], gateways: [10.1.0.1]}\n", "expected 'networks' beside them"},
           {"dpdk: {devices: [[a]]}\n", "expected a list of texts"},
           {"dpdk: {devices: [a], vlan: 4095}\n", "vlan"},
           {"dpdk: {devices: [a], prot: 1}\n", "did you mean 'port'?"}}) {
    EXPECT_THAT(error(text), ::testing::HasSubstr(words)) << text;
  }
}

TEST_F(ConfigTest, RdmaIsRefusedWhereDataIsProtectedAndAutoIsNot) {
  const std::string hosts =
      std::string("hosts:\n  - {name: h0, addresses: {tcp: 127.0.0.1, rdma: 127.0.0.1}, public_key: \"") + kKey +
      "\"}\n";
  const auto with = [&](const std::string& level, const std::string& transport) {
    write("fabric.yaml", hosts + "data_protection: " + level + "\n");
    return error("transport: " + transport + "\n");
  };
  for (const char* level : {"authenticate", "encrypt"}) {
    EXPECT_THAT(
        with(level, "rdma"),
        ::testing::AllOf(::testing::HasSubstr("'transport' of"), ::testing::HasSubstr("daemon.yaml:4"),
                         ::testing::HasSubstr("expected tcp or auto, as RDMA cannot protect data and "),
                         ::testing::HasSubstr("fabric.yaml has 'data_protection: " + std::string(level) + "'")));
    EXPECT_EQ(with(level, "auto"), "no error");
    EXPECT_EQ(with(level, "tcp"), "no error");
  }
  EXPECT_EQ(with("none", "rdma"), "no error");
}

TEST_F(ConfigTest, TypoNamesTheKeyThatWasMeant) {
  EXPECT_THAT(error("detectoin: 1 s\n"), ::testing::HasSubstr("unknown key 'detectoin'"));
  EXPECT_THAT(error("detectoin: 1 s\n"), ::testing::HasSubstr("daemon.yaml:4"));
  EXPECT_THAT(error("detectoin: 1 s\n"), ::testing::HasSubstr("did you mean 'detection'?"));
}

TEST_F(ConfigTest, WrongValuesSayWhatWasExpected) {
  EXPECT_THAT(error("detection: soon\n"), ::testing::HasSubstr("expected a number and s, ms or us, e.g. 10 s"));
  EXPECT_THAT(error("detection: 1 ms\n"), ::testing::HasSubstr("expected at least 200 ms"));
  EXPECT_THAT(error("record: logs\nrecord_limit: 10 KiB\n"), ::testing::HasSubstr("expected at least 1 MiB"));
  EXPECT_THAT(error("pattern: star\n"),
              ::testing::HasSubstr("expected ring, halving_doubling, tree, parameter_server, shuffle or auto"));
  EXPECT_THAT(error("ordering: alphabetical\n"),
              ::testing::HasSubstr("expected tagged, funnel, concurrent, chained, counters or negotiated"));
  EXPECT_THAT(error("ordering: funnel\nordering_concurrent: 2\n"),
              ::testing::HasSubstr("it counts with 'ordering: concurrent' only"));
  for (const char* key :
       {"arena_limit", "memory_limit", "memory_keep_free", "staging", "timeline_limit", "record_limit"})
    EXPECT_THAT(error(key + std::string(": 4\n")), ::testing::HasSubstr("expected a size with its unit")) << key;
  for (const char* batch : {"batch: on\n", "batch: 100\n", "batch: 1 byte\n", "batch: 65 MiB\n", "batch: 0 KiB\n"})
    EXPECT_THAT(error(batch), ::testing::HasSubstr("expected off, auto, or a size from 1 KiB to 64 MiB")) << batch;
  EXPECT_THAT(error("urgency: guessed\n"), ::testing::HasSubstr("expected registered or observed"));
  EXPECT_THAT(error("urgency: observed\nsearch_thresholds: true\n"),
              ::testing::HasSubstr("leave out 'search_thresholds'"));
  EXPECT_THAT(error("pattern: whole_server\n"), ::testing::HasSubstr("expected ring"));
  EXPECT_THAT(error("network_model: {latency: 30 us, bandwith: 1 Gbit/s}\n"),
              ::testing::HasSubstr("did you mean 'bandwidth'?"));
  EXPECT_THAT(error("spans: 1 KiB\n"), ::testing::HasSubstr("expected off, or a size from 1 MiB to 1 GiB"));
  EXPECT_EQ(error("spans: off\nspans_on_failure: off\n"), "no error");
  EXPECT_THAT(error("users: [joe]\n"), ::testing::HasSubstr("'joe' in 'users' is no user id"));
  EXPECT_THAT(error("late_after: 9 s\nlate_error: 1 s\n"), ::testing::HasSubstr("expected at least late_after"));
}

// A daemon reads its file while it runs: whatever stands there is a value or an error with a line, never an end.
TEST_F(ConfigTest, EachKeyAloneAtItsExtremes) {
  EXPECT_EQ(error("late_after: 400 s\n"),
            "'late_after' of the daemon's configuration is '400 s': " + file("daemon.yaml") +
                ":4: expected at most late_error, 300 s, or a longer late_error beside it");
  EXPECT_THAT(error("late_error: 5 s\n"), ::testing::AllOf(::testing::HasSubstr("'late_error' of"),
                                                           ::testing::HasSubstr("at least late_after, 10 s")));
  const std::vector<std::string> values = {"",          "0",
                                           "-1",        "0 s",
                                           "1000000 s", "1 B",
                                           "8192 TiB",  "10 Tbit/s",
                                           "[]",        "[1]",
                                           "{}",        "18446744073709551616",
                                           "auto",      std::string(4096, 'a')};
  for (const char* key : {"socket",
                          "metrics",
                          "timeline",
                          "timeline_limit",
                          "spans",
                          "spans_on_failure",
                          "record",
                          "record_limit",
                          "detection",
                          "join_timeout",
                          "late_after",
                          "late_error",
                          "pattern",
                          "batch",
                          "priorities",
                          "tags",
                          "payload_crc",
                          "users",
                          "max_sessions",
                          "arena_limit",
                          "memory_limit",
                          "memory_keep_free",
                          "staging",
                          "slice_elements",
                          "spin",
                          "cpu",
                          "lanes",
                          "workers",
                          "job_limits",
                          "control_rate",
                          "transport",
                          "rdma",
                          "on_lost_flow",
                          "search_thresholds",
                          "urgency",
                          "ordering",
                          "ordering_concurrent",
                          "network_model",
                          "max_pending",
                          "users_guaranteed",
                          "max_tensors",
                          "log_level"}) {
    for (const std::string& value : values) {
      const std::string line = key + (": " + value) + "\n";
      std::string said;
      ASSERT_NO_THROW(said = error(line)) << line;
      if (said != "no error") {
        EXPECT_THAT(said, ::testing::HasSubstr("daemon.yaml:4")) << line;
      }
    }
  }
}

TEST_F(ConfigTest, ThePatternMayBeLeftToTheCostModel) {
  const std::string start = "fabric: fabric.yaml\nhost: h0\nsecret_key_file: h0.key\n";
  auto config = load_text(start + "pattern: auto\n");
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_FALSE(config->pattern.has_value());
  EXPECT_FALSE(config->network_model.bandwidth.has_value());
  config = load_text(start +
                     "network_model: {latency: 30 us, bandwidth: 500 Mbit/s, message_cost: 7 us, incast_percent: 20, "
                     "sum_rate: 8 Gbit/s}\n");
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->pattern, protocol::Pattern::kRing);
  EXPECT_EQ(config->network_model.latency, microseconds(30));
  EXPECT_EQ(config->network_model.bandwidth, BitsPerSecond(500'000'000));
  EXPECT_EQ(config->network_model.message_cost, microseconds(7));
  EXPECT_EQ(config->network_model.incast_percent, 20u);
  EXPECT_EQ(config->network_model.sum_rate, BitsPerSecond(8'000'000'000));
}

TEST_F(ConfigTest, JobsMayBeLimitedInTheClassesAboveTheLowest) {
  const std::string start = "fabric: fabric.yaml\nhost: h0\nsecret_key_file: h0.key\n";
  auto config = load_text(start);
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_FALSE(config->job_limits[0].limited());
  EXPECT_FALSE(config->control_rate);
  config = load_text(start + "job_limits: [{class: urgent, rate: 2 Gbit/s, burst: 1 MiB}]\ncontrol_rate: 10 Mbit/s\n");
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->job_limits[0], (RateLimit{BitsPerSecond(2'000'000'000), mib(1)}));
  EXPECT_FALSE(config->job_limits[1].limited());
  EXPECT_EQ(config->control_rate, BitsPerSecond(10'000'000));
  config = load_text(start + "job_limits: [{class: urgent, rate: 8 Gbit/s}]\n");
  EXPECT_EQ(config->job_limits[0].burst, Bytes(100'000'000));
  config = load_text(start + "job_limits: [{class: urgent, rate: 1 Mbit/s}]\n");
  EXPECT_EQ(config->job_limits[0].burst, kMaxOperation);

  EXPECT_THAT(error("job_limits: [{class: bulk, rate: 1 Gbit/s}]\n"),
              ::testing::HasSubstr("expected a class above the lowest: urgent"));
  EXPECT_THAT(error("job_limits: [{class: urgent}]\n"), ::testing::HasSubstr("'rate'"));
  EXPECT_THAT(error("job_limits: [{class: urgent, rate: fast}]\n"), ::testing::HasSubstr("daemon.yaml:4"));
  EXPECT_THAT(error("job_limits: [{class: urgent, rate: 1 Gbit/s, burst: 2 GiB}]\n"),
              ::testing::HasSubstr("expected at most 1 GiB"));
  EXPECT_THAT(error("job_limits: [{class: urgent, rate: 1 Gbit/s}, {class: urgent, rate: 1 Gbit/s}]\n"),
              ::testing::HasSubstr("expected each class once"));
  EXPECT_THAT(error("control_rate: 1 kbit/s\n"), ::testing::HasSubstr("expected at least 1 Mbit/s"));
}

TEST_F(ConfigTest, HostMustBeInTheFabric) {
  auto config = load_text("fabric: fabric.yaml\nhost: h9\nsecret_key_file: h0.key\n");
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(config.status().fix(), ::testing::HasSubstr("fabric.yaml: h0, h1"));
}

TEST_F(ConfigTest, SecretKeyMustBeSecret) {
  chmod(file("h0.key").c_str(), 0644);
  EXPECT_EQ(error(""),
            "the secret key can be read by other users: " + file("h0.key") + ": chmod 600 " + file("h0.key"));
}

TEST_F(ConfigTest, KeysThatOthersChoseAreRefused) {
  std::filesystem::rename(file("h0.key"), file("real.key"));
  std::filesystem::create_symlink(file("real.key"), file("h0.key"));
  EXPECT_EQ(error(""), "the secret key is a symbolic link, whose target others may choose: " + file("h0.key") +
                           ": name the file itself");
  std::filesystem::remove(file("h0.key"));
  ASSERT_EQ(mkfifo(file("h0.key").c_str(), 0600), 0);
  EXPECT_THAT(error(""), ::testing::StartsWith("the secret key is no regular file: "));
}

TEST_F(ConfigTest, FilesThatEverybodyMayChangeAreRefused) {
  chmod(file("fabric.yaml").c_str(), 0646);
  EXPECT_EQ(error(""), "the fabric file can be changed by everybody: " + file("fabric.yaml") + ": chmod o-w " +
                           file("fabric.yaml"));
  chmod(file("daemon.yaml").c_str(), 0666);
  EXPECT_EQ(load(file("daemon.yaml")).status().to_string(),
            "the daemon's configuration can be changed by everybody: " + file("daemon.yaml") + ": chmod o-w " +
                file("daemon.yaml"));
}

TEST_F(ConfigTest, ThePlaceOfEachKeyIsKnownAndPathsCountFromTheFile) {
  auto config = load_text("fabric: fabric.yaml\nhost: h0\nsecret_key_file: h0.key\nsocket: h0.sock\n");
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->socket, file("h0.sock"));
  EXPECT_EQ(config->secret_key_path, file("h0.key"));
  EXPECT_EQ(config->place("socket"), file("daemon.yaml") + ":4");
  EXPECT_EQ(config->place("metrics"), file("daemon.yaml")) << "left out";
}

TEST_F(ConfigTest, AnEmptyFileIsWrongOnItsFirstLine) {
  EXPECT_THAT(load_text("").status().to_string(), ::testing::HasSubstr(file("daemon.yaml") + ":1: expected a mapping"));
}

TEST_F(ConfigTest, MissingFiles) {
  EXPECT_EQ(load(file("none.yaml")).status().to_string(),
            "cannot read the daemon's configuration: No such file or directory: " + file("none.yaml") +
                ": check the path and its permissions");
  auto config = load_text("fabric: fabric.yaml\nhost: h0\nsecret_key_file: none.key\n");
  EXPECT_THAT(config.status().to_string(),
              ::testing::HasSubstr("cannot read the secret key: No such file or directory"));
  config = load_text("fabric: fabric.yaml\nhost: h0\n");
  EXPECT_THAT(config.status().to_string(),
              ::testing::HasSubstr("no 'secret_key_file', but the fabric has more than one host"));
}

}  // namespace
}  // namespace tensorlane::config
