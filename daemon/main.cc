// tensorlaned: makes the modules, joins them, and serves until a signal. Nothing else knows all of them.
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>

#include "common/fabric/fabric.h"
#include "common/json/json.h"
#include "daemon/config/config.h"
#include "daemon/control/control.h"
#include "daemon/lane/lane.h"
#include "daemon/memory/arena.h"
#include "daemon/memory/scratch.h"
#include "daemon/planning/pattern_choices.h"
#include "daemon/reduce/cpu_reducer.h"
#include "daemon/reduce/workers.h"
#include "daemon/session/server.h"
#include "daemon/telemetry/metrics.h"
#include "daemon/telemetry/span_answers.h"
#include "daemon/telemetry/span_files.h"
#include "daemon/telemetry/span_store.h"
#include "daemon/telemetry/timeline.h"
#include "daemon/wiring/control_config.h"
#include "daemon/wiring/counters.h"
#include "daemon/wiring/job_report.h"
#include "daemon/wiring/lane_config.h"
#include "daemon/wiring/lane_status.h"
#include "daemon/wiring/lanes.h"
#include "daemon/wiring/log.h"
#include "daemon/wiring/mark_watch.h"
#include "daemon/wiring/probing.h"
#include "daemon/wiring/recording.h"
#include "daemon/wiring/reload.h"
#include "daemon/wiring/session_config.h"
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

// The daemon's parts, in the order in which they are made; they go in the opposite order.
class Daemon {
 public:
  explicit Daemon(config::DaemonConfig config)
      : config_(std::move(config)),
        region_ledger_(wiring::region_ledger(config_, wiring::LaneParts::kMaxRegions)),
        reducer_(reduce::make_cpu_reducer()),
        spans_(wiring::span_config(config_)),
        timeline_(spans_, config_.timeline_limit),
        span_files_(spans_, config_.spans_on_failure.value_or(telemetry::default_span_folder())),
        parts_(config_, *reducer_, spans_),
        memory_(wiring::memory_budget(config_)),
        arenas_(memory_),
        scratch_(memory_),
        descriptors_(std::make_shared<Ledger>(wiring::descriptor_rules(config_))),
        sessions_(wiring::session_config(config_, descriptors_), arenas_),
        choices_(config_),
        status_({config_, parts_.metrics(), timeline_, span_files_, choices_, rails_,
                 [this] { return wiring::batch_limit(config_, choices_.patterns); },
                 [this] { return exporter_ ? exporter_->address() : std::string(); }}),
        report_({config_, parts_.metrics()}),
        probing_({{},
                  [this] { return has_jobs(); },
                  &probe_tokens_,
                  config_.classes_in_use(),
                  &rails_,
                  wiring::ProbePorts(config_.fabric, config_.host)}),
        marks_({.fabric = &config_.fabric,
                .host = config_.host,
                .classes = config_.classes_in_use(),
                .every = config_.probe_marks,
                .tokens = &probe_tokens_,
                .ask = [this](const auto&... asked) { control_.ask_host(asked...); }}),
        control_(control_config()) {}

  Status start() {
    TL_RETURN_IF_ERROR(parts_.start(config_));
    const host::HostPorts shared{.make_transport =
                                     [this](RailIndex rail, ports::FlowOwner& owner) {
                                       return wiring::make_transport(config_, rail, owner, &probe_tokens_, rails_);
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
      for (const wiring::RailTransport& rail : rails_) exporter.ports.push_back(rail.port);
      TL_ASSIGN_OR_RETURN(exporter_, telemetry::Exporter::create(exporter, parts_.metrics(),
                                                                 wiring::daemon_counters(control_, sessions_, timeline_,
                                                                                         arenas_, *memory_, config_),
                                                                 families()));
    }
    lanes_->start(control_);
    TL_RETURN_IF_ERROR(control_.start(*lanes_, sessions_));
    start_timeline();
    marks_.start();
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
    sessions_.reload(wiring::session_config(reloaded_, descriptors_));
    spdlog::info("reloaded {}: {}", config_.path, wiring::text_of(changes));
  }

  // Jobs end with a cause that their clients can read.
  void stop() {
    probing_.stop();
    marks_.stop();
    control_.stop();
    sessions_.stop();
    lanes_->stop();
    timeline_.stop();
    spans_.stop();
    span_files_.stop();
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

  control::ControlConfig control_config() {
    const auto status = [this] {
      nlohmann::json status = status_.read();
      status["probes_answered"] = probe_tokens_.answered();
      status["marks"] = marks_.describe();
      return status;
    };
    const auto marks = [this](const ports::Question& question, const ports::Answered& done) {
      marks_.answer(question, done);
    };
    const auto probe = [this](const ports::Question& question, ports::Answered done) {
      probing_.answer(question, std::move(done));
    };
    return wiring::control_config(config_, choices_, span_files_, status,
                                  {{"job", wiring::answerer(report_)},
                                   {"marks", marks},
                                   {"probe", probe},
                                   {"spans", telemetry::span_answerer(spans_)}});
  }

  std::vector<telemetry::ExtraFamily> families() const {
    std::vector<telemetry::ExtraFamily> all = wiring::user_accounts(sessions_);
    for (telemetry::ExtraFamily& family : marks_.metrics()) all.push_back(std::move(family));
    return all;
  }

  // Any thread.
  bool has_jobs() const {
    const ports::AllLanes metrics = parts_.metrics();
    return std::ranges::any_of(metrics.each(), [](const auto& lane) { return lane->jobs.value() > 0; });
  }

  const config::DaemonConfig config_;
  config::DaemonConfig reloaded_ = config_;  // and what reload() took over
  Ledger region_ledger_;                     // of each lane's table of regions
  std::unique_ptr<ports::Reducer> reducer_;
  telemetry::SpanStore spans_;
  telemetry::TimelineRecorder timeline_;
  telemetry::SpanFiles span_files_;
  wiring::LaneParts parts_;
  const std::shared_ptr<memory::MemoryBudget> memory_;
  memory::ArenaPool arenas_;
  memory::ScratchPool scratch_;
  ports::ProbeTokens probe_tokens_;           // of tensorlane verify
  std::vector<wiring::RailTransport> rails_;  // complete once the lanes are made
  std::unique_ptr<lane::Lanes> lanes_;
  const std::shared_ptr<Ledger> descriptors_;
  session::SessionServer sessions_;
  planning::Choices choices_;  // control's thread
  wiring::LaneStatus status_;
  wiring::JobReport report_;
  wiring::Probing probing_;
  wiring::MarkWatch marks_;
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
  const std::size_t lanes = config->lanes, rails = config->self().rails();
  Daemon daemon(std::move(*config));
  if (const Status started = daemon.start(); !started.ok()) return fail(started);
  spdlog::info("tensorlaned {} serves (pid {}) by {} lane{} and {} rail{}", TENSORLANE_VERSION, getpid(), lanes,
               lanes == 1 ? "" : "s", rails, rails == 1 ? "" : "s");
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
