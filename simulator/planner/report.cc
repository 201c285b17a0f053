#include "simulator/planner/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tensorlane::simulator {

using nlohmann::json;
using protocol::Pattern;

namespace {

std::string label(const PolicyOutcome& p) {
  return p.name == "network" ? fmt::format("network, {} classes", p.classes) : p.name;
}

json policy_json(const PolicyOutcome& p) {
  json j{{"name", p.name},
         {"classes", p.classes},
         {"thresholds", p.thresholds},
         {"pattern", pattern_text(p.pattern)},
         {"slice_elements", p.slice_elements},
         {"batch_bytes", p.batch.value},
         {"iteration_s", p.iteration_s},
         {"job_iteration_s", p.job_iteration_s},
         {"scaling_efficiency", p.scaling_efficiency},
         {"schedule_efficiency", p.schedule_efficiency},
         {"pauses", p.pauses},
         {"notifications", p.notified},
         {"refused", p.refused},
         {"sent_again", p.sent_again},
         {"peak_queue_bytes", p.peak_queue_bytes},
         {"most_flows_of_a_host", p.most_flows}};
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
    j["recovery"] = c.go_back_n ? "go back N: everything from the refused train on is sent again"
                                : "selective: what is refused is sent again";
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
         {"batching_threshold_bytes", network_model(request).threshold().value},
         {"transfer_overhead_s", network_model(request).overhead_ns() / 1e9},
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
    text += fmt::format("{:<20} {:>12} {:>14} {:>11} {:>16}\n", label(p), p.pauses, p.notified, p.sent_again,
                        p.peak_queue_bytes / 1000);
  }
  return text;
}

json outcome_json(const Planned& plan) {
  const Report& report = plan.report;
  json policies = json::array(), tried = json::array();
  for (const PolicyOutcome& p : report.policies) policies.push_back(policy_json(p));
  for (const Alternative& one : report.tried) tried.push_back({{"what", one.what}, {"iteration_s", one.iteration_s}});
  json recommended = policy_json(report.recommended);
  recommended["depth"] = report.recommended.depth;
  recommended["priorities_gain"] = report.gains;
  recommended["net_gain"] = report.net_gain;
  recommended["gain_over_endhost"] = report.gain_over_endhost;
  recommended["urgent_wait_s"] = {{"without", report.urgent_wait_before_s}, {"with", report.urgent_wait_after_s}};
  recommended["bulk_wait_s"] = {{"without", report.bulk_wait_before_s}, {"with", report.bulk_wait_after_s}};
  return {{"jobs", plan.request.jobs},         {"policies", policies},   {"recommended", recommended}, {"tried", tried},
          {"simulations", report.simulations}, {"events", report.events}};
}

// "gains 3.1 ms", "loses 3.1 ms".
std::string gain_text(double before_s, double after_s) {
  return fmt::format("{} {:.1f} ms ({:.1f} instead of {:.1f})", after_s > before_s ? "loses" : "gains",
                     1e3 * std::abs(after_s - before_s), 1e3 * after_s, 1e3 * before_s);
}

// What urgent gains beside what bulk loses, and what is left of it.
std::string trade_text(const Report& report) {
  std::string text = fmt::format(
      "network priority: net {:+.1f} % throughput over sliced, {:+.1f} % over endhost; a layer's wait: urgent {}, "
      "bulk {}\n",
      100 * report.net_gain, 100 * report.gain_over_endhost,
      gain_text(report.urgent_wait_before_s, report.urgent_wait_after_s),
      gain_text(report.bulk_wait_before_s, report.bulk_wait_after_s));
  if (report.gains) return text;
  return text + (report.net_gain < 0 ? "priorities gain nothing here: the net gain is negative, they cost throughput\n"
                                     : "priorities gain nothing worth it here: less than 0.5 %\n");
}

std::string tried_text(const Report& report) {
  std::string text = "changed about the best policy, one after the other, and kept where that was worth it:\n";
  for (const Alternative& one : report.tried) text += fmt::format("  {:<50} {:.4f} s\n", one.what, one.iteration_s);
  return text;
}

std::string recommended_text(const PolicyOutcome& r) {
  std::string text =
      fmt::format("recommended: {}, pattern {}, slices of {} elements, depth {}", label(r), pattern_text(r.pattern),
                  r.slice_elements, r.depth == 0 ? "as staging allows" : fmt::to_string(r.depth));
  if (r.batch.value > 0) text += fmt::format(", batches of {} bytes", r.batch.value);
  if (!r.thresholds.empty()) text += ", thresholds" + numbers_text(r.thresholds);
  return text + fmt::format(": {:.4f} s, {:.1f} %\n", r.iteration_s, 100 * r.scaling_efficiency);
}

std::string outcome_text(const Planned& plan) {
  const Report& report = plan.report;
  std::string text =
      fmt::format("\n{:<20} {:>12} {:>10} {:>10}  thresholds\n", "policy", "iteration s", "scaling %", "schedule E");
  for (const PolicyOutcome& p : report.policies) {
    text += fmt::format("{:<20} {:>12.4f} {:>10.1f} {:>10.2f} {}\n", label(p), p.iteration_s,
                        100 * p.scaling_efficiency, p.schedule_efficiency, numbers_text(p.thresholds));
  }
  text +=
      "vanilla: tensors whole, in the order of arrival; sliced: slices, in that order; endhost: the most urgent slice "
      "leaves a host first; network: so do switches serve them\n";
  text += congestion_text(plan.request, report);
  if (!plan.request.only.empty()) return text + fmt::format("{} events\n", report.events);
  return text + "\n" + tried_text(report) + "\n" + recommended_text(report.recommended) + trade_text(report) +
         fmt::format("{} simulations, {} events\n", report.simulations, report.events);
}

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    if (c == '&')
      safe += "&amp;";
    else if (c == '<')
      safe += "&lt;";
    else
      safe += c;
  }
  return safe;
}

struct Bar {
  std::string label, color;
  double seconds = 0, efficiency = 0;
};

std::vector<Bar> bars(std::span<const Planned> plans) {
  std::vector<Bar> all;
  for (const Planned& plan : plans) {
    const std::string jobs = plan.request.jobs == 1 ? "" : fmt::format("{} jobs: ", plan.request.jobs);
    const auto add = [&](const std::string& name, const std::string& color, const PolicyOutcome& p) {
      all.push_back({jobs + name, color, p.iteration_s, p.scaling_efficiency});
    };
    for (const PolicyOutcome& p : plan.report.policies) add(label(p), p.name == "network" ? "#2a7" : "#999", p);
    if (plan.request.only.empty()) add("recommended", "#27a", plan.report.recommended);
  }
  return all;
}

}  // namespace

std::string pattern_text(std::optional<Pattern> pattern) {
  if (!pattern) return "auto";
  std::string text = pattern == Pattern::kParameterServer ? "ps" : protocol::pattern_name(*pattern);
  std::ranges::replace(text, '_', '-');
  return text;
}

std::string numbers_text(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) text += fmt::format(" {:.3f}", value);
  return text;
}

json to_json(std::span<const Planned> plans, const json& about) {
  json document = outcome_json(plans.front());
  document["assumptions"] = assumptions(plans.front().request, about);
  document["shared"] = json::array();
  for (const Planned& plan : plans.subspan(1)) document["shared"].push_back(outcome_json(plan));
  return document;
}

std::string to_text(std::span<const Planned> plans, const json& about) {
  std::string text = "assumed\n";
  const json assumed = assumptions(plans.front().request, about);
  for (const auto& [key, value] : assumed.items())
    text += fmt::format("  {:<30} {}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
  for (const Planned& plan : plans) {
    if (plan.request.jobs > 1) {
      text += fmt::format("\n{} jobs like this one share the hosts and the fabric; times are their mean\n",
                          plan.request.jobs);
    }
    text += outcome_text(plan);
  }
  return text;
}

std::string to_svg(std::span<const Planned> plans, const std::string& title) {
  constexpr double kLeft = 190, kTop = 50, kRow = 26, kWidth = 420;
  const std::vector<Bar> all = bars(plans);
  double longest = 0;
  for (const Bar& bar : all) longest = std::max(longest, bar.seconds);
  const double scale = kWidth / longest, height = kTop + kRow * static_cast<double>(all.size()) + 40;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"760\" height=\"{0:.0f}\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"760\" height=\"{0:.0f}\" fill=\"white\"/>\n"
      "<text x=\"10\" y=\"24\" font-size=\"14\">{1}</text>\n",
      height, escaped(title));
  double y = kTop;
  for (const Bar& bar : all) {
    svg += fmt::format(
        "<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"end\">{}</text>"
        "<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.1f}\" height=\"18\" fill=\"{}\"/>"
        "<text x=\"{:.1f}\" y=\"{:.0f}\">{:.3f} s, {:.1f} %</text>\n",
        kLeft - 8, y + 14, bar.label, kLeft, y, bar.seconds * scale, bar.color, kLeft + bar.seconds * scale + 6, y + 14,
        bar.seconds, 100 * bar.efficiency);
    y += kRow;
  }
  const double mark = kLeft + to_seconds(plans.front().request.workload.compute()) * scale;
  svg += fmt::format(
      "<line x1=\"{0:.1f}\" y1=\"{1:.0f}\" x2=\"{0:.1f}\" y2=\"{2:.0f}\" stroke=\"#c33\" stroke-dasharray=\"4 3\"/>"
      "<text x=\"{0:.1f}\" y=\"{3:.0f}\" fill=\"#c33\" text-anchor=\"middle\">compute alone</text>\n</svg>\n",
      mark, kTop - 6, y, y + 16);
  return svg;
}

}  // namespace tensorlane::simulator
