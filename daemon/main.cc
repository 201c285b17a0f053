// tensorlaned: makes the modules, joins them, and serves until a signal. Nothing else knows all of them.
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <map>

#include "common/fabric/fabric.h"
#include "daemon/config/alike.h"
#include "daemon/config/config.h"
#include "daemon/config/shares.h"
#include "daemon/control/control.h"
#include "daemon/lane/lane.h"
#include "daemon/memory/arena.h"
#include "daemon/memory/scratch.h"
#include "daemon/planning/batches.h"
#include "daemon/planning/pattern_choices.h"
#include "daemon/planning/plan_tensor.h"
#include "daemon/reduce/cpu_reducer.h"
#include "daemon/reduce/workers.h"
#include "daemon/session/server.h"
#include "daemon/telemetry/metrics.h"
#include "daemon/telemetry/timeline.h"
#include "daemon/wiring/lane_config.h"
#include "daemon/wiring/lane_status.h"
#include "daemon/wiring/lanes.h"
#include "daemon/wiring/log.h"
#include "daemon/wiring/recording.h"
#include "daemon/wiring/reload.h"
#include "daemon/wiring/shares.h"
#include "daemon/wiring/transports.h"
#include "daemon/wiring/try_out.h"
#include "daemon/wiring/watchdog.h"

namespace tensorlane {
namespace {

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;
constexpr const char* kServiceUser = "tensorlane";  // of deploy/systemd

static_assert(config::kMaxWorkers <= reduce::Workers::kMaxThreads);

double process_cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// The daemon's parts, in the order in which they are made; they go in the opposite order.
class Daemon {
 public:
  explicit Daemon(config::DaemonConfig config)
      : config_(std::move(config)),
        region_ledger_(wiring::region_ledger(config_, wiring::LaneParts::kMaxRegions)),
        reducer_(reduce::make_cpu_reducer()),
        timeline_(wiring::timeline_config(config_)),
        parts_(config_, *reducer_, timeline_),
        memory_(wiring::memory_budget(config_)),
        arenas_(memory_),
        scratch_(memory_),
        descriptors_(std::make_shared<Ledger>(wiring::descriptor_rules(config_))),
        sessions_(session_config(config_, descriptors_), arenas_),
        patterns_(config_),
        status_({config_, parts_.metrics(), timeline_, patterns_, rails_, [this] { return batch_limit(); },
                 [this] { return exporter_ ? exporter_->address() : std::string(); }}),
        control_(control_config()) {}

  Status start() {
    TL_RETURN_IF_ERROR(parts_.start(config_));
    const host::HostPorts shared{.make_transport =
                                     [this](RailIndex rail, ports::FrameSink& sink) {
                                       return wiring::make_transport(config_, rail, sink, rails_);
                                     },
                                 .make_observer = wiring::recorder_maker(config_),
                                 .scratch = &scratch_,
                                 .regions = &region_ledger_,
                                 .descriptors = descriptors_.get(),
                                 .log = [](const std::string& line) { spdlog::info(line); }};
    TL_ASSIGN_OR_RETURN(lanes_, lane::Lanes::create(wiring::lane_config(config_), parts_.ports(shared)));
    if (!config_.metrics.empty()) {
      TL_RETURN_IF_ERROR(wiring::try_metrics(config_));
      telemetry::ExporterConfig exporter = wiring::exporter_config(config_);
      exporter.version = TENSORLANE_VERSION;
      TL_ASSIGN_OR_RETURN(exporter_,
                          telemetry::Exporter::create(exporter, parts_.metrics(), extra_counters(), user_accounts()));
    }
    lanes_->start(control_);
    TL_RETURN_IF_ERROR(control_.start(*lanes_, sessions_));
    start_timeline();
    return sessions_.start(control_);
  }

  // How often each thread that jobs wait for has turned.
  std::vector<std::pair<std::string, std::uint64_t>> turns() const {
    std::vector<std::pair<std::string, std::uint64_t>> all{
        {"prepare", lanes_->preparer_turns()}, {"control", control_.turns()}, {"sessions", sessions_.turns()}};
    const ports::AllLanes metrics = parts_.metrics();
    for (std::size_t lane = 0; lane < metrics.each().size(); ++lane) {
      all.emplace_back(lane::lane_name(lane), metrics.each()[lane]->loops.value());
      all.emplace_back("work of " + lane::lane_name(lane), metrics.each()[lane]->work_turns.value());
    }
    return all;
  }

  // Takes over what can be taken over from the file, which may have changed. One thread. Where it is wrong, everything
  // stays as it is, and the log says why.
  void reload() {
    Result<config::DaemonConfig> next = config::load(config_.path);
    if (!next.ok()) {
      spdlog::error("nothing was reloaded: {}", next.status().to_string());
      return;
    }
    const wiring::Changes changes = wiring::compare(reloaded_, *next);
    wiring::take_over(*next, &reloaded_);
    wiring::set_log_level(reloaded_.log_level);
    descriptors_->change(wiring::descriptor_rules(reloaded_));
    sessions_.reload(session_config(reloaded_, descriptors_));
    spdlog::info("reloaded {}: {}", config_.path, wiring::text_of(changes));
  }

  // Jobs end with a cause that their clients can read.
  void stop() {
    control_.stop();
    sessions_.stop();
    lanes_->stop();
    timeline_.stop();
    tell_refused();
  }

 private:
  // The log holds back what others can provoke: here it says at last how often they did.
  void tell_refused() const {
    const control::ControlCounts counts = control_.counts();
    const std::uint64_t keys = counts.refused_connections + counts.unproven_connections;
    if (sessions_.refused() + keys + counts.refused_secrets == 0) return;
    spdlog::info(
        "since the start {} processes of this host were refused, {} connections of daemons, and {} hosts or ranks with "
        "another secret",
        sessions_.refused(), keys, counts.refused_secrets);
  }

  // Once the ports are ours: a daemon that cannot start must not touch the file of the one that runs. Before there are
  // sessions, and so jobs. Training matters more than its record: a timeline that cannot be written is an error in the
  // log.
  void start_timeline() {
    if (config_.timeline.empty()) return;
    const Status recording = timeline_.start(config_.timeline);
    if (!recording.ok()) spdlog::error("no timeline: {}", recording.to_string());
  }

  static session::SessionConfig session_config(const config::DaemonConfig& config,
                                               std::shared_ptr<Ledger> descriptors) {
    session::SessionConfig session;
    session.socket_path = config.socket;
    session.allowed_uids = config.users;
    session.max_sessions = config.max_sessions;
    session.max_pending = config.max_pending;
    session.max_tensors = config.max_tensors;
    session.descriptors = std::move(descriptors);
    session.share = [&config](Ledger::Rules rules) { return config::shared(config, std::move(rules)); };
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
    control.settings = config::must_be_alike(config_);
    control.concurrent = config_.ordering == protocol::Ordering::kConcurrent ? config_.ordering_concurrent : 1;
    control.planner = [this](const protocol::TensorBody& body, const ports::JobSpec& job) {
      return planning::plan_tensor(config_, patterns_, body, job);
    };
    if (batch_limit().value > 0) {
      control.batch_planner = [this](const std::vector<protocol::TensorBody>& registered, const ports::JobSpec& job,
                                     std::vector<protocol::PlanTensor>* tensors) {
        const auto plan = [&](const protocol::TensorBody& body) {
          return planning::plan_tensor(config_, patterns_, body, job);
        };
        planning::append_batches(registered, batch_limit(), plan, tensors);
      };
    }
    if (config_.search_thresholds && config_.data_classes() > 1) control.tuned_classes = config_.data_classes();
    control.more_status = [this] { return status_.read(); };
    return control;
  }

  // How long a batch is at most; 0: there are none.
  Bytes batch_limit() const { return config_.batch_automatic ? patterns_.batching_threshold() : config_.batch; }

  std::vector<telemetry::ExtraCounter> extra_counters() {
    const auto control = [this](std::uint64_t control::ControlCounts::*count) {
      return [this, count] { return static_cast<double>(control_.counts().*count); };
    };
    using Counts = control::ControlCounts;
    return {
        {"start_time_seconds", "When the daemon started, in seconds since 1970",
         [began = static_cast<double>(std::time(nullptr))] { return began; }},
        {"jobs_started_total", "Jobs that began on this host with all their ranks", control(&Counts::jobs_started)},
        {"jobs_failed_total", "Jobs that failed on this host, those that never had all their ranks included",
         control(&Counts::jobs_failed)},
        {"control_sent_messages_total", "Messages to other daemons", control(&Counts::messages_sent)},
        {"control_received_messages_total", "Messages of other daemons", control(&Counts::messages_received)},
        {"control_malformed_messages_total", "Of them, dropped because they made no sense",
         control(&Counts::dropped_malformed)},
        {"control_stale_messages_total", "Of them, dropped because their job is gone", control(&Counts::dropped_stale)},
        {"control_unsent_messages_total", "Messages dropped because a peer took none",
         control(&Counts::dropped_unsent)},
        {"jobs_failed_gathering_total", "Of the jobs that failed, those that never had all their ranks",
         control(&Counts::jobs_failed_gathering)},
        {"jobs_failed_connecting_total", "Of the jobs that failed, those that some host did not get ready for",
         control(&Counts::jobs_failed_connecting)},
        {"control_refused_connections_total", "Daemons that were refused because their key is not in the fabric",
         control(&Counts::refused_connections)},
        {"control_unproven_connections_total", "Connections to the control port that ended without a host's key",
         control(&Counts::unproven_connections)},
        {"refused_secrets_total", "Hosts and ranks that were refused because their secret is not the job's",
         control(&Counts::refused_secrets)},
        {"refused_sessions_total", "Processes of this host that were refused before they joined a job",
         [this] { return static_cast<double>(sessions_.refused()); }},
        {"reported_late_total", "Reports of ranks that others wait for, from any host", control(&Counts::late_reports)},
        {"standstill_reports_total", "Reports of flows and lanes that stand still, from any host",
         control(&Counts::standstill_reports)},
        {"cpu_seconds_total", "CPU time of the daemon, all threads", [] { return process_cpu_seconds(); }},
        {"timeline_dropped_spans_total", "Spans that the timeline had no room for",
         [this] { return static_cast<double>(timeline_.dropped()); }},
        {"leftover_segments", "Segments of sessions that have ended, which some process still has open or mapped",
         [this] { return static_cast<double>(arenas_.leftovers()); }},
        {"open_sessions", "Sessions whose memory is held",
         [this] { return static_cast<double>(sessions_.sessions()); }}};
  }

  // What each user has of what all share.
  std::vector<telemetry::ExtraFamily> user_accounts() {
    const auto account = [this](session::Account which) {
      return [this, which] {
        std::map<std::string, double> users;
        for (const Ledger::Row& row : sessions_.in_use(which))
          users[std::to_string(row.owner.user)] += static_cast<double>(row.amount);
        return std::vector<std::pair<std::string, double>>(users.begin(), users.end());
      };
    };
    return {{"user_sessions", "Sessions of a user", "user", account(session::kSessions)},
            {"user_tensors", "Tensors that sessions of a user have registered", "user", account(session::kTensors)},
            {"user_segments", "Segments of shared memory of a user", "user", account(session::kSegments)},
            {"user_descriptors", "Descriptors that are charged to a user", "user", account(session::kDescriptors)}};
  }

  const config::DaemonConfig config_;
  config::DaemonConfig reloaded_ = config_;  // and what reload() took over
  Ledger region_ledger_;                     // of each lane's table of regions
  std::unique_ptr<ports::Reducer> reducer_;
  telemetry::TimelineRecorder timeline_;
  wiring::LaneParts parts_;
  const std::shared_ptr<memory::MemoryBudget> memory_;
  memory::ArenaPool arenas_;
  memory::ScratchPool scratch_;
  std::vector<wiring::RailTransport> rails_;  // complete once the lanes are made
  std::unique_ptr<lane::Lanes> lanes_;
  const std::shared_ptr<Ledger> descriptors_;
  session::SessionServer sessions_;
  planning::PatternChoices patterns_;  // control's thread
  wiring::LaneStatus status_;
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

// Tells the service manager that we read the configuration again, and that we have.
void reload(Daemon& daemon) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%lld",
             static_cast<long long>(now.tv_sec) * 1'000'000 + now.tv_nsec / 1000);
  daemon.reload();
  sd_notify(0, "READY=1");
}

// Waits for SIGTERM or SIGINT, telling the service manager that we live; SIGHUP reloads.
void serve(const sigset_t& signals, Daemon& daemon) {
  wiring::Watchdog watchdog([&daemon] { return daemon.turns(); });
  const timespec period = watchdog.period();
  sd_notify(0, "READY=1");
  for (int signal = 0; signal != SIGTERM && signal != SIGINT;) {
    signal = sigtimedwait(&signals, nullptr, &period);
    if (signal == SIGHUP) reload(daemon);
    if (signal < 0) watchdog.look();
  }
  sd_notify(0, "STOPPING=1");
}

// Its own addresses must resolve. Those of other hosts are looked for when a job needs them: one that has left DNS
// keeps nobody from starting.
Status check_addresses(const config::DaemonConfig& config, bool check_only) {
  TL_RETURN_IF_ERROR(fabric::check_addresses(config.fabric, config.self()));
  if (!check_only) return {};
  for (const fabric::Host& host : config.fabric.hosts) {
    const Status status = fabric::check_addresses(config.fabric, host);
    if (!status.ok()) std::fprintf(stderr, "warning: %s\n", status.to_string().c_str());
  }
  return {};
}

int run(const std::string& path, bool check_only) {
  // Neither cores nor debuggers of the same user: this process has the host's key and the secrets of jobs.
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  prctl(PR_SET_DUMPABLE, 0);
  Result<config::DaemonConfig> config = config::load(path);
  if (!config.ok()) return fail(config.status());
  // Daemons that share a machine read payloads from each other's memory, which the kernel allows one process of a user
  // with another where that one may be dumped (daemon/transport/local).
  if (config->self().addresses.contains("local")) prctl(PR_SET_DUMPABLE, 1);
  if (const Status addresses = check_addresses(*config, check_only); !addresses.ok()) return fail(addresses);
  if (check_only) {
    if (const Status tried = wiring::try_out(*config); !tried.ok()) return fail(tried);
    if (const std::string warning = wiring::key_warning(*config, kServiceUser); !warning.empty())
      std::fprintf(stderr, "warning: %s\n", warning.c_str());
    fmt::print("{}: good: host {} of {}, {} hosts, {} data classes\n", path, config->host, config->fabric_path,
               config->fabric.hosts.size(), config->data_classes());
    return 0;
  }
  wiring::start_log(*config);
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
  serve(signals, daemon);
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
                 "daemon.yaml: fabric file, this host's name, keys (daemon/config/README.md of the installed documents "
                 "lists the keys)")
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
