#include "daemon/wiring/job_report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <fstream>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <thread>
#include <tuple>

#include "daemon/telemetry/connections.h"
#include "daemon/telemetry/scheduler.h"
#include "daemon/transport/handshake/socket.h"
#include "daemon/wiring/lane_config.h"

namespace tensorlane::wiring {

using nlohmann::json;

namespace {

constexpr std::size_t kMostSockets = 65536;
constexpr std::size_t kMostThreads = 1024;  // of this process, of which those of lanes are added
constexpr const char* kLaneThreads = "lane";

std::int64_t now_ns(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

json times_of(const telemetry::ThreadTimes& times) {
  if (!times.known) return nullptr;
  return {{"run_ns", times.run_ns}, {"runnable_ns", times.runnable_ns}};
}

// Of the thread that submitted or waited last, with its number: the next time it may be another one.
json describe_waiter(std::uint32_t process, std::uint32_t thread) {
  json waiter = thread == 0 ? json() : times_of(telemetry::read_thread_times(process, thread));
  if (!waiter.is_null()) waiter["thread"] = thread;
  return waiter;
}

json describe_ranks(const ports::JobMetrics& job) {
  json ranks = json::array();
  for (const ports::JobMetrics::PerRank& rank : job.ranks) {
    const auto process = static_cast<std::uint32_t>(rank.process.value()),
               waiter = static_cast<std::uint32_t>(rank.waiter.value());
    ranks.push_back({{"rank", rank.rank.value},
                     {"operations", rank.operations.value()},
                     {"wait_ns", rank.wait_ns.value()},
                     {"late_ns", rank.late_ns.value()},
                     {"blocked_ns", rank.blocked_ns.value()},
                     {"stream_waits", rank.stream_waits.value()},
                     {"waiter", describe_waiter(process, waiter)}});
  }
  return ranks;
}

struct Traffic {
  std::uint64_t received = 0, sent = 0;  // bytes, with everything around the payload
};

// What the NICs of this network namespace have carried, by name.
std::map<std::string, Traffic> read_traffic() {
  std::map<std::string, Traffic> all;
  std::ifstream file("/proc/self/net/dev");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    std::istringstream fields(line.substr(colon + 1));
    Traffic traffic;
    std::array<std::uint64_t, 7> others{};
    fields >> traffic.received;
    for (std::uint64_t& other : others) fields >> other;
    fields >> traffic.sent;
    if (fields) all[line.substr(line.find_first_not_of(' '), colon - line.find_first_not_of(' '))] = traffic;
  }
  return all;
}

}  // namespace

json JobReport::classes(const ports::JobMetrics& job, const ports::LaneMetrics& all) const {
  json classes = json::array();
  for (std::size_t c = 0; c < parts_.config.data_classes(); ++c) {
    const fabric::TrafficClass& cls = parts_.config.fabric.classes.data[c];
    const ports::JobMetrics::PerClass& counts = job.classes[c];
    const RateLimit& limit = parts_.config.job_limits[c];
    classes.push_back({{"name", cls.name},
                       {"dscp", parts_.config.tags ? cls.dscp : 0},
                       {"sent_bytes", counts.bytes_sent.value()},
                       {"received_bytes", counts.bytes_received.value()},
                       {"met_bytes", counts.bytes_met.value()},
                       {"demoted_bytes", counts.bytes_demoted.value()},
                       {"operations", counts.operations.value()},
                       {"completion_ns", counts.completion_ns.value()},
                       {"sends", counts.sends.value()},
                       {"queue_ns", counts.queue_ns.value()},
                       {"host_window_stalls", all.classes[c].window_full.value()},
                       {"window_bytes", window(parts_.config, cls, RailIndex(0)).value},
                       {"limit_bits_per_second", limit.limited() ? json(limit.rate.value) : json()}});
  }
  return classes;
}

const Result<JobReport::Sockets>& JobReport::read_sockets() const {
  const std::int64_t now = now_ns(CLOCK_MONOTONIC);
  if (!sockets_ || now - sockets_read_ns_ > kSocketsLast.value) {
    const auto all = telemetry::read_tcp_connections(kMostSockets);
    if (all.ok()) {
      Sockets by_path;
      for (const telemetry::TcpConnection& socket : *all) by_path[socket.local + " -> " + socket.remote] = socket;
      sockets_ = std::move(by_path);
    } else {
      sockets_ = all.status();
    }
    sockets_read_ns_ = now_ns(CLOCK_MONOTONIC);
  }
  return *sockets_;
}

namespace {

// A flow of the job, and the kernel's view of it.
struct Found {
  const ports::FlowReport* flow;
  const telemetry::TcpConnection* connection;
};

void sort_by_urgency(std::vector<Found>* found) {
  std::map<HostIndex, ClassId> most_urgent;
  for (const Found& f : *found) {
    const auto [at, fresh] = most_urgent.emplace(f.flow->host, f.flow->cls);
    if (!fresh) at->second = std::min(at->second, f.flow->cls);
  }
  std::ranges::stable_sort(*found, {}, [&](const Found& f) {
    return std::tuple(f.flow->cls != most_urgent.at(f.flow->host), f.flow->cls, ~f.connection->acked_bytes);
  });
}

}  // namespace

// The kernel's view of the flows that the job has, in both directions: of a pair of hosts the connection that one of
// them made carries what both send.
void JobReport::add_connections(JobId job, const ports::LaneMetrics& all, json* report) const {
  const std::vector<ports::FlowReport> flows = all.flows.all();
  const Result<Sockets>& sockets = read_sockets();
  json& listed = (*report)["connections"] = json::array();
  std::vector<Found> found;
  if (sockets.ok()) {
    for (const ports::FlowReport& flow : flows) {
      const auto at = flow.id == job && flow.cls != kControlClass ? sockets->find(flow.path) : sockets->end();
      if (at != sockets->end()) found.push_back({&flow, &at->second});
    }
  } else {
    listed = sockets.status().to_string();
  }
  sort_by_urgency(&found);
  const std::size_t described = std::min(found.size(), kMostConnections);
  (*report)["connections_left_out"] = found.size() - described;
  for (const auto& [flow, connection] : std::span(found).first(described)) {
    listed.push_back({{"peer", flow->peer},
                      {"class", parts_.config.fabric.classes.data[flow->cls.value].name},
                      {"rail", flow->rail.value},
                      {"path", flow->path},
                      {"rtt_ns", connection->rtt.value},
                      {"min_rtt_ns", connection->min_rtt.value},
                      {"segments", connection->segments},
                      {"resent", connection->resent},
                      {"acked_bytes", connection->acked_bytes},
                      {"busy_ns", connection->busy.value},
                      {"peer_limited_ns", connection->peer_limited.value}});
  }
}

json JobReport::rails(const ports::LaneMetrics& all) const {
  const std::map<std::string, Traffic> traffic = read_traffic();
  const std::vector<ports::FlowReport> flows = all.flows.all();
  json rails = json::array();
  for (std::uint8_t r = 0; r < parts_.config.self().rails(); ++r) {
    std::uint64_t sent = 0, received = 0;
    for (const ports::Counter& bytes : all.rails[r].bytes_sent) sent += bytes.value();
    for (const ports::Counter& bytes : all.rails[r].bytes_received) received += bytes.value();
    const std::string nic = handshake::interface_of(parts_.config.self().tcp_address(RailIndex(r)));
    const auto carried = traffic.find(nic);
    const auto speed = parts_.config.fabric.link_speed(parts_.config.self(), RailIndex(r));
    std::set<std::string> transports;
    for (const ports::FlowReport& flow : flows) {
      if (flow.rail == RailIndex(r)) transports.insert(flow.transport);
    }
    rails.push_back({{"nic", nic},
                     {"transports", transports},
                     {"bits_per_second", speed ? json(speed->value) : json()},
                     {"sent_bytes", sent},
                     {"received_bytes", received},
                     {"nic_sent_bytes", carried == traffic.end() ? json() : json(carried->second.sent)},
                     {"nic_received_bytes", carried == traffic.end() ? json() : json(carried->second.received)}});
  }
  return rails;
}

Result<json> JobReport::read(JobId id) const {
  const std::unique_ptr<const ports::LaneMetrics> all = parts_.metrics.sum();
  const auto jobs = all->job_list.all();
  const auto job = std::ranges::find(jobs, id, [](const auto& j) { return j->id; });
  if (job == jobs.end()) {
    return Status(Code::kNotFound, "the job has not begun on this host, or is over", parts_.config.host,
                  "ask while all of its ranks are there");
  }
  const telemetry::ThreadTimes lanes =
      telemetry::read_process_times(static_cast<std::uint32_t>(getpid()), kMostThreads, kLaneThreads);
  json report{{"host", parts_.config.host},
              {"job", (*job)->name},
              {"at_ns", now_ns(CLOCK_MONOTONIC)},
              {"wall_clock_ns", now_ns(CLOCK_REALTIME)},
              {"iterations", (*job)->iterations.value()},
              {"batched_operations", (*job)->members.value()},
              {"cpus", std::thread::hardware_concurrency()},
              {"lanes", {{"count", parts_.metrics.each().size()}, {"times", times_of(lanes)}}},
              {"staging_bytes", all->staging_bytes.value()},
              {"staging_limit_bytes", all->staging_limit_bytes.value()},
              {"ranks", describe_ranks(**job)},
              {"classes", classes(**job, *all)},
              {"rails", rails(*all)}};
  add_connections(id, *all, &report);
  return report;
}

ports::Answerer answerer(const JobReport& report) {
  return [&report](const ports::Question& question, const ports::Answered& done) {
    const json args = json::parse(question.args, nullptr, false);
    const bool named = args.is_object() && args.contains("job_id") && args["job_id"].is_number_unsigned();
    const JobId job(named ? args["job_id"].get<std::uint64_t>() : 0);
    if (!named || !question.may_see(job)) {
      return done(Status(Code::kNotFound, "no such job of yours is on this host", "job_id",
                         "name one that `tensorlane status` shows"));
    }
    const Result<json> found = report.read(job);
    if (!found.ok()) return done(found.status());
    done(found->dump(-1, ' ', false, json::error_handler_t::replace));
  };
}

}  // namespace tensorlane::wiring
