#include "daemon/telemetry/metrics.h"

#include <fmt/format.h>
#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <array>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "common/base/text.h"
#include "daemon/telemetry/device_counters.h"
#include "daemon/telemetry/port_families.h"
#include "daemon/telemetry/scrape_server.h"

namespace tensorlane::telemetry {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

// What is served, of what the lanes have counted until now.
class Page final {
 public:
  Page(const ExporterConfig& config, const ports::LaneMetrics& metrics) : config_(config), metrics_(metrics) {}

  std::vector<MetricFamily> families() const {
    std::vector<MetricFamily> families;
    add_class_counters(families);
    add_ages(families);
    add_rail_counters(families);
    add_histogram(families, "queue_wait_seconds", "From eligible to given to the transport, per transport operation",
                  &ports::ClassMetrics::queue_wait);
    add_histogram(
        families, "straggler_seconds",
        "From the first rank's or host's arrival at an operation to the last one's, as far as this host hears, "
        "per tensor",
        &ports::ClassMetrics::straggler);
    add_histogram(families, "completion_seconds", "From the last local rank's submission to completion, per tensor",
                  &ports::ClassMetrics::completion);
    add_job_counters(families);
    add_job_ranks(families);
    add_scalars(families);
    add_transport(families);
    add_info(families);
    add_flows(families);
    add_paths(families);
    add_device_counters(families);
    return families;
  }
  static void add_extra(const ExtraCounter& extra, std::vector<MetricFamily>& families) {
    families.push_back(make(extra.name, extra.help, type_of(extra.name)));
    add_value(families.back(), {}, extra.read());
  }
  static void add_extra(const ExtraFamily& extra, std::vector<MetricFamily>& families) {
    families.push_back(make(extra.name, extra.help, type_of(extra.name)));
    for (const auto& [label, value] : extra.read())
      add_value(families.back(), {{extra.label, label_text(label)}}, value);
  }

 private:
  static MetricType type_of(const std::string& name) {
    return name.ends_with("_total") ? MetricType::Counter : MetricType::Gauge;
  }

  static MetricFamily make(const std::string& name, const std::string& help, MetricType type) {
    MetricFamily family;
    family.name = "tensorlane_" + name;
    family.help = help;
    family.type = type;
    return family;
  }

  static void add_value(MetricFamily& family, std::vector<ClientMetric::Label> labels, double value) {
    ClientMetric metric;
    metric.label = std::move(labels);
    if (family.type == MetricType::Counter) {
      metric.counter.value = value;
    } else {
      metric.gauge.value = value;
    }
    family.metric.push_back(std::move(metric));
  }

  // Calls visit(slot, label) for every class that exists, control last.
  template <typename F>
  void each_class(F visit) const {
    for (std::size_t c = 0; c < config_.classes.size(); ++c) visit(c, config_.classes[c]);
    visit(ports::kControlSlot, config_.control);
  }

  void add_class_counters(std::vector<MetricFamily>& families) const {
    struct Row {
      const char* name;
      const char* help;
      ports::Counter ports::ClassMetrics::*counter;
    };
    static constexpr Row kRows[] = {
        {"sent_bytes_total", "Payload given to the transport", &ports::ClassMetrics::bytes_sent},
        {"received_bytes_total", "Payload received", &ports::ClassMetrics::bytes_received},
        {"sent_operations_total", "Transport operations of at most 256 KiB sent",
         &ports::ClassMetrics::operations_sent},
        {"received_operations_total", "Transport operations of at most 256 KiB received",
         &ports::ClassMetrics::operations_received},
        {"completed_tensors_total", "Operations on tensors that completed on this host",
         &ports::ClassMetrics::tensors_completed},
        {"failed_tensors_total", "Operations on tensors that failed on this host",
         &ports::ClassMetrics::tensors_failed},
        {"window_stalls_total", "Times a send waited because the window of its class was full",
         &ports::ClassMetrics::window_full},
    };
    for (const Row& row : kRows) {
      MetricFamily family = make(row.name, row.help, MetricType::Counter);
      each_class([&](std::size_t slot, const ClassLabel& label) {
        add_value(family, {{"class", label.name}}, static_cast<double>((metrics_.classes[slot].*row.counter).value()));
      });
      families.push_back(std::move(family));
    }
  }

  void add_ages(std::vector<MetricFamily>& families) const {
    MetricFamily ages = make("oldest_operation_age_seconds",
                             "Age of the oldest operation that all ranks of this host have submitted, and that is not "
                             "complete; 0: there is none",
                             MetricType::Gauge);
    for (std::size_t c = 0; c < config_.classes.size(); ++c) {
      add_value(ages, {{"class", config_.classes[c].name}},
                static_cast<double>(metrics_.oldest_operation_ns[c].value()) * 1e-9);
    }
    families.push_back(std::move(ages));
  }

  void add_rail_counters(std::vector<MetricFamily>& families) const {
    MetricFamily sent = make("rail_sent_bytes_total", "Payload given to the transport of a rail", MetricType::Counter);
    MetricFamily received = make("rail_received_bytes_total", "Payload received on a rail", MetricType::Counter);
    for (std::size_t r = 0; r < config_.rails; ++r) {
      each_class([&](std::size_t slot, const ClassLabel& label) {
        const std::vector<ClientMetric::Label> labels{{"rail", std::to_string(r)}, {"class", label.name}};
        add_value(sent, labels, static_cast<double>(metrics_.rails[r].bytes_sent[slot].value()));
        add_value(received, labels, static_cast<double>(metrics_.rails[r].bytes_received[slot].value()));
      });
    }
    families.push_back(std::move(sent));
    families.push_back(std::move(received));
  }

  // Jobs of one user with the same name are counted together, and so are those beyond kMostSeries.
  void add_job_counters(std::vector<MetricFamily>& families) const {
    using Sums = std::array<double, 4>;  // sent, received, met, demoted
    std::map<std::tuple<std::string, std::string, std::size_t>, Sums> sums;
    std::size_t jobs = 0;
    for (const auto& job : metrics_.job_list.all()) {
      const bool named = ++jobs <= kMostSeries;
      const std::string name = named ? label_text(job->name) : "(others)";
      const std::string user = named ? std::to_string(job->user) : "(others)";
      for (std::size_t c = 0; c < config_.classes.size(); ++c) {
        Sums& sum = sums[{name, user, c}];
        sum[0] += static_cast<double>(job->classes[c].bytes_sent.value());
        sum[1] += static_cast<double>(job->classes[c].bytes_received.value());
        sum[2] += static_cast<double>(job->classes[c].bytes_met.value());
        sum[3] += static_cast<double>(job->classes[c].bytes_demoted.value());
      }
    }
    static constexpr std::array<std::array<const char*, 2>, 4> kRows = {
        {{"job_sent_bytes_total", "Payload of a job given to the transport, by the class it went in"},
         {"job_received_bytes_total", "Payload of a job received, by the class it came in"},
         {"job_met_bytes_total",
          "Of a job's payload given to the transport, what went while a less urgent class had something to send, too, "
          "on "
          "the same NIC"},
         {"job_demoted_bytes_total",
          "Payload of a job that went in a lower class than its own because the limit of that was used up"}}};
    for (std::size_t row = 0; row < kRows.size(); ++row) {
      families.push_back(make(kRows[row][0], kRows[row][1], MetricType::Counter));
      for (const auto& [key, sum] : sums) {
        const auto& [name, user, c] = key;
        add_value(families.back(), {{"training_job", name}, {"user", user}, {"class", config_.classes[c].name}},
                  sum[row]);
      }
    }
  }

  // What ranks of this host wait for: by training_rank, since "rank" is a class's. At most kMostRanks of all jobs. A
  // rank whose streams wait on a GPU has no time blocked: its threads go on, and how long the streams wait nobody
  // measures.
  void add_job_ranks(std::vector<MetricFamily>& families) const {
    using Key = std::tuple<std::string, std::string, std::string>;
    constexpr std::size_t kBlocked = 2;
    std::map<Key, std::array<double, 3>> sums;  // operations, seconds waited, seconds blocked
    std::set<Key> streams_wait;
    std::map<std::pair<std::string, std::string>, double> iterations;
    double left_out = 0;
    std::size_t jobs = 0;
    for (const auto& job : metrics_.job_list.all()) {
      if (++jobs > kMostSeries) {
        left_out += static_cast<double>(job->ranks.size());
        continue;
      }
      const std::string name = label_text(job->name), user = std::to_string(job->user);
      iterations[{name, user}] += static_cast<double>(job->iterations.value());
      for (const ports::JobMetrics::PerRank& rank : job->ranks) {
        const Key key{name, user, std::to_string(rank.rank.value)};
        if (sums.size() >= kMostRanks && !sums.contains(key)) {
          ++left_out;
          continue;
        }
        sums[key][0] += static_cast<double>(rank.operations.value());
        sums[key][1] += static_cast<double>(rank.wait_ns.value()) * 1e-9;
        sums[key][kBlocked] += static_cast<double>(rank.blocked_ns.value()) * 1e-9;
        if (rank.stream_waits.value() > 0) streams_wait.insert(key);
      }
    }
    families.push_back(
        make("job_iterations_total", "Iterations of a job, as this host counts them", MetricType::Counter));
    for (const auto& [key, count] : iterations)
      add_value(families.back(), {{"training_job", key.first}, {"user", key.second}}, count);
    static constexpr std::array<std::array<const char*, 2>, 3> kRows = {
        {{"job_rank_operations_total", "Complete operations of a rank"},
         {"job_rank_wait_seconds_total",
          "From a rank's submission to completion, of all its operations: of two ranks "
          "the one that waits less was later"},
         {"job_rank_blocked_seconds_total",
          "That a rank's threads were blocked in waits, as its process says; none where streams of a GPU wait"}}};
    for (std::size_t row = 0; row < kRows.size(); ++row) {
      families.push_back(make(kRows[row][0], kRows[row][1], MetricType::Counter));
      for (const auto& [key, sum] : sums) {
        if (row == kBlocked && streams_wait.contains(key)) continue;
        const auto& [name, user, rank] = key;
        add_value(families.back(), {{"training_job", name}, {"user", user}, {"training_rank", rank}}, sum[row]);
      }
    }
    families.push_back(make("left_out_ranks", "Ranks of this host without series of their own", MetricType::Gauge));
    add_value(families.back(), {}, left_out);
  }

  void add_histogram(std::vector<MetricFamily>& families, const char* name, const char* help,
                     ports::DurationHistogram ports::ClassMetrics::*histogram) const {
    MetricFamily family = make(name, help, MetricType::Histogram);
    each_class([&](std::size_t slot, const ClassLabel& label) {
      const ports::DurationHistogram& h = metrics_.classes[slot].*histogram;
      ClientMetric metric;
      metric.label = {{"class", label.name}};
      std::uint64_t total = 0;
      for (std::size_t i = 0; i + 1 < ports::DurationHistogram::kBuckets; ++i) {
        total += h.bucket(i);
        metric.histogram.bucket.push_back({total, static_cast<double>(std::uint64_t{1} << i) * 1e-6});
      }
      total += h.bucket(ports::DurationHistogram::kBuckets - 1);
      metric.histogram.bucket.push_back({total, std::numeric_limits<double>::infinity()});
      metric.histogram.sample_count = total;
      metric.histogram.sample_sum = static_cast<double>(h.sum_ns()) * 1e-9;
      family.metric.push_back(std::move(metric));
    });
    families.push_back(std::move(family));
  }

  void add_scalars(std::vector<MetricFamily>& families) const {
    const ports::LaneMetrics& m = metrics_;
    struct Row {
      const char* name;
      const char* help;
      double value;
      bool counter;
    };
    const Row rows[] = {
        {"lane_cpu_seconds_total", "CPU time of the lanes' threads", static_cast<double>(m.cpu_ns.value()) * 1e-9,
         true},
        {"work_cpu_seconds_total", "CPU time of the threads that sum and copy beside the lanes",
         static_cast<double>(m.work_cpu_ns.value()) * 1e-9, true},
        {"sent_slices_total",
         "Slices given to the transport; lane_cpu_seconds_total and work_cpu_seconds_total over this are the CPU time "
         "per "
         "slice",
         static_cast<double>(m.slices_sent.value()), true},
        {"lane_turns_total", "Turns of the lanes' loops", static_cast<double>(m.loops.value()), true},
        {"lane_sleeps_total", "Times that a lane blocked", static_cast<double>(m.sleeps.value()), true},
        {"reduced_slice_blocks_total", "Blocks of arithmetic done for the engine",
         static_cast<double>(m.slices_reduced.value()), true},
        {"reduced_bytes_total", "Bytes read by sums", static_cast<double>(m.bytes_reduced.value()), true},
        {"copied_bytes_total", "Bytes copied between ranks of this host", static_cast<double>(m.bytes_copied.value()),
         true},
        {"stale_grants_total", "Frames dropped because their grant was stale",
         static_cast<double>(m.stale_grants.value()), true},
        {"protocol_errors_total", "Frames that broke the protocol", static_cast<double>(m.protocol_errors.value()),
         true},
        {"late_reports_total", "Times a rank of this host was reported late",
         static_cast<double>(m.late_reports.value()), true},
        {"jobs", "Jobs now", static_cast<double>(m.jobs.value()), false},
        {"sessions", "Client sessions now", static_cast<double>(m.sessions.value()), false},
        {"pending_operations", "Operations on tensors under way between hosts",
         static_cast<double>(m.operations_pending.value()), false},
        {"open_messages", "Sends and receives of ranks of this host that are not over",
         static_cast<double>(m.messages_open.value()), false},
        {"oldest_message_age_seconds", "Age of the oldest of them; 0: there is none",
         static_cast<double>(m.oldest_message_ns.value()) * 1e-9, false},
        {"staging_bytes", "Staging memory in use", static_cast<double>(m.staging_bytes.value()), false},
        {"staging_limit_bytes", "Staging memory that the jobs now have",
         static_cast<double>(m.staging_limit_bytes.value()), false},
    };
    for (const Row& row : rows) {
      MetricFamily family = make(row.name, row.help, row.counter ? MetricType::Counter : MetricType::Gauge);
      add_value(family, {}, row.value);
      families.push_back(std::move(family));
    }
  }

  // Of all the lanes' transports together.
  void add_transport(std::vector<MetricFamily>& families) const {
    const ports::TransportMetrics& m = metrics_.transport;
    struct Row {
      const char* name;
      const char* help;
      const ports::Counter& counter;
    };
    const Row rows[] = {
        {"accepted_connections_total", "Connections that were made to the data ports, whoever made them", m.accepted},
        {"refused_connections_total", "Of them, refused in the handshake", m.refused},
        {"silent_connections_total", "Of them, dropped because they did not prove themselves in time",
         m.unauthenticated_dropped},
        {"dropped_payloads_total", "Payloads read and dropped because their grant was stale", m.payloads_dropped},
        {"resumed_flows_total", "Times that a flow lost its connection and went on over a new one", m.flows_resumed},
        {"resent_frames_total", "Frames sent again because the connection that had carried them was lost",
         m.frames_resent},
        {"placed_payloads_total", "Payloads that peers wrote straight to where they belong (RDMA)", m.payloads_placed},
        {"message_payloads_total", "Payloads that came in messages and were copied (RDMA)", m.payloads_copied},
        {"port_down_total", "Times that the RDMA port went down", m.ports_down},
        {"retries_exhausted_total", "Queue pairs lost because a peer acknowledged nothing", m.retries_exhausted},
        {"receivers_not_ready_total", "Queue pairs lost because a peer had no receive posted", m.receivers_not_ready},
        {"access_errors_total", "Queue pairs lost because memory could not be read or written", m.access_errors},
    };
    for (const Row& row : rows) {
      MetricFamily family = make(row.name, row.help, MetricType::Counter);
      add_value(family, {}, static_cast<double>(row.counter.value()));
      families.push_back(std::move(family));
    }
  }

  void add_info(std::vector<MetricFamily>& families) const {
    MetricFamily family = make("class_info", "How a class is tagged", MetricType::Gauge);
    each_class([&](std::size_t slot, const ClassLabel& label) {
      std::vector<ClientMetric::Label> labels{{"class", label.name},
                                              {"dscp", std::to_string(label.dscp)},
                                              {"pcp", std::to_string(label.pcp)},
                                              {"service_level", std::to_string(label.service_level)}};
      if (slot != ports::kControlSlot) labels.push_back({"rank", std::to_string(slot)});
      add_value(family, std::move(labels), 1);
    });
    families.push_back(std::move(family));
    MetricFamily host = make("host_info", "This host in the fabric file", MetricType::Gauge);
    add_value(host, {{"host", config_.host}}, 1);
    families.push_back(std::move(host));
    families.push_back(make("build_info", "Which tensorlaned this is", MetricType::Gauge));
    add_value(families.back(), {{"version", config_.version}}, 1);
  }

  void add_flows(std::vector<MetricFamily>& families) const {
    // Not "job": Prometheus has that label for the scrape's own.
    MetricFamily dscp = make("flow_dscp", "DSCP in force, read back from the device when the flow came up; -1: unknown",
                             MetricType::Gauge);
    MetricFamily pcp =
        make("flow_pcp", "802.1p priority in force, read back when the flow came up; -1: unknown", MetricType::Gauge);
    MetricFamily all = make("flows", "Flows that are up, by their tags in force", MetricType::Gauge);
    MetricFamily left_out =
        make("left_out_flows", "Flows without a flow_dscp and a flow_pcp of their own", MetricType::Gauge);
    std::map<std::tuple<std::string, std::string, int, int, std::string>, double> counts;
    std::set<std::tuple<std::string, std::string, std::string, std::string, std::string>> shown;
    double hidden = 0;
    for (const ports::FlowReport& flow : metrics_.flows.all()) {
      const ClassLabel& cls = flow.cls == kControlClass ? config_.control : config_.classes[flow.cls.value];
      const std::string rail = std::to_string(flow.rail.value), name = label_text(flow.job);
      const std::string user = std::to_string(flow.user);
      ++counts[{cls.name, rail, flow.dscp, flow.pcp, flow.transport}];
      if (shown.size() >= kMostSeries || !shown.emplace(name, user, flow.peer, cls.name, rail).second) {
        ++hidden;
        continue;
      }
      const std::vector<ClientMetric::Label> labels{
          {"training_job", name}, {"user", user}, {"peer", flow.peer}, {"class", cls.name}, {"rail", rail}};
      add_value(dscp, labels, flow.dscp);
      add_value(pcp, labels, flow.pcp);
    }
    for (const auto& [key, count] : counts) {
      const auto& [cls, rail, flow_dscp, flow_pcp, transport] = key;
      add_value(all,
                {{"class", cls},
                 {"rail", rail},
                 {"dscp", std::to_string(flow_dscp)},
                 {"pcp", std::to_string(flow_pcp)},
                 {"transport", transport}},
                count);
    }
    add_value(left_out, {}, hidden);
    for (MetricFamily* family : {&dscp, &pcp, &all, &left_out}) families.push_back(std::move(*family));
  }

  void add_paths(std::vector<MetricFamily>& families) const {
    MetricFamily chosen = make(
        "path_chosen", "1 for the transport that flows to a peer take, 0 for one they could take", MetricType::Gauge);
    MetricFamily latency = make("path_latency_seconds",
                                "One way, of 64 bytes, as measured for the choice of a transport", MetricType::Gauge);
    MetricFamily bandwidth =
        make("path_bandwidth_bits_per_second", "As measured for the choice of a transport", MetricType::Gauge);
    MetricFamily left_out = make("left_out_paths", "Transports to peers without a path_chosen", MetricType::Gauge);
    std::size_t shown = 0, hidden = 0;
    for (const ports::PathBoard::Entry& path : metrics_.paths.all()) {
      for (const ports::PathCandidate& c : path.report.candidates) {
        if (shown == kMostPaths) {
          ++hidden;
          continue;
        }
        ++shown;
        const std::vector<ClientMetric::Label> labels{
            {"peer", path.peer}, {"rail", std::to_string(path.rail.value)}, {"transport", c.transport}};
        add_value(chosen, labels, c.chosen ? 1 : 0);
        if (c.bandwidth == BitsPerSecond()) continue;  // it was not measured
        add_value(latency, labels, to_seconds(c.latency));
        add_value(bandwidth, labels, static_cast<double>(c.bandwidth.value));
      }
    }
    add_value(left_out, {}, static_cast<double>(hidden));
    for (MetricFamily* family : {&chosen, &latency, &bandwidth, &left_out}) families.push_back(std::move(*family));
  }

  void add_device_counters(std::vector<MetricFamily>& families) const {
    MetricFamily family =
        make("rdma_device_events_total", "What an RDMA device of this host has counted, under its driver's names",
             MetricType::Counter);
    for (const DeviceCounter& c : read_device_counters(config_.rdma_devices))
      add_value(family, {{"device", c.device}, {"port", c.port}, {"counter", c.name}}, c.value);
    families.push_back(std::move(family));
  }

  const ExporterConfig& config_;
  const ports::LaneMetrics& metrics_;
};

// Reads the lanes' counts when Prometheus asks, and only then.
class Collector final : public prometheus::Collectable {
 public:
  Collector(const ExporterConfig& config, ports::AllLanes metrics, std::vector<ExtraCounter> extra,
            std::vector<ExtraFamily> families)
      : config_(config), metrics_(std::move(metrics)), extra_(std::move(extra)), families_(std::move(families)) {}

  std::vector<MetricFamily> Collect() const override {
    const std::unique_ptr<const ports::LaneMetrics> now = metrics_.sum();
    std::vector<MetricFamily> families = Page(config_, *now).families();
    for (MetricFamily& family : port_families(config_)) families.push_back(std::move(family));
    for (const ExtraCounter& extra : extra_) Page::add_extra(extra, families);
    for (const ExtraFamily& extra : families_) Page::add_extra(extra, families);
    return families;
  }

 private:
  const ExporterConfig config_;
  const ports::AllLanes metrics_;
  const std::vector<ExtraCounter> extra_;
  const std::vector<ExtraFamily> families_;
};

class HttpExporter final : public Exporter {
 public:
  explicit HttpExporter(std::unique_ptr<ScrapeServer> server) : server_(std::move(server)) {}
  std::string address() const override { return server_->address(); }

 private:
  std::unique_ptr<ScrapeServer> server_;
};

}  // namespace

std::string label_text(const std::string& name) {
  std::string text = printable(name);
  if (text.size() <= kLongestLabel) return text;
  std::size_t end = kLongestLabel;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // not inside a character
  return text.substr(0, end);
}

Result<std::unique_ptr<Exporter>> Exporter::create(const ExporterConfig& config, ports::AllLanes metrics,
                                                   std::vector<ExtraCounter> extra, std::vector<ExtraFamily> families) {
  auto page = std::make_shared<Collector>(config, std::move(metrics), std::move(extra), std::move(families));
  TL_ASSIGN_OR_RETURN(auto server, ScrapeServer::start(config.listen, std::move(page)));
  return std::unique_ptr<Exporter>(std::make_unique<HttpExporter>(std::move(server)));
}

}  // namespace tensorlane::telemetry
