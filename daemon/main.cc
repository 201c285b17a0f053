// tensorlaned: wires the rooms together. Nothing else knows all of them.
#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "common/fabric/fabric.h"
#include "daemon/config/config.h"
#include "daemon/control/control.h"
#include "daemon/engine/batching/slicing.h"
#include "daemon/engine/classify/thresholds.h"
#include "daemon/engine/urgency/layer_order.h"
#include "daemon/engine_log/file_sink.h"
#include "daemon/lane/lane.h"
#include "daemon/memory/arena.h"
#include "daemon/memory/region_table.h"
#include "daemon/planning/batches.h"
#include "daemon/planning/pattern_choices.h"
#include "daemon/reduce/cpu_reducer.h"
#include "daemon/session/server.h"
#include "daemon/telemetry/metrics.h"
#include "daemon/telemetry/timeline.h"
#include "daemon/transport/local/local_transport.h"
#include "daemon/transport/mixed/mixed_transport.h"
#include "daemon/transport/rdma/rdma_transport.h"
#include "daemon/transport/tcp/tcp_transport.h"

namespace tensorlane {
namespace {

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;
constexpr std::uint32_t kMaxRegions = 1 << 18;
// Handshakes of RDMA flows have ports of their own behind those of TCP.
constexpr std::uint16_t kRdmaPortOffset = 16;

double process_cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

const char* transport_name(config::DaemonConfig::Transport transport) {
  using Choice = config::DaemonConfig::Transport;
  return transport == Choice::kTcp ? "tcp" : transport == Choice::kRdma ? "rdma" : "auto";
}

// What shapes the tags and sums of one tensor (law 1). Runs on the job's leader.
protocol::PlanTensor plan_tensor(const config::DaemonConfig& config, planning::PatternChoices& patterns,
                                 const protocol::TensorBody& body, const ports::JobSpec& job) {
  const auto hosts = static_cast<std::uint16_t>(job.hosts.size());
  protocol::PlanTensor tensor;
  tensor.operation = body.operation;
  tensor.reduce = body.reduce;
  tensor.dtype = body.dtype;
  tensor.elements = std::max<std::uint64_t>(body.elements, 1);  // a barrier's clients bring none
  tensor.urgency = body.explicit_urgency != 0 ? body.urgency : engine::layer_order(body.position, body.positions);
  tensor.cls =
      config.priorities ? engine::class_by_thresholds(config.fabric.classes.thresholds, tensor.urgency) : ClassId(0);
  tensor.wide_contributions =
      dtype_size(body.dtype) == 2 &&
      std::ranges::any_of(job.hosts, [](const ports::JobHost& host) { return host.ranks.size() > 1; });
  tensor.slice_elements = config.slice_elements != 0
                              ? config.slice_elements
                              : engine::default_slice_elements(body.dtype, config.fabric.slowest_link());
  tensor.pattern = patterns.choose(job.name, tensor, body.pattern, hosts);
  tensor.slice_elements =
      engine::fit_slice_elements(tensor.slice_elements, tensor, hosts, config.data_classes(), config.staging);
  return tensor;
}

// Control frames go before everything, so a job of many small tensors must not fill a link with them (law 10).
RateLimit control_limit(const config::DaemonConfig& config, RailIndex rail) {
  const std::optional<BitsPerSecond> link = config.fabric.link_speed(config.self(), rail);
  if (!config.control_rate && !link) return {};
  const BitsPerSecond rate =
      config.control_rate ? *config.control_rate : std::max(BitsPerSecond(link->value / 20), BitsPerSecond(1'000'000));
  return {rate, std::clamp(Bytes(bytes_per_second(rate) / 50), kib(16), kMaxBurst)};
}

// How much of a class may be in flight on a rail (law 8).
Bytes window(const config::DaemonConfig& config, const fabric::TrafficClass& cls, RailIndex rail) {
  return fabric::window(cls, config.fabric.link_speed(config.self(), rail));
}

lane::LaneConfig lane_config(const config::DaemonConfig& config) {
  lane::LaneConfig lane;
  lane.classes = config.data_classes();
  for (std::uint8_t r = 0; r < config.self().rails(); ++r) {
    lane::RailConfig& rail = lane.rails.emplace_back();
    rail.control_limit = control_limit(config, RailIndex(r));
    for (std::size_t c = 0; c < config.data_classes(); ++c)
      rail.windows.push_back(window(config, config.fabric.classes.data[c], RailIndex(r)));
  }
  lane.single_queue = !config.priorities;
  lane.tunes = config.search_thresholds && config.priorities;
  lane.observes = config.observe_order && config.priorities;
  lane.thresholds = config.fabric.classes.thresholds;
  if (config.priorities) lane.job_limits = config.job_limits;
  lane.staging = config.staging;
  lane.late_after = config.late_after;
  lane.resume_flows = config.on_lost_flow == config::DaemonConfig::OnLostFlow::kResume;
  lane.cpu = config.cpu;
  // The host's cores belong to the training: poll in vain only where one can be spared (law 17).
  const bool spare_cores = std::thread::hardware_concurrency() > 4;
  lane.spin = config.spin.value >= 0 ? config.spin : spare_cores ? microseconds(20) : microseconds(0);
  return lane;
}

tcp::TcpConfig tcp_config(const config::DaemonConfig& config, RailIndex rail) {
  tcp::TcpConfig tcp;
  tcp.listen_address = config.self().tcp_address(rail);
  tcp.data_port = config.self().data_port;
  tcp.payload_crc = config.payload_crc;
  tcp.detection = config.detection;
  const auto add = [&](ClassId cls, const fabric::TrafficClass& c) {
    const ports::ClassTag tag = config.tags ? ports::ClassTag{cls, c.dscp, c.pcp} : ports::ClassTag{cls, 0, 0};
    tcp.classes.push_back({tag, window(config, c, rail)});
  };
  add(kControlClass, config.fabric.classes.control);
  for (std::size_t c = 0; c < config.data_classes(); ++c)
    add(ClassId(static_cast<std::uint8_t>(c)), config.fabric.classes.data[c]);
  return tcp;
}

rdma::RdmaConfig rdma_config(const config::DaemonConfig& config, RailIndex rail) {
  rdma::RdmaConfig rdma;
  const tcp::TcpConfig tcp = tcp_config(config, rail);
  rdma.listen_address = tcp.listen_address;
  rdma.data_port = static_cast<std::uint16_t>(tcp.data_port + kRdmaPortOffset);
  rdma.payload_crc = config.payload_crc;
  rdma.address = *config.self().find_address("rdma", rail);
  rdma.device = config.rdma.device;
  rdma.port = config.rdma.port;
  rdma.gid_index = config.rdma.gid_index;
  rdma.queue_pairs = config.rdma.queue_pairs;
  rdma.connect_by = config.rdma.connect_by_cm ? rdma::ConnectBy::kCm : rdma::ConnectBy::kVerbs;
  rdma.detection = config.detection;
  rdma.retry = config.rdma.retry;
  for (const tcp::TcpClass& c : tcp.classes) {
    const fabric::TrafficClass& described =
        c.tag.cls == kControlClass ? config.fabric.classes.control : config.fabric.classes.data[c.tag.cls.value];
    rdma.classes.push_back({c.tag, c.window});
    rdma.classes.back().tag.service_level = config.tags ? described.service_level : std::uint8_t{0};
  }
  return rdma;
}

local::LocalConfig local_config(const config::DaemonConfig& config, RailIndex rail) {
  const tcp::TcpConfig tcp = tcp_config(config, rail);
  local::LocalConfig local{tcp.listen_address, tcp.data_port, {}, config.payload_crc};
  for (const tcp::TcpClass& c : tcp.classes) local.classes.push_back({c.tag, c.window});
  return local;
}

// Law 13: hosts share a machine where the fabric file says so, by a common `local` address; never because they happen
// to run on one kernel, as those of a lab do.
Status shares_machine(const config::DaemonConfig& config, const std::string& address) {
  const fabric::Host* host = config.fabric.find_host_by_name_or_address(address);
  const auto mine = config.self().addresses.find("local");
  if (host != nullptr && mine != config.self().addresses.end()) {
    const auto theirs = host->addresses.find("local");
    if (theirs != host->addresses.end() && theirs->second.front() == mine->second.front()) return {};
  }
  return {Code::kNotFound, "the hosts have no common local address", config.fabric_path};
}

// What a rail's flows go over.
struct RailTransport {
  std::string name = "tcp";  // of several, as in "local, rdma, tcp", to each host whichever is faster
  std::string device;        // of the NIC
  std::string why_no_rdma;   // empty where there is
};

// Whether flows may go over RDMA on this rail, as daemon.yaml, the fabric file and the device say. An error when
// daemon.yaml insists on it.
Result<RailTransport> rail_transport(const config::DaemonConfig& config, RailIndex rail) {
  using Choice = config::DaemonConfig::Transport;
  const auto only_tcp = [&](std::string why) {
    return RailTransport{"tcp", tcp::explain_device(tcp_config(config, rail)), std::move(why)};
  };
  if (config.transport == Choice::kTcp) return only_tcp("daemon.yaml says `transport: tcp`");
  if (config.transport == Choice::kAuto && !config.self().addresses.contains("rdma"))
    return only_tcp(fmt::format("host '{}' has no rdma address in {}", config.host, config.fabric_path));
  const Result<std::string> device = rdma::explain_device(rdma_config(config, rail));
  if (device.ok()) return RailTransport{config.transport == Choice::kRdma ? "rdma" : "rdma, tcp", *device, ""};
  if (config.transport == Choice::kRdma) return device.status();
  spdlog::warn("flows of rail {} go over TCP: {}", rail.value, device.status().to_string());
  return only_tcp(device.status().to_string());
}

// The transport that daemon.yaml asks for. With `auto`, RDMA and TCP, whichever is faster between two hosts.
Result<std::unique_ptr<ports::Transport>> make_transport(const config::DaemonConfig& config, RailIndex rail,
                                                         ports::FrameSink& sink, std::vector<RailTransport>& rails) {
  TL_ASSIGN_OR_RETURN(const RailTransport transport, rail_transport(config, rail));
  rails.resize(std::max<std::size_t>(rails.size(), rail.value + std::size_t{1}));
  rails[rail.value] = transport;
  const bool rdma = transport.why_no_rdma.empty();
  const bool local =
      config.transport == config::DaemonConfig::Transport::kAuto && config.self().addresses.contains("local");
  if (local) rails[rail.value].name = "local, " + rails[rail.value].name;
  // Others measure the ways to a host with an rdma address, so that one answers even where it has TCP alone.
  if (!config.self().addresses.contains("rdma") && !local)
    return tcp::make_tcp_transport(tcp_config(config, rail), sink);
  mixed::MixedConfig mixed;
  for (const tcp::TcpClass& c : tcp_config(config, rail).classes) mixed.classes.push_back(c.tag.cls);
  if (local) {
    mixed.members.push_back(
        {"local", 0,
         [&config, rail](ports::FrameSink& s) { return local::make_local_transport(local_config(config, rail), s); },
         [&config](const std::string& address) { return shares_machine(config, address); }});
  }
  if (rdma) {
    mixed.members.push_back(
        {"rdma", kRdmaPortOffset,
         [&config, rail](ports::FrameSink& s) { return rdma::make_rdma_transport(rdma_config(config, rail), s); },
         [&config](const std::string& address) -> Status {
           const fabric::Host* host = config.fabric.find_host_by_name_or_address(address);
           if (host != nullptr && host->addresses.contains("rdma")) return {};
           return {Code::kNotFound, "the host has no rdma address", config.fabric_path};
         }});
  }
  if (config.transport != config::DaemonConfig::Transport::kRdma) {
    mixed.members.push_back(
        {"tcp", 0,
         [&config, rail](ports::FrameSink& s) { return tcp::make_tcp_transport(tcp_config(config, rail), s); },
         [](const std::string&) -> Status { return {}; }});
  }
  return mixed::make_mixed_transport(std::move(mixed), sink);
}

telemetry::ExporterConfig exporter_config(const config::DaemonConfig& config) {
  const auto label = [](const fabric::TrafficClass& c) {
    return telemetry::ClassLabel{c.name, c.dscp, c.pcp, c.service_level};
  };
  telemetry::ExporterConfig exporter{
      config.metrics, config.host, {}, label(config.fabric.classes.control), config.self().rails()};
  for (std::size_t c = 0; c < config.data_classes(); ++c)
    exporter.classes.push_back(label(config.fabric.classes.data[c]));
  return exporter;
}

telemetry::TimelineConfig timeline_config(const config::DaemonConfig& config) {
  telemetry::TimelineConfig timeline;
  timeline.host = config.host;
  const auto self = std::ranges::find(config.fabric.hosts, config.host, &fabric::Host::name);
  timeline.sort_index = static_cast<int>(self - config.fabric.hosts.begin());
  for (const fabric::TrafficClass& c : config.fabric.classes.data) {
    timeline.class_names.push_back(c.name);
    timeline.class_dscps.push_back(config.tags ? c.dscp : 0);
  }
  return timeline;
}

// Training matters more than its record: a log that cannot be written is an error in the daemon's own.
lane::RecorderMaker recorder_maker(const config::DaemonConfig& config) {
  if (config.record.empty()) return {};
  if (const Status folder = engine_log::check_folder(config.record); !folder.ok())
    spdlog::error("no engine logs: {}", folder.to_string());
  return [&config](const ports::JobSpec& job, RailIndex rail) -> std::unique_ptr<engine_log::Recorder> {
    auto sink = engine_log::open_file_sink(config.record, job.name, job.credentials.epoch, config.host, rail);
    if (sink.ok())
      return std::make_unique<engine_log::Recorder>(std::move(*sink), config.record_limit, job.name, config.host);
    spdlog::error("no engine log: {}", sink.status().to_string());
    return nullptr;
  };
}

// The daemon's parts, in the order in which they are made; they go in the opposite order.
class Daemon {
 public:
  explicit Daemon(config::DaemonConfig config)
      : config_(std::move(config)),
        regions_(kMaxRegions),
        reducer_(reduce::make_cpu_reducer()),
        timeline_(timeline_config(config_)),
        arenas_({config_.memory_limit, config_.memory_keep_free}),
        sessions_(session_config(config_), arenas_),
        patterns_(config_),
        control_(control_config()) {}

  Status start() {
    if (!config_.timeline.empty()) {
      // Training matters more than its record: a timeline that cannot be written is an error in the log.
      const Status recording = timeline_.start(config_.timeline);
      if (!recording.ok()) spdlog::error("no timeline: {}", recording.to_string());
    }
    const lane::LaneRooms rooms{
        &regions_,
        reducer_.get(),
        &metrics_,
        &timeline_,
        [this](RailIndex rail, ports::FrameSink& sink) { return make_transport(config_, rail, sink, rails_); },
        recorder_maker(config_)};
    TL_ASSIGN_OR_RETURN(lane_, lane::Lane::create(lane_config(config_), rooms));
    if (!config_.metrics.empty()) {
      TL_ASSIGN_OR_RETURN(exporter_, telemetry::Exporter::create(exporter_config(config_), metrics_, extra_counters()));
    }
    lane_->start(control_);
    TL_RETURN_IF_ERROR(control_.start(*lane_, sessions_));
    return sessions_.start(control_);
  }

  // Jobs end with a cause that their clients can read.
  void stop() {
    control_.stop();
    sessions_.stop();
    lane_->stop();
    timeline_.stop();
  }

 private:
  static session::SessionConfig session_config(const config::DaemonConfig& config) {
    session::SessionConfig session;
    session.socket_path = config.socket;
    session.allowed_uids = config.users;
    session.max_sessions = config.max_sessions;
    session.arena_per_session = config.arena_limit;
    if (sd_listen_fds(0) >= 1) session.listen_fd = SD_LISTEN_FDS_START;
    return session;
  }

  control::ControlConfig control_config() {
    control::ControlConfig control;
    control.fabric = &config_.fabric;
    control.host = config_.host;
    control.secret_key = config_.secret_key;
    control.detection = config_.detection;
    control.join_timeout = config_.join_timeout;
    control.stall_warning = config_.late_after;
    control.stall_error = config_.late_error;
    control.ordering = config_.ordering;
    control.concurrent = config_.ordering == protocol::Ordering::kConcurrent ? config_.ordering_concurrent : 1;
    control.planner = [this](const protocol::TensorBody& body, const ports::JobSpec& job) {
      return plan_tensor(config_, patterns_, body, job);
    };
    if (batch_limit().value > 0) {
      control.batch_planner = [this](const std::vector<protocol::TensorBody>& registered, const ports::JobSpec& job,
                                     std::vector<protocol::PlanTensor>* tensors) {
        const auto plan = [&](const protocol::TensorBody& body) { return plan_tensor(config_, patterns_, body, job); };
        planning::append_batches(registered, batch_limit(), plan, tensors);
      };
    }
    if (config_.search_thresholds && config_.data_classes() > 1) control.tuned_classes = config_.data_classes();
    control.more_status = [this] { return lane_status(); };
    return control;
  }

  // How long a batch is at most; 0: there are none.
  Bytes batch_limit() const { return config_.batch_automatic ? patterns_.batching_threshold() : config_.batch; }

  std::vector<telemetry::ExtraCounter> extra_counters() {
    return {{"cpu_seconds_total", "CPU time of the daemon, all threads", [] { return process_cpu_seconds(); }},
            {"timeline_dropped_spans_total", "Spans that the timeline had no room for",
             [this] { return static_cast<double>(timeline_.dropped()); }},
            {"open_sessions", "Sessions whose memory is held",
             [this] { return static_cast<double>(sessions_.sessions()); }}};
  }

  // What is in force and what it did: the part of the status that only this file can put together.
  nlohmann::json lane_status() const {
    nlohmann::json classes = nlohmann::json::array();
    for (std::size_t c = 0; c < config_.data_classes(); ++c) {
      const ports::ClassMetrics& m = metrics_.classes[c];
      classes.push_back({{"name", config_.fabric.classes.data[c].name},
                         {"dscp_in_force", config_.tags ? config_.fabric.classes.data[c].dscp : 0},
                         {"window_bytes", window(config_, config_.fabric.classes.data[c], RailIndex(0)).value},
                         {"sent_bytes", m.bytes_sent.value()},
                         {"received_bytes", m.bytes_received.value()},
                         {"sent_operations", m.operations_sent.value()},
                         {"completed_tensors", m.tensors_completed.value()},
                         {"failed_tensors", m.tensors_failed.value()}});
    }
    nlohmann::json flows = nlohmann::json::array();
    for (const ports::FlowReport& flow : metrics_.flows.all()) {
      flows.push_back({{"job", flow.job},
                       {"peer", flow.peer},
                       {"class", class_name(flow.cls)},
                       {"rail", flow.rail.value},
                       {"dscp", flow.dscp},
                       {"pcp", flow.pcp},
                       {"transport", flow.transport},
                       {"path", flow.path}});
    }
    const std::uint64_t cpu_ns = metrics_.cpu_ns.value(), slices = metrics_.slices_sent.value();
    nlohmann::json jobs = nlohmann::json::array();
    for (const auto& job : metrics_.job_list.all()) {
      nlohmann::json job_classes = nlohmann::json::array();
      for (std::size_t c = 0; c < config_.data_classes(); ++c) {
        job_classes.push_back({{"name", config_.fabric.classes.data[c].name},
                               {"sent_bytes", job->classes[c].bytes_sent.value()},
                               {"demoted_bytes", job->classes[c].bytes_demoted.value()}});
      }
      jobs.push_back({{"name", job->name}, {"id", job->id.value}, {"classes", std::move(job_classes)}});
    }
    std::uint64_t sent = 0;
    for (const ports::ClassMetrics& m : metrics_.classes) sent += m.bytes_sent.value();
    return {{"transports", {{carrier(), {{"bytes_sent", sent}}}}},
            {"lane",
             {{"transport", transport_name(config_.transport)},
              {"paths", path_status()},
              {"pattern", config_.pattern ? protocol::pattern_name(*config_.pattern) : "auto"},
              {"batch_bytes", batch_limit().value},
              {"network_model", patterns_.model()},
              {"pattern_choices", patterns_.choices()},
              {"priorities", config_.priorities},
              {"tags", config_.tags},
              {"cpu_seconds", static_cast<double>(cpu_ns) * 1e-9},
              {"sent_slices", slices},
              {"cpu_ns_per_slice", slices == 0 ? nlohmann::json() : nlohmann::json(cpu_ns / slices)},
              {"staging_bytes", metrics_.staging_bytes.value()},
              {"stale_grants", metrics_.stale_grants.value()},
              {"resumed_flows", metrics_.transport.flows_resumed.value()},
              {"resent_frames", metrics_.transport.frames_resent.value()},
              {"reduced_bytes", metrics_.bytes_reduced.value()},
              {"copied_bytes", metrics_.bytes_copied.value()},
              {"metrics", exporter_ ? exporter_->address() : ""},
              {"timeline", timeline_.enabled() ? config_.timeline : ""},
              {"flows", flows},
              {"rails", rail_status()},
              {"classes", classes},
              {"jobs", std::move(jobs)}}}};
  }

  // How the flows to each peer go, and why.
  nlohmann::json path_status() const {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    const Time now(t.tv_sec * 1'000'000'000ll + t.tv_nsec);
    nlohmann::json paths = nlohmann::json::array();
    for (const ports::PathBoard::Entry& entry : metrics_.paths.all()) {
      const bool measured = entry.report.measured != Time();
      nlohmann::json candidates = nlohmann::json::array();
      for (const ports::PathCandidate& c : entry.report.candidates) {
        const bool figures = c.bandwidth != BitsPerSecond();
        candidates.push_back({{"transport", c.transport},
                              {"chosen", c.chosen},
                              {"latency_s", figures ? nlohmann::json(to_seconds(c.latency)) : nlohmann::json()},
                              {"bits_per_second", figures ? nlohmann::json(c.bandwidth.value) : nlohmann::json()},
                              {"verdict", c.verdict}});
      }
      const nlohmann::json age = measured ? nlohmann::json(to_seconds(now - entry.report.measured)) : nlohmann::json();
      paths.push_back({{"peer", entry.peer},
                       {"rail", entry.rail.value},
                       {"measured_s_ago", age},
                       {"candidates", std::move(candidates)}});
    }
    return paths;
  }

  // The transports that carry the payload: "tcp" where there was nothing to choose.
  std::string carrier() const {
    std::set<std::string> names;
    for (const ports::PathBoard::Entry& entry : metrics_.paths.all()) {
      for (const ports::PathCandidate& c : entry.report.candidates) {
        if (c.chosen) names.insert(c.transport);
      }
    }
    std::string all;
    for (const std::string& name : names) all += (all.empty() ? "" : " and ") + name;
    return all.empty() ? "tcp" : all;
  }

  // What each NIC is used as, and what it carried.
  nlohmann::json rail_status() const {
    nlohmann::json rails = nlohmann::json::array();
    for (std::uint8_t r = 0; r < config_.self().rails(); ++r) {
      nlohmann::json classes = nlohmann::json::array();
      for (std::size_t c = 0; c < config_.data_classes(); ++c) {
        const fabric::TrafficClass& cls = config_.fabric.classes.data[c];
        classes.push_back({{"name", cls.name},
                           {"window_bytes", window(config_, cls, RailIndex(r)).value},
                           {"sent_bytes", metrics_.rails[r].bytes_sent[c].value()},
                           {"received_bytes", metrics_.rails[r].bytes_received[c].value()}});
      }
      const RailTransport& transport = rails_[r];
      rails.push_back({{"address", config_.self().tcp_address(RailIndex(r))},
                       {"transport", transport.name},
                       {"device", transport.device},
                       {"why_no_rdma", transport.why_no_rdma},
                       {"classes", std::move(classes)}});
    }
    return rails;
  }

  const std::string& class_name(ClassId cls) const {
    const fabric::ClassTable& classes = config_.fabric.classes;
    return (cls == kControlClass ? classes.control : classes.data[cls.value]).name;
  }

  const config::DaemonConfig config_;
  memory::RegionTable regions_;
  std::unique_ptr<ports::Reducer> reducer_;
  ports::LaneMetrics metrics_;
  telemetry::TimelineRecorder timeline_;
  memory::ArenaPool arenas_;
  std::vector<RailTransport> rails_;  // complete once the lane is made
  std::unique_ptr<lane::Lane> lane_;
  session::SessionServer sessions_;
  planning::PatternChoices patterns_;  // control's thread
  control::Control control_;
  std::unique_ptr<telemetry::Exporter> exporter_;
};

int fail(const Status& status) {
  std::fprintf(stderr, "%s\n", status.error_line().c_str());
  return status.code() == Code::kInvalidArgument ? kExitUsage : kExitFailure;
}

// Descriptors as many as we may have: sessions, flows and connections that say nothing share them.
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Waits for SIGTERM or SIGINT, telling the service manager that we live.
void serve(const sigset_t& signals) {
  std::uint64_t watchdog_us = 0;
  const bool watched = sd_watchdog_enabled(0, &watchdog_us) > 0;
  const timespec period{static_cast<time_t>(watched ? watchdog_us / 2000000 : 3600),
                        static_cast<long>(watched ? watchdog_us / 2 % 1000000 * 1000 : 0)};
  sd_notify(0, "READY=1");
  while (sigtimedwait(&signals, nullptr, &period) < 0) sd_notify(0, "WATCHDOG=1");
  sd_notify(0, "STOPPING=1");
}

int run(const std::string& path, bool check_only) {
  Result<config::DaemonConfig> config = config::load(path);
  if (!config.ok()) return fail(config.status());
  if (const Status addresses = fabric::check_addresses(config->fabric); !addresses.ok()) return fail(addresses);
  if (check_only) {
    fmt::print("{}: good: host {} of {}, {} hosts, {} data classes\n", path, config->host, config->fabric_path,
               config->fabric.hosts.size(), config->data_classes());
    return 0;
  }
  spdlog::set_default_logger(spdlog::stderr_logger_mt("tensorlaned"));
  spdlog::set_pattern("%Y-%m-%d %H:%M:%S.%e %l " + config->host + ": %v");
  sigset_t signals;
  sigemptyset(&signals);
  for (int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, number);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // before there are threads, so that all inherit it
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  raise_descriptor_limit();
  Daemon daemon(std::move(*config));
  if (const Status started = daemon.start(); !started.ok()) return fail(started);
  spdlog::info("tensorlaned {} serves (pid {})", TENSORLANE_VERSION, getpid());
  serve(signals);
  spdlog::info("stopping");
  daemon.stop();
  return 0;
}

}  // namespace
}  // namespace tensorlane

int main(int argc, char** argv) {
  CLI::App app("The tensorlane daemon: moves the tensors of this host's training processes, urgent ones first",
               "tensorlaned");
  app.footer("Example:\n  tensorlaned --config /etc/tensorlane/daemon.yaml --check-config");
  app.set_version_flag("--version", std::string("tensorlaned ") + TENSORLANE_VERSION);
  std::string path;
  bool check_only = false;
  app.add_option("--config", path,
                 "daemon.yaml: fabric file, this host's name, keys (daemon/config/config.h lists the keys)")
      ->required();
  app.add_flag("--check-config", check_only,
               "Read and check the configuration and the fabric file, say what is wrong, and end");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help_or_version) {
    return app.exit(help_or_version);
  } catch (const CLI::ParseError& bad) {
    return tensorlane::fail(
        {tensorlane::Code::kInvalidArgument, bad.what(), "tensorlaned", "see `tensorlaned --help`"});
  }
  return tensorlane::run(path, check_only);
}
