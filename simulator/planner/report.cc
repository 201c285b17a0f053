#include "simulator/planner/report.h"

#include <fmt/format.h>

#include <algorithm>

namespace tensorlane::simulator {

using nlohmann::json;
using protocol::Pattern;

namespace {

std::string label(const PolicyOutcome& p) {
  return p.name == "network" ? fmt::format("network, {} classes", p.classes) : p.name;
}

std::string numbers(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) text += fmt::format(" {:.3f}", value);
  return text;
}

json policy_json(const PolicyOutcome& p) {
  json j{{"name", p.name},
         {"classes", p.classes},
         {"thresholds", p.thresholds},
         {"pattern", pattern_text(p.pattern)},
         {"slice_elements", p.slice_elements},
         {"iteration_s", p.iteration_s},
         {"scaling_efficiency", p.scaling_efficiency},
         {"schedule_efficiency", p.schedule_efficiency},
         {"pauses", p.pauses},
         {"notifications", p.notified},
         {"sent_again", p.refused},
         {"peak_queue_bytes", p.peak_queue_bytes}};
  return j;
}

// Of the most that there may be, 0 is the most urgent.
std::vector<int> lossless_classes(std::uint32_t levels) {
  std::vector<int> classes;
  for (std::size_t level = 1; level < kLevels; ++level) {
    if ((levels >> level & 1) != 0) classes.push_back(static_cast<int>(level) - 1);
  }
  return classes;
}

json congestion(const Congestion& c) {
  if (!c.any()) return {{"switch_buffers", "lossless, as large as the hosts' windows fill them"}};
  json j{{"switch_buffers", "lossless, as large as the hosts' windows fill them"}, {"foreign_load", c.foreign_load}};
  if (c.buffer) {
    j["switch_buffers"] = c.flow_control ? "shared, lossless by flow control" : "shared, what is refused is sent again";
    j["switch_buffer_bytes"] = c.buffer->size.value;
    j["switch_buffer_alpha"] = c.buffer->alpha;
    if (c.flow_control) j["lossless_classes"] = lossless_classes(c.lossless);
  }
  if (c.marking) {
    const DcqcnParameters& d = c.marking->reaction;
    j["ecn"] = {
        {"k_min_bytes", c.marking->k_min.value}, {"k_max_bytes", c.marking->k_max.value}, {"p_max", c.marking->p_max}};
    j["dcqcn"] = {{"g", d.g},
                  {"alpha_timer_s", to_seconds(d.alpha_timer)},
                  {"rate_timer_s", to_seconds(d.rate_timer)},
                  {"byte_counter", d.byte_counter.value},
                  {"fast_recovery", d.fast_recovery},
                  {"additive_gbps", static_cast<double>(d.additive.value) / 1e9},
                  {"hyper_gbps", static_cast<double>(d.hyper.value) / 1e9}};
  }
  if (c.foreign_load > 0) {
    j["foreign_burst_bytes"] = c.foreign_burst.value;
    j["foreign_class"] = "the least urgent one";
  }
  return j;
}

json assumptions(const PlanRequest& request, const json& about) {
  const Assumptions& a = request.assume;
  json j{{"exchange", request.exchange == Exchange::kPushPull ? "push-pull" : "allreduce"},
         {"compute_s", to_seconds(request.workload.compute())},
         {"parameters", request.workload.elements()},
         {"parameter_bytes", request.workload.elements() * sizeof(float)},
         {"host_gbps", static_cast<double>(host_rate(request.topology).value) / 1e9},
         {"goodput_share", a.goodput},
         {"overhead_share_of_compute", a.overhead_share},
         {"overhead_s", a.overhead_s},
         {"sums_bytes_per_second", a.sum_bytes_per_second},
         {"ranks_per_host", request.ranks_per_host},
         {"batch_bytes", request.batch.value},
         {"host_latency_s", to_seconds(a.wake)},
         {"hop_latency_s", to_seconds(a.hop)},
         {"window_bytes", fabric::window({}, host_rate(request.topology)).value},
         {"forward_share_of_compute", to_seconds(request.workload.forward()) / to_seconds(request.workload.compute())},
         {"iterations_measured", a.iterations},
         {"jobs", request.jobs},
         {"seed", a.seed}};
  j.update(congestion(request.congestion));
  j.update(about);
  return j;
}

// What the switches did under a policy.
std::string congestion_text(const PlanRequest& request, const Report& report) {
  if (!request.congestion.any()) return {};
  std::string text = fmt::format("\n{:<20} {:>12} {:>14} {:>11} {:>16}\n", "switches", "pauses", "notifications",
                                 "sent again", "longest queue KB");
  for (const PolicyOutcome& p : report.policies) {
    text += fmt::format("{:<20} {:>12} {:>14} {:>11} {:>16}\n", label(p), p.pauses, p.notified, p.refused,
                        p.peak_queue_bytes / 1000);
  }
  return text;
}

}  // namespace

std::string pattern_text(std::optional<Pattern> pattern) {
  if (!pattern) return "auto";
  std::string text = pattern == Pattern::kParameterServer ? "ps" : protocol::pattern_name(*pattern);
  std::ranges::replace(text, '_', '-');
  return text;
}

json to_json(const PlanRequest& request, const Report& report, const json& about) {
  json policies = json::array();
  for (const PolicyOutcome& p : report.policies) policies.push_back(policy_json(p));
  json recommended = policy_json(report.recommended);
  recommended["depth"] = report.recommended.depth;
  recommended["priorities_gain"] = report.gains;
  recommended["net_gain"] = report.net_gain;
  recommended["gain_over_endhost"] = report.gain_over_endhost;
  recommended["urgent_wait_s"] = {{"without", report.urgent_wait_before_s}, {"with", report.urgent_wait_after_s}};
  recommended["bulk_wait_s"] = {{"without", report.bulk_wait_before_s}, {"with", report.bulk_wait_after_s}};
  return {{"assumptions", assumptions(request, about)},
          {"policies", policies},
          {"recommended", recommended},
          {"simulations", report.simulations},
          {"events", report.events}};
}

std::string to_text(const PlanRequest& request, const Report& report, const json& about) {
  std::string text = "assumed\n";
  const json assumed = assumptions(request, about);
  for (const auto& [key, value] : assumed.items())
    text += fmt::format("  {:<30} {}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
  text +=
      fmt::format("\n{:<20} {:>12} {:>10} {:>10}  thresholds\n", "policy", "iteration s", "scaling %", "schedule E");
  for (const PolicyOutcome& p : report.policies) {
    text += fmt::format("{:<20} {:>12.4f} {:>10.1f} {:>10.2f} {}\n", label(p), p.iteration_s,
                        100 * p.scaling_efficiency, p.schedule_efficiency, numbers(p.thresholds));
  }
  text += congestion_text(request, report);
  if (!request.only.empty()) return text + fmt::format("{} events\n", report.events);
  const PolicyOutcome& r = report.recommended;
  text +=
      fmt::format("\nrecommended: {}, pattern {}, slices of {} elements, depth {}", label(r), pattern_text(r.pattern),
                  r.slice_elements, r.depth == 0 ? "as staging allows" : fmt::to_string(r.depth));
  if (!r.thresholds.empty()) text += ", thresholds" + numbers(r.thresholds);
  text += fmt::format(": {:.4f} s, {:.1f} %\n", r.iteration_s, 100 * r.scaling_efficiency);
  text += fmt::format(
      "network priority: throughput {:+.1f} % over none, {:+.1f} % over end-host order; urgent layers wait {:.1f} ms "
      "instead of {:.1f}, bulk "
      "{:.1f} ms instead of {:.1f}\n",
      100 * report.net_gain, 100 * report.gain_over_endhost, 1e3 * report.urgent_wait_after_s,
      1e3 * report.urgent_wait_before_s, 1e3 * report.bulk_wait_after_s, 1e3 * report.bulk_wait_before_s);
  if (!report.gains)
    text += "priorities gain nothing worth it here: what bulk loses is not less than what urgent gains\n";
  text += fmt::format("{} simulations, {} events\n", report.simulations, report.events);
  return text;
}

std::string to_svg(const PlanRequest& request, const Report& report, const std::string& title) {
  constexpr double kLeft = 150, kTop = 50, kRow = 26, kWidth = 460;
  double longest = 0;
  for (const PolicyOutcome& p : report.policies) longest = std::max(longest, p.iteration_s);
  const double scale = kWidth / longest, height = kTop + kRow * static_cast<double>(report.policies.size()) + 40;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"760\" height=\"{0:.0f}\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"760\" height=\"{0:.0f}\" fill=\"white\"/>\n"
      "<text x=\"10\" y=\"24\" font-size=\"14\">{1}</text>\n",
      height, title);
  double y = kTop;
  for (const PolicyOutcome& p : report.policies) {
    svg += fmt::format(
        "<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"end\">{}</text>"
        "<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.1f}\" height=\"18\" fill=\"{}\"/>"
        "<text x=\"{:.1f}\" y=\"{:.0f}\">{:.3f} s, {:.1f} %</text>\n",
        kLeft - 8, y + 14, label(p), kLeft, y, p.iteration_s * scale, p.name == "network" ? "#2a7" : "#999",
        kLeft + p.iteration_s * scale + 6, y + 14, p.iteration_s, 100 * p.scaling_efficiency);
    y += kRow;
  }
  const double mark = kLeft + to_seconds(request.workload.compute()) * scale;
  svg += fmt::format(
      "<line x1=\"{0:.1f}\" y1=\"{1:.0f}\" x2=\"{0:.1f}\" y2=\"{2:.0f}\" stroke=\"#c33\" stroke-dasharray=\"4 3\"/>"
      "<text x=\"{0:.1f}\" y=\"{3:.0f}\" fill=\"#c33\" text-anchor=\"middle\">compute alone</text>\n</svg>\n",
      mark, kTop - 6, y, y + 16);
  return svg;
}

}  // namespace tensorlane::simulator
