// The metrics page, through its public face: a real HTTP request.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "daemon/telemetry/metrics.h"
#include "daemon/telemetry/scrape_server.h"

namespace tensorlane::telemetry {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

int connection(const std::string& address) {
  const auto colon = address.rfind(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(colon + 1))));
  inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  return fd;
}

std::string answer_to(const std::string& address, const std::string& request) {
  const int fd = connection(address);
  EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t n; (n = read(fd, buffer, sizeof buffer)) > 0;) answer.append(buffer, static_cast<std::size_t>(n));
  close(fd);
  return answer;
}

std::string get(const std::string& address) {
  return answer_to(address, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
}

ExporterConfig two_classes() {
  return {"127.0.0.1:0", "h0", {{"urgent", 43, 5, 5}, {"bulk", 27, 3, 3}}, {"control", 51, 6, 6}, 2};
}

TEST(Exporter, ShowsWhatTheLaneCounted) {
  ports::LaneMetrics metrics;
  metrics.classes[0].bytes_sent.add(1000);
  metrics.classes[1].bytes_sent.add(7);
  metrics.classes[0].queue_wait.record(microseconds(3));
  metrics.classes[0].queue_wait.record(milliseconds(5));
  metrics.cpu_ns.set(1500000000);
  metrics.slices_sent.add(30);
  const ports::FlowKey up{JobId(9), HostIndex(1), ClassId(1)}, gone{JobId(9), HostIndex(2), ClassId(0)};
  metrics.flows.up(RailIndex(1), up,
                   {"train", "h1", ClassId(1), RailIndex(1), 27, 3, "tcp", "10.1.0.1:7 -> 10.1.0.2:7"});
  metrics.flows.up(RailIndex(0), gone,
                   {"train", "h2", ClassId(0), RailIndex(0), 43, 5, "tcp", "10.1.0.1:7 -> 10.1.0.3:7"});
  metrics.flows.down(RailIndex(0), gone);
  metrics.paths.set(
      "h1", RailIndex(1),
      {Time(5), {{"rdma", true, microseconds(3), BitsPerSecond(40), "fastest"}, {"tcp", false, {}, {}, "silent"}}});
  metrics.paths.set("h1", RailIndex(1), {Time(), {{"rdma", true, {}, {}, "the peer's choice"}}});  // says less
  metrics.rails[1].bytes_received[0].add(11);
  const auto job = std::make_shared<ports::JobMetrics>();
  job->name = "train";
  job->user = 1000;
  job->classes[0].bytes_sent.add(900);
  job->classes[0].bytes_met.add(300);
  job->classes[0].bytes_demoted.add(90);
  metrics.job_list.add(job);
  auto exporter =
      Exporter::create(two_classes(), metrics, {{"sessions_ended_total", "Sessions that ended", [] { return 4.0; }}});
  ASSERT_TRUE(exporter.ok()) << exporter.status().to_string();
  const std::string page = get((*exporter)->address());
  EXPECT_THAT(page, HasSubstr("tensorlane_sent_bytes_total{class=\"urgent\"} 1000"));
  EXPECT_THAT(page, HasSubstr("tensorlane_sent_bytes_total{class=\"bulk\"} 7"));
  EXPECT_THAT(page, HasSubstr("tensorlane_queue_wait_seconds_bucket{class=\"urgent\",le=\"4e-06\"} 1"));
  EXPECT_THAT(page, HasSubstr("tensorlane_queue_wait_seconds_count{class=\"urgent\"} 2"));
  EXPECT_THAT(page, HasSubstr("tensorlane_queue_wait_seconds_sum{class=\"urgent\"} 0.005003"));
  EXPECT_THAT(page, HasSubstr("tensorlane_lane_cpu_seconds_total 1.5"));
  EXPECT_THAT(page, HasSubstr("tensorlane_sent_slices_total 30"));
  EXPECT_THAT(
      page,
      HasSubstr("tensorlane_flow_dscp{training_job=\"train\",user=\"0\",peer=\"h1\",class=\"bulk\",rail=\"1\"} 27"));
  EXPECT_THAT(
      page,
      HasSubstr("tensorlane_flow_pcp{training_job=\"train\",user=\"0\",peer=\"h1\",class=\"bulk\",rail=\"1\"} 3"));
  EXPECT_THAT(page, HasSubstr("tensorlane_path_chosen{peer=\"h1\",rail=\"1\",transport=\"rdma\"} 1"));
  EXPECT_THAT(page, HasSubstr("tensorlane_path_chosen{peer=\"h1\",rail=\"1\",transport=\"tcp\"} 0"));
  EXPECT_THAT(page, HasSubstr("tensorlane_path_latency_seconds{peer=\"h1\",rail=\"1\",transport=\"rdma\"} 3e-06"));
  EXPECT_THAT(page,
              HasSubstr("tensorlane_path_bandwidth_bits_per_second{peer=\"h1\",rail=\"1\",transport=\"rdma\"} 40"));
  EXPECT_THAT(page, Not(HasSubstr("tensorlane_path_latency_seconds{peer=\"h1\",rail=\"1\",transport=\"tcp\"}")));
  EXPECT_THAT(page, HasSubstr("tensorlane_rail_received_bytes_total{rail=\"1\",class=\"urgent\"} 11"));
  EXPECT_THAT(page, Not(HasSubstr("peer=\"h2\"")));
  EXPECT_THAT(page, HasSubstr("tensorlane_class_info{class=\"control\",dscp=\"51\",pcp=\"6\",service_level=\"6\"} 1"));
  EXPECT_THAT(
      page,
      HasSubstr("tensorlane_class_info{class=\"urgent\",dscp=\"43\",pcp=\"5\",service_level=\"5\",rank=\"0\"} 1"));
  EXPECT_THAT(
      page, HasSubstr("tensorlane_class_info{class=\"bulk\",dscp=\"27\",pcp=\"3\",service_level=\"3\",rank=\"1\"} 1"));
  EXPECT_THAT(page, HasSubstr("tensorlane_sessions_ended_total 4"));
  EXPECT_THAT(page,
              HasSubstr("tensorlane_job_sent_bytes_total{training_job=\"train\",user=\"1000\",class=\"urgent\"} 900"));
  EXPECT_THAT(page,
              HasSubstr("tensorlane_job_met_bytes_total{training_job=\"train\",user=\"1000\",class=\"urgent\"} 300"));
  EXPECT_THAT(
      page, HasSubstr("tensorlane_job_demoted_bytes_total{training_job=\"train\",user=\"1000\",class=\"urgent\"} 90"));
  metrics.job_list.remove(job);
  EXPECT_THAT(get((*exporter)->address()), ::testing::Not(HasSubstr("tensorlane_job_sent_bytes_total{")));
}

// Whatever has a number of its own in the lane has its own on the page.
TEST(Exporter, NoFamilyShowsAnothersNumbers) {
  ports::LaneMetrics metrics;
  ports::ClassMetrics& urgent = metrics.classes[0];
  urgent.bytes_sent.add(11);
  urgent.bytes_received.add(12);
  urgent.operations_sent.add(13);
  urgent.operations_received.add(14);
  urgent.tensors_completed.add(15);
  urgent.tensors_failed.add(16);
  urgent.window_full.add(17);
  urgent.queue_wait.record(microseconds(1));
  urgent.straggler.record(microseconds(2));
  urgent.straggler.record(microseconds(2));
  for (int i = 0; i < 3; ++i) urgent.completion.record(microseconds(4));
  metrics.oldest_operation_ns[0].set(21'000'000'000);
  metrics.oldest_operation_ns[1].set(22'000'000'000);
  metrics.messages_open.set(25);
  metrics.oldest_message_ns.set(26'500'000'000);
  metrics.rails[1].bytes_sent[0].add(23);
  metrics.rails[1].bytes_received[0].add(24);
  metrics.stale_grants.add(31);
  metrics.protocol_errors.add(32);
  metrics.late_reports.add(33);
  metrics.transport.accepted.add(41);
  metrics.transport.refused.add(42);
  metrics.transport.unauthenticated_dropped.add(43);
  metrics.transport.flows_resumed.add(44);
  metrics.transport.frames_resent.add(45);
  const auto job = std::make_shared<ports::JobMetrics>();
  job->name = "train";
  job->classes[1].bytes_sent.add(51);
  job->classes[1].bytes_received.add(52);
  metrics.job_list.add(job);
  auto exporter = Exporter::create(two_classes(), metrics, {});
  ASSERT_TRUE(exporter.ok()) << exporter.status().to_string();
  const std::string page = get((*exporter)->address());
  for (const char* line : {"sent_bytes_total{class=\"urgent\"} 11",
                           "received_bytes_total{class=\"urgent\"} 12",
                           "sent_operations_total{class=\"urgent\"} 13",
                           "received_operations_total{class=\"urgent\"} 14",
                           "completed_tensors_total{class=\"urgent\"} 15",
                           "failed_tensors_total{class=\"urgent\"} 16",
                           "window_stalls_total{class=\"urgent\"} 17",
                           "queue_wait_seconds_count{class=\"urgent\"} 1",
                           "straggler_seconds_count{class=\"urgent\"} 2",
                           "completion_seconds_count{class=\"urgent\"} 3",
                           "completion_seconds_bucket{class=\"urgent\",le=\"4e-06\"} 0",
                           "completion_seconds_bucket{class=\"urgent\",le=\"8e-06\"} 3",
                           "completion_seconds_bucket{class=\"urgent\",le=\"+Inf\"} 3",
                           "oldest_operation_age_seconds{class=\"urgent\"} 21",
                           "oldest_operation_age_seconds{class=\"bulk\"} 22",
                           "rail_sent_bytes_total{rail=\"1\",class=\"urgent\"} 23",
                           "rail_received_bytes_total{rail=\"1\",class=\"urgent\"} 24",
                           "open_messages 25",
                           "oldest_message_age_seconds 26.5",
                           "stale_grants_total 31",
                           "protocol_errors_total 32",
                           "late_reports_total 33",
                           "accepted_connections_total 41",
                           "refused_connections_total 42",
                           "silent_connections_total 43",
                           "resumed_flows_total 44",
                           "resent_frames_total 45",
                           "job_sent_bytes_total{training_job=\"train\",user=\"0\",class=\"bulk\"} 51",
                           "job_received_bytes_total{training_job=\"train\",user=\"0\",class=\"bulk\"} 52"}) {
    EXPECT_THAT(page, HasSubstr(fmt::format("\ntensorlane_{}\n", line)));
  }
}

// Ports that the daemon drives itself: rail 1 has one, rail 0 none.
TEST(Exporter, ShowsWhatPortsHaveDone) {
  const auto port = std::make_shared<ports::PortMetrics>("0000:3b:00.0", "02:00:00:00:00:01",
                                                         std::vector<std::string>{"ip_checksum", "unasked"});
  port->sent[0].packets.set(11);
  port->sent[0].bytes.set(12);
  port->sent[1].full.set(13);
  port->sent[1].refused.set(38);
  port->device_counters.set([] {
    return ports::DeviceCounters::Values{{"rx_missed_errors", 39}, {"rx_priority3_xoff_packets", 40}};
  });
  port->sent[ports::kControlSlot].packets.set(14);
  port->received_packets.set(15);
  port->received_bytes.set(16);
  port->drops[1].set(17);
  port->no_memory.set(18);
  port->neighbour_questions.set(19);
  port->neighbour_answers.set(20);
  port->link_up.set(1);
  port->link_changes.set(21);
  port->polled_ns.set(22'500'000'000);
  port->busy_ns.set(23'500'000'000);
  port->datagrams.lost.set(31);
  port->datagrams.resent.set(32);
  port->datagrams.spurious.set(33);
  port->datagrams.duplicates.set(34);
  port->datagrams.forged.set(35);
  port->datagrams.marked.set(36);
  port->datagrams.timeouts.set(37);
  ExporterConfig config = two_classes();
  config.ports = {nullptr, port};
  const ports::LaneMetrics nothing;
  auto exporter = Exporter::create(config, nothing, {});
  ASSERT_TRUE(exporter.ok()) << exporter.status().to_string();
  const std::string page = get((*exporter)->address());
  for (const char* line : {"packets_total{rail=\"1\",class=\"urgent\"} 11",
                           "packets_total{rail=\"1\",class=\"bulk\"} 0",
                           "packets_total{rail=\"1\",class=\"control\"} 14",
                           "bytes_total{rail=\"1\",class=\"urgent\"} 12",
                           "queue_full_total{rail=\"1\",class=\"bulk\"} 13",
                           "refused_packets_total{rail=\"1\",class=\"bulk\"} 38",
                           "device_total{rail=\"1\",counter=\"rx_missed_errors\"} 39",
                           "device_total{rail=\"1\",counter=\"rx_priority3_xoff_packets\"} 40",
                           "received_packets_total{rail=\"1\"} 15",
                           "received_bytes_total{rail=\"1\"} 16",
                           "drops_total{rail=\"1\",reason=\"ip_checksum\"} 0",
                           "drops_total{rail=\"1\",reason=\"unasked\"} 17",
                           "no_buffer_total{rail=\"1\"} 18",
                           "neighbour_questions_total{rail=\"1\"} 19",
                           "neighbour_answers_total{rail=\"1\"} 20",
                           "link_up{rail=\"1\"} 1",
                           "link_changes_total{rail=\"1\"} 21",
                           "polled_seconds_total{rail=\"1\"} 22.5",
                           "busy_seconds_total{rail=\"1\"} 23.5",
                           "lost_packets_total{rail=\"1\"} 31",
                           "resent_packets_total{rail=\"1\"} 32",
                           "spurious_losses_total{rail=\"1\"} 33",
                           "duplicate_packets_total{rail=\"1\"} 34",
                           "forged_packets_total{rail=\"1\"} 35",
                           "marked_packets_total{rail=\"1\"} 36",
                           "flow_timeouts_total{rail=\"1\"} 37"}) {
    EXPECT_THAT(page, HasSubstr(fmt::format("\ntensorlane_port_{}\n", line)));
  }
  EXPECT_THAT(page, Not(HasSubstr("tensorlane_port_link_up{rail=\"0\"}")));
}

// A folder as the kernel shows RDMA devices.
class Devices : public ::testing::Test {
 protected:
  Devices() { std::filesystem::create_directories(root_); }
  ~Devices() override { std::filesystem::remove_all(root_); }
  void put(const std::string& file, const std::string& text) {
    const std::filesystem::path path = root_ / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  std::string page() {
    ExporterConfig config = two_classes();
    config.rdma_devices = root_;
    ports::LaneMetrics metrics;
    auto exporter = Exporter::create(config, metrics, {});
    EXPECT_TRUE(exporter.ok());
    return exporter.ok() ? get((*exporter)->address()) : "";
  }
  const std::filesystem::path root_ = std::filesystem::temp_directory_path() / fmt::format("devices-{}", getpid());
};

TEST_F(Devices, CountersAreShownUnderTheirDriversNames) {
  put("mlx5_0/ports/1/hw_counters/out_of_sequence", "17\n");
  put("mlx5_0/ports/1/hw_counters/rnr_nak_retry_err", "18446744073709551615\n");
  put("rxe0/ports/2/hw_counters/completer_retry_err", "3\n");
  const std::string text = page();
  const auto line = [](const char* device, const char* port, const char* counter) {
    return fmt::format("tensorlane_rdma_device_events_total{{device=\"{}\",port=\"{}\",counter=\"{}\"}} ", device, port,
                       counter);
  };
  EXPECT_THAT(text, HasSubstr("# TYPE tensorlane_rdma_device_events_total counter\n"));
  EXPECT_THAT(text, HasSubstr(line("mlx5_0", "1", "out_of_sequence") + "17\n"));
  EXPECT_THAT(text, HasSubstr(line("mlx5_0", "1", "rnr_nak_retry_err") + "1.8446744073709"));
  EXPECT_THAT(text, HasSubstr(line("rxe0", "2", "completer_retry_err") + "3\n"));
}

TEST_F(Devices, WhatIsNoCounterIsLeftOut) {
  put("rxe0/ports/1/hw_counters/lifespan", "10\n");
  put("rxe0/ports/1/hw_counters/strange", "N/A\n");
  put("rxe0/ports/1/state", "4: ACTIVE\n");
  put("rxe0/node_type", "1: CA\n");
  EXPECT_THAT(page(), Not(HasSubstr("tensorlane_rdma_device_events_total{")));
}

TEST_F(Devices, AHostWithoutThemShowsNone) {
  std::filesystem::remove_all(root_);
  const std::string text = page();
  EXPECT_THAT(text, HasSubstr("tensorlane_rdma_device_events_total counter\n"));
  EXPECT_THAT(text, Not(HasSubstr("tensorlane_rdma_device_events_total{")));
}

double seconds_of(const std::function<void()>& what) {
  const auto before = std::chrono::steady_clock::now();
  what();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
}

// One connection that said nothing used to keep Prometheus out for half a minute; a hundred of them, for seconds.
TEST(Exporter, ConnectionsThatSayNothingDoNotKeepAScrapeOut) {
  ports::LaneMetrics metrics;
  auto exporter = Exporter::create(two_classes(), metrics, {});
  ASSERT_TRUE(exporter.ok());
  std::vector<int> idle;
  for (int i = 0; i < 300; ++i) {
    idle.push_back(connection((*exporter)->address()));
    // Of those that have made room the other end is closed by now.
    if (i % 2 == 0) (void)send(idle.back(), "GET /met", 8, MSG_NOSIGNAL);
  }
  // The time of one silent connection would be more.
  const double limit = ScrapeServer::kRequestMs / 1000.0;
  EXPECT_LT(seconds_of([&] { EXPECT_THAT(get((*exporter)->address()), HasSubstr("tensorlane_host_info")); }), limit);
  EXPECT_LT(seconds_of([&] { exporter->reset(); }), limit);
  for (const int fd : idle) close(fd);
}

TEST(Exporter, AConnectionThatIsNotDoneInTimeIsClosed) {
  ports::LaneMetrics metrics;
  auto exporter = Exporter::create(two_classes(), metrics, {});
  ASSERT_TRUE(exporter.ok());
  const int slow = connection((*exporter)->address());
  EXPECT_EQ(write(slow, "GET /met", 8), 8);
  char byte = 0;
  EXPECT_LE(read(slow, &byte, 1), 0);
  close(slow);
}

TEST(Exporter, ShowsWhatRanksWaitFor) {
  ports::LaneMetrics metrics;
  const auto job = std::make_shared<ports::JobMetrics>();
  job->name = "train";
  job->user = 1000;
  job->iterations.set(12);
  job->ranks = std::vector<ports::JobMetrics::PerRank>(2 * kMostRanks);
  for (std::size_t r = 0; r < job->ranks.size(); ++r) job->ranks[r].rank = Rank(static_cast<std::uint32_t>(r));
  job->ranks[3].operations.add(24);
  job->ranks[3].wait_ns.add(1'500'000'000);
  job->ranks[3].blocked_ns.add(250'000'000);
  job->ranks[4].operations.add(5);
  job->ranks[4].stream_waits.add(1);
  metrics.staging_limit_bytes.set(64);
  metrics.job_list.add(job);
  auto exporter = Exporter::create(two_classes(), metrics, {});
  ASSERT_TRUE(exporter.ok());
  const std::string page = get((*exporter)->address());
  EXPECT_THAT(page, HasSubstr("tensorlane_job_iterations_total{training_job=\"train\",user=\"1000\"} 12"));
  const std::string labels = "{training_job=\"train\",user=\"1000\",training_rank=\"3\"} ";
  EXPECT_THAT(page, HasSubstr("tensorlane_job_rank_operations_total" + labels + "24"));
  EXPECT_THAT(page, HasSubstr("tensorlane_job_rank_wait_seconds_total" + labels + "1.5"));
  EXPECT_THAT(page, HasSubstr("tensorlane_job_rank_blocked_seconds_total" + labels + "0.25"));
  EXPECT_THAT(
      page,
      HasSubstr("tensorlane_job_rank_operations_total{training_job=\"train\",user=\"1000\",training_rank=\"4\"} 5"));
  EXPECT_THAT(
      page, Not(HasSubstr(
                "tensorlane_job_rank_blocked_seconds_total{training_job=\"train\",user=\"1000\",training_rank=\"4\"}")))
      << "its streams wait on a GPU: that its threads do not is no figure";
  EXPECT_THAT(page, Not(HasSubstr(fmt::format("training_rank=\"{}\"", kMostRanks))));
  EXPECT_THAT(page, HasSubstr(fmt::format("tensorlane_left_out_ranks {}", kMostRanks)));
  EXPECT_THAT(page, HasSubstr("tensorlane_staging_limit_bytes 64"));
}

TEST(Exporter, AnswersWhatItDoesNotServe) {
  ports::LaneMetrics metrics;
  auto exporter = Exporter::create(two_classes(), metrics, {});
  ASSERT_TRUE(exporter.ok());
  const std::string address = (*exporter)->address();
  EXPECT_THAT(answer_to(address, "GET / HTTP/1.1\r\n\r\n"), HasSubstr("404 Not Found"));
  EXPECT_THAT(answer_to(address, "POST /metrics HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody"), HasSubstr("405 "));
  EXPECT_THAT(answer_to(address, "GET /metrics?name=x HTTP/1.0\r\n\r\n"), HasSubstr("200 OK"));
  EXPECT_THAT(answer_to(address, std::string(20000, 'x')), HasSubstr("431 "));
}

TEST(Exporter, EndsAtOnce) {
  ports::LaneMetrics metrics;
  auto exporter = Exporter::create(two_classes(), metrics, {});
  ASSERT_TRUE(exporter.ok());
  EXPECT_LT(seconds_of([&] { exporter->reset(); }), 1);
}

TEST(Exporter, NamesOfOthersDoNotSpoilThePage) {
  ports::LaneMetrics metrics;
  std::vector<std::shared_ptr<ports::JobMetrics>> jobs;
  for (const char* name : {"\xff\xfe\xfd",
                           "\xc2\x9b"
                           "31m",
                           "a\"b\\c{}", "same", "same"}) {
    jobs.push_back(std::make_shared<ports::JobMetrics>());
    jobs.back()->name = name;
    jobs.back()->classes[0].bytes_sent.add(5);
    metrics.job_list.add(jobs.back());
  }
  auto exporter = Exporter::create(two_classes(), metrics, {});
  ASSERT_TRUE(exporter.ok());
  const std::string page = get((*exporter)->address());
  EXPECT_THAT(page, HasSubstr("tensorlane_job_sent_bytes_total{training_job=\"?"
                              "?"
                              "?\",user=\"0\",class=\"urgent\"} 5"));
  EXPECT_THAT(page, HasSubstr("{training_job=\"?"
                              "?31m\""));
  EXPECT_THAT(page, HasSubstr("{training_job=\"a\\\"b\\\\c{}\""));
  EXPECT_THAT(page, HasSubstr("{training_job=\"same\",user=\"0\",class=\"urgent\"} 10")) << "not the same series twice";
}

TEST(Exporter, LabelsAndSeriesAreBounded) {
  EXPECT_EQ(label_text(std::string(127, 'x') + "\u00e4"), std::string(127, 'x')) << "no half of a character";
  EXPECT_EQ(label_text(std::string(255, 'x')), std::string(kLongestLabel, 'x'));
  ports::LaneMetrics metrics;
  for (std::uint16_t i = 0; i < 600; ++i) {
    metrics.flows.up(RailIndex(0), {JobId(9), HostIndex(i), ClassId(0)},
                     {"train", fmt::format("h{}", i), ClassId(0), RailIndex(0), 43, 5, "tcp", "", 1000});
  }
  auto exporter =
      Exporter::create(two_classes(), metrics, {}, {{"user_sessions", "Sessions", "user", [] {
                                                       return std::vector<std::pair<std::string, double>>{{"1000", 3}};
                                                     }}});
  ASSERT_TRUE(exporter.ok());
  const std::string page = get((*exporter)->address());
  EXPECT_THAT(page,
              HasSubstr("tensorlane_flows{class=\"urgent\",rail=\"0\",dscp=\"43\",pcp=\"5\",transport=\"tcp\"} 600"));
  EXPECT_THAT(page, HasSubstr("tensorlane_left_out_flows 88"));
  EXPECT_THAT(page, HasSubstr("tensorlane_user_sessions{user=\"1000\"} 3"));
}

// A page of a host with 1,024 peers, two rails, three ways to each peer, and eight ranks.
TEST(Exporter, AThousandHostsFitIntoAPage) {
  ports::LaneMetrics metrics;
  const auto job = std::make_shared<ports::JobMetrics>();
  job->name = "train-the-large-model";
  job->ranks = std::vector<ports::JobMetrics::PerRank>(8);
  metrics.job_list.add(job);
  for (std::uint16_t i = 0; i < 1024; ++i) {
    const std::string peer = fmt::format("gpu{:04}.cluster.example", i);
    for (std::uint8_t rail = 0; rail < 2; ++rail) {
      for (const ClassId cls : {ClassId(0), ClassId(1), kControlClass})
        metrics.flows.up(RailIndex(rail), {JobId(9), HostIndex(i), cls},
                         {job->name, peer, cls, RailIndex(rail), 43, 5, "tcp", "", 1000});
      ports::PathReport path{Time(5), {}};
      for (const char* transport : {"rdma", "local", "tcp"})
        path.candidates.push_back({transport, false, microseconds(5), BitsPerSecond(100'000'000'000), ""});
      metrics.paths.set(peer, RailIndex(rail), path);
    }
  }
  auto exporter = Exporter::create(two_classes(), metrics, {});
  ASSERT_TRUE(exporter.ok());
  const std::string page = get((*exporter)->address());
  EXPECT_LT(page.size(), 300'000U);
  EXPECT_GT(page.size(), 50'000U);
  EXPECT_THAT(page, HasSubstr(fmt::format("tensorlane_left_out_flows {}", 1024 * 2 * 3 - kMostSeries)));
  EXPECT_THAT(page, HasSubstr(fmt::format("tensorlane_left_out_paths {}", 1024 * 2 * 3 - kMostPaths)));
}

TEST(Exporter, PortInUseIsAClearError) {
  ports::LaneMetrics metrics;
  auto first = Exporter::create(two_classes(), metrics, {});
  ASSERT_TRUE(first.ok());
  ExporterConfig config = two_classes();
  config.listen = (*first)->address();
  auto second = Exporter::create(config, metrics, {});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().what(), "cannot serve metrics on " + config.listen);
  EXPECT_THAT(second.status().fix(), HasSubstr("stop what uses the port"));
}

TEST(Exporter, AddressWithoutPortIsAClearError) {
  ports::LaneMetrics metrics;
  ExporterConfig config = two_classes();
  config.listen = "localhost";
  auto exporter = Exporter::create(config, metrics, {});
  ASSERT_FALSE(exporter.ok());
  EXPECT_EQ(exporter.status().to_string(),
            "'localhost' is no address to serve metrics on: metrics: write ADDRESS:PORT, e.g. 127.0.0.1:9400");
}

// What --check-config asks.
TEST(Exporter, AnAddressIsTried) {
  EXPECT_TRUE(check_listen_address("127.0.0.1:0").ok());
  EXPECT_EQ(check_listen_address("9400").to_string(),
            "'9400' is no address to serve metrics on: metrics: write ADDRESS:PORT, e.g. 127.0.0.1:9400");
  EXPECT_EQ(
      check_listen_address("192.0.2.1:9400").to_string(),
      "cannot serve metrics on 192.0.2.1:9400: Cannot assign requested address: metrics: write an address of this "
      "host and a port that the daemon may use");
  ports::LaneMetrics metrics;
  auto first = Exporter::create(two_classes(), metrics, {});
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE(check_listen_address((*first)->address()).ok()) << "the running daemon may have it";
}

TEST(Histogram, CountsBelowPowersOfTwoMicroseconds) {
  ports::DurationHistogram h;
  h.record(nanoseconds(999));    // below 1 us
  h.record(microseconds(1));     // [1, 2)
  h.record(microseconds(1023));  // [512, 1024)
  h.record(seconds(100000));     // longer than all
  EXPECT_EQ(h.bucket(0), 1u);
  EXPECT_EQ(h.bucket(1), 1u);
  EXPECT_EQ(h.bucket(10), 1u);
  EXPECT_EQ(h.bucket(ports::DurationHistogram::kBuckets - 1), 1u);
}

}  // namespace
}  // namespace tensorlane::telemetry
