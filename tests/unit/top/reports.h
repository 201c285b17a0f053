// Reports of hosts as their daemons would give them, for tests of what is made from them.
#pragma once

#include <fmt/format.h>
#include <cstdint>
#include <string>

#include "common/json/json.h"
#include "monitor/top/history.h"
#include "monitor/top/table.h"

namespace tensorlane::top {

inline std::string text_of(const Line& line) {
  std::string text;
  for (const Span& span : line) text += span.text;
  return text;
}

inline constexpr std::uint64_t kJob = 42;

// After `seconds` of a job on hosts of two ranks each: 100 Mbit/s of "urgent", ten times as much of "bulk", ten
// iterations a second; the last rank of host 3 is 20 ms late.
inline nlohmann::json report_of(const std::string& host, int number, double seconds) {
  using nlohmann::json;
  const auto count = [seconds](double in_a_second) { return static_cast<std::uint64_t>(in_a_second * seconds); };
  json ranks = json::array(), classes = json::array(), connections = json::array();
  for (int r = 0; r < 2; ++r) {
    const bool late = number == 3 && r == 1;
    ranks.push_back({{"rank", 2 * number + r},
                     {"operations", count(60)},
                     {"wait_ns", count(60 * (late ? 10e6 : 30e6))},
                     {"late_ns", 0},
                     {"blocked_ns", count(late ? 0.1e9 : 0.4e9)},
                     {"waiter", {{"thread", 100 + r}, {"run_ns", count(0.5e9)}, {"runnable_ns", count(0.02e9)}}}});
  }
  for (const auto& [name, dscp, rate] : {std::tuple("urgent", 43, 12.5e6), std::tuple("bulk", 27, 125e6)}) {
    classes.push_back({{"name", name},
                       {"dscp", dscp},
                       {"sent_bytes", count(rate)},
                       {"received_bytes", count(rate)},
                       {"demoted_bytes", 0},
                       {"operations", count(30)},
                       {"completion_ns", count(30 * 5e6)},
                       {"sends", count(100)},
                       {"queue_ns", count(100 * 1e6)},
                       {"host_window_stalls", count(7)},
                       {"window_bytes", 1 << 20},
                       {"limit_bits_per_second", nullptr}});
    connections.push_back({{"peer", fmt::format("gpu{:02}", number + 1)},
                           {"class", name},
                           {"rail", 0},
                           {"rtt_ns", 200000 + 1000 * number},
                           {"min_rtt_ns", 100000},
                           {"segments", count(1000)},
                           {"resent", count(number == 2 ? 10 : 0)},
                           {"acked_bytes", count(rate)},
                           {"busy_ns", count(0.3e9)},
                           {"peer_limited_ns", 0}});
  }
  return {{"host", host},
          {"job", "train"},
          {"at_ns", count(1e9)},
          {"wall_clock_ns", count(1e9)},
          {"iterations", count(10)},
          {"batched_operations", 0},
          {"cpus", 16},
          {"lanes", {{"count", 1}, {"times", {{"run_ns", count(0.25e9)}, {"runnable_ns", count(0.01e9)}}}}},
          {"staging_bytes", 1000},
          {"staging_limit_bytes", 100000},
          {"ranks", ranks},
          {"classes", classes},
          {"connections", connections},
          {"rails", json::array({{{"nic", "eth0"},
                                  {"bits_per_second", std::uint64_t{10'000'000'000}},
                                  {"sent_bytes", count(137.5e6)},
                                  {"received_bytes", count(137.5e6)},
                                  {"nic_sent_bytes", count(150e6)},
                                  {"nic_received_bytes", count(140e6)}}})}};
}

inline std::string host_name(int number) {
  return fmt::format("gpu{:02}", number);
}

// The status of a daemon with that job and another one, which waits for ranks.
inline nlohmann::json status_of(const std::string& host, int hosts, double seconds) {
  using nlohmann::json;
  json members = json::array();
  for (int h = 0; h < hosts; ++h) members.push_back({{"name", host_name(h)}, {"ranks", {2 * h, 2 * h + 1}}});
  json classes = json::array();
  for (const char* name : {"urgent", "bulk"}) {
    classes.push_back({{"name", name},
                       {"sent_bytes", 1e6 * seconds},
                       {"received_bytes", 1e6 * seconds},
                       {"completed_tensors", 10 * seconds},
                       {"window_bytes", 1 << 20},
                       {"dscp_in_force", 43}});
  }
  const json train{{"name", "train"},
                   {"id", kJob},
                   {"user", 1000u},
                   {"state", "running"},
                   {"leader", host_name(0)},
                   {"hosts", members},
                   {"plan", {{"tensors", 6}}},
                   {"error", nullptr}};
  const json other{
      {"name", "evaluate"}, {"id", 7u}, {"user", 1000u}, {"state", "gathering"}, {"waiting_for", "ranks 1, 3"}};
  return {{"host", host},
          {"version", "0.1.0"},
          {"uptime_s", 100 + seconds},
          {"jobs", {train, other}},
          {"jobs_of_others", json::array({{{"user", 1001u}, {"state", "running"}, {"hosts", 2}}})},
          {"lane", {{"lanes", 1}, {"cpu_seconds", 0.5 * seconds}, {"classes", classes}}}};
}

// All hosts answer but the last one; of job kJob where `of_job`, else all statuses.
inline Answers round_of(int hosts, double seconds, bool of_job) {
  Answers answers;
  answers.host = host_name(0);
  answers.local = status_of(host_name(0), hosts, seconds);
  for (int h = 0; h < hosts - 1; ++h) {
    if (of_job)
      answers.reports[host_name(h)] = report_of(host_name(h), h, seconds);
    else
      answers.statuses[host_name(h)] = status_of(host_name(h), hosts, seconds);
  }
  answers.jobs[std::to_string(kJob)] = report_of(host_name(0), 0, seconds);
  answers.silent[host_name(hosts - 1)] = "it has not answered in 1 s: " + host_name(hosts - 1) + ": look at its daemon";
  if (of_job) answers.asked = answers.job = std::to_string(kJob);
  return answers;
}

}  // namespace tensorlane::top
