#include "daemon/wiring/lane_status.h"

#include <ctime>
#include <memory>
#include <set>

#include "common/base/text.h"
#include "common/protocol/plan.h"
#include "daemon/wiring/lane_config.h"

namespace tensorlane::wiring {
nlohmann::json LaneStatus::read() const {
  const std::unique_ptr<const Metrics> now = parts_.metrics.sum();
  const Metrics& metrics = *now;
  nlohmann::json classes = nlohmann::json::array();
  for (std::size_t c = 0; c < parts_.config.data_classes(); ++c) {
    const ports::ClassMetrics& m = metrics.classes[c];
    classes.push_back(
        {{"name", parts_.config.fabric.classes.data[c].name},
         {"dscp_in_force", parts_.config.tags ? parts_.config.fabric.classes.data[c].dscp : 0},
         {"window_bytes", window(parts_.config, parts_.config.fabric.classes.data[c], RailIndex(0)).value},
         {"sent_bytes", m.bytes_sent.value()},
         {"received_bytes", m.bytes_received.value()},
         {"sent_operations", m.operations_sent.value()},
         {"completed_tensors", m.tensors_completed.value()},
         {"failed_tensors", m.tensors_failed.value()}});
  }
  nlohmann::json flows = nlohmann::json::array();
  for (const ports::FlowReport& flow : metrics.flows.all()) {
    flows.push_back({{"job", flow.job},
                     {"job_id", flow.id.value},
                     {"peer", flow.peer},
                     {"class", class_name(flow.cls)},
                     {"rail", flow.rail.value},
                     {"dscp", flow.dscp},
                     {"pcp", flow.pcp},
                     {"transport", flow.transport},
                     {"protection", flow.protection.empty() ? "none" : flow.protection},
                     {"path", flow.path}});
  }
  const std::uint64_t cpu_ns = metrics.cpu_ns.value() + metrics.work_cpu_ns.value(),
                      slices = metrics.slices_sent.value();
  nlohmann::json lane_cpu = nlohmann::json::array();
  for (const ports::LaneMetrics* lane : parts_.metrics.each())
    lane_cpu.push_back(static_cast<double>(lane->cpu_ns.value()) * 1e-9);
  std::uint64_t sent = 0;
  for (const ports::ClassMetrics& m : metrics.classes) sent += m.bytes_sent.value();
  return {{"transports", {{carrier(metrics), {{"bytes_sent", sent}}}}},
          {"lane",
           {{"transport", config::transport_name(parts_.config.transport)},
            {"data_protection", data_protection_name(parts_.config.fabric.data_protection)},
            {"paths", path_status(metrics)},
            {"pattern", parts_.config.pattern ? protocol::pattern_name(*parts_.config.pattern) : "auto"},
            {"batch_bytes", parts_.batch_limit().value},
            {"network_model", parts_.choices.patterns.model()},
            {"pattern_choices", parts_.choices.patterns.choices()},
            {"urgency_choices", parts_.choices.urgencies.choices()},
            {"priorities", parts_.config.priorities},
            {"tags", parts_.config.tags},
            {"lanes", parts_.metrics.each().size()},
            {"lane_cpu_seconds", lane_cpu},
            {"workers", parts_.config.workers},
            {"cpu_seconds", static_cast<double>(cpu_ns) * 1e-9},
            {"sent_slices", slices},
            {"cpu_ns_per_slice", slices == 0 ? nlohmann::json() : nlohmann::json(cpu_ns / slices)},
            {"open_messages", metrics.messages_open.value()},
            {"oldest_message_s", static_cast<double>(metrics.oldest_message_ns.value()) * 1e-9},
            {"staging_bytes", metrics.staging_bytes.value()},
            {"stale_grants", metrics.stale_grants.value()},
            {"resumed_flows", metrics.transport.flows_resumed.value()},
            {"resent_frames", metrics.transport.frames_resent.value()},
            {"reduced_bytes", metrics.bytes_reduced.value()},
            {"copied_bytes", metrics.bytes_copied.value()},
            {"metrics", parts_.metrics_address()},
            {"timeline", parts_.timeline.enabled() ? parts_.config.timeline : ""},
            {"spans_saved", saved_spans()},
            {"flows", flows},
            {"rails", rail_status(metrics)},
            {"classes", classes},
            {"jobs", job_status(metrics)}}}};
}

// Of jobs that have failed.
nlohmann::json LaneStatus::saved_spans() const {
  nlohmann::json all = nlohmann::json::array();
  for (const telemetry::SpanFiles::Saved& saved : parts_.span_files.saved())
    all.push_back({{"job", printable(saved.job)}, {"user", saved.user}, {"path", saved.path}});
  return all;
}

// What each job sent.
nlohmann::json LaneStatus::job_status(const Metrics& metrics) const {
  nlohmann::json jobs = nlohmann::json::array();
  for (const auto& job : metrics.job_list.all()) {
    nlohmann::json job_classes = nlohmann::json::array();
    for (std::size_t c = 0; c < parts_.config.data_classes(); ++c) {
      job_classes.push_back({{"name", parts_.config.fabric.classes.data[c].name},
                             {"sent_bytes", job->classes[c].bytes_sent.value()},
                             {"demoted_bytes", job->classes[c].bytes_demoted.value()}});
    }
    jobs.push_back({{"name", job->name}, {"id", job->id.value}, {"classes", std::move(job_classes)}});
  }
  return jobs;
}

// How the flows to each peer go, and why.
nlohmann::json LaneStatus::path_status(const Metrics& metrics) const {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  const Time now(t.tv_sec * 1'000'000'000ll + t.tv_nsec);
  nlohmann::json paths = nlohmann::json::array();
  for (const ports::PathBoard::Entry& entry : metrics.paths.all()) {
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
std::string LaneStatus::carrier(const Metrics& metrics) const {
  std::set<std::string> names;
  for (const ports::PathBoard::Entry& entry : metrics.paths.all()) {
    for (const ports::PathCandidate& c : entry.report.candidates) {
      if (c.chosen) names.insert(c.transport);
    }
  }
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : " and ") + name;
  return all.empty() ? "tcp" : all;
}

// What each NIC is used as, and what it carried.
nlohmann::json LaneStatus::rail_status(const Metrics& metrics) const {
  nlohmann::json rails = nlohmann::json::array();
  for (std::uint8_t r = 0; r < parts_.config.self().rails(); ++r) {
    nlohmann::json classes = nlohmann::json::array();
    for (std::size_t c = 0; c < parts_.config.data_classes(); ++c) {
      const fabric::TrafficClass& cls = parts_.config.fabric.classes.data[c];
      classes.push_back({{"name", cls.name},
                         {"window_bytes", window(parts_.config, cls, RailIndex(r)).value},
                         {"sent_bytes", metrics.rails[r].bytes_sent[c].value()},
                         {"received_bytes", metrics.rails[r].bytes_received[c].value()}});
    }
    const RailTransport& transport = parts_.rails[r];
    rails.push_back({{"lane", r % parts_.metrics.each().size()},
                     {"address", parts_.config.self().tcp_address(RailIndex(r))},
                     {"transport", transport.name},
                     {"device", transport.device},
                     {"why_no_rdma", transport.why_no_rdma},
                     {"why_no_dpdk", transport.why_no_dpdk},
                     {"names_dpdk", transport.names_dpdk},
                     {"port", transport.port == nullptr ? nlohmann::json() : port_status(*transport.port)},
                     {"classes", std::move(classes)}});
  }
  return rails;
}

// A port that the daemon drives itself; queues by class, control first, as the port serves them.
nlohmann::json LaneStatus::port_status(const ports::PortMetrics& port) const {
  nlohmann::json queues = nlohmann::json::array();
  const auto add = [&](ClassId cls) {
    const ports::PortMetrics::Queue& queue = port.sent[ports::metrics_slot(cls)];
    queues.push_back({{"class", class_name(cls)},
                      {"sent_packets", queue.packets.value()},
                      {"sent_bytes", queue.bytes.value()},
                      {"full", queue.full.value()},
                      {"refused", queue.refused.value()}});
  };
  add(kControlClass);
  for (std::size_t c = 0; c < parts_.config.data_classes(); ++c) add(ClassId(static_cast<std::uint8_t>(c)));
  nlohmann::json drops = nlohmann::json::object();
  for (std::size_t i = 0; i < port.drops.size(); ++i) drops[port.drop_reasons[i]] = port.drops[i].value();
  nlohmann::json counters = nlohmann::json::object();
  for (const auto& [name, value] : port.device_counters.read()) counters[name] = value;
  const ports::PortMetrics::Datagrams& datagrams = port.datagrams;
  return {{"device", port.device},
          {"mac", port.mac},
          {"link_up", port.link_up.value() != 0},
          {"link_bits_per_second", port.link_bits_per_second.value()},
          {"link_changes", port.link_changes.value()},
          {"queues", std::move(queues)},
          {"received_packets", port.received_packets.value()},
          {"received_bytes", port.received_bytes.value()},
          {"drops", std::move(drops)},
          {"neighbour_questions", port.neighbour_questions.value()},
          {"neighbour_answers", port.neighbour_answers.value()},
          {"no_memory", port.no_memory.value()},
          {"polled_seconds", static_cast<double>(port.polled_ns.value()) * 1e-9},
          {"busy_seconds", static_cast<double>(port.busy_ns.value()) * 1e-9},
          {"device_counters", std::move(counters)},
          {"busy_share", static_cast<double>(port.busy_permille.value()) * 1e-3},
          {"datagrams",
           {{"lost", datagrams.lost.value()},
            {"resent", datagrams.resent.value()},
            {"spurious", datagrams.spurious.value()},
            {"duplicates", datagrams.duplicates.value()},
            {"forged", datagrams.forged.value()},
            {"marked", datagrams.marked.value()},
            {"timeouts", datagrams.timeouts.value()}}}};
}

const std::string& LaneStatus::class_name(ClassId cls) const {
  const fabric::ClassTable& classes = parts_.config.fabric.classes;
  return (cls == kControlClass ? classes.control : classes.data[cls.value]).name;
}

}  // namespace tensorlane::wiring
