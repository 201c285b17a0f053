// A job as its hosts report it, made up: hosts in a ring, each with one rank, that can be given faults.
#pragma once

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/json/json.h"
#include "monitor/explain/explain.h"

namespace tensorlane::explain::test {

struct MadeUpRank {
  double compute = 0.010, input = 0, without_cpu = 0.0005;  // seconds of an iteration
};

struct MadeUpPath {   // of one class
  double rate = 0.9;  // of the link's speed, while it has something on its way
  double rtt = 0.004, min_rtt = 0.0002, lost = 0;
};

struct MadeUpHost {
  MadeUpRank rank;
  MadeUpPath urgent, bulk;                          // to the next host
  double lane_run = 0.05, lane_without_cpu = 0.01;  // of the time
  double foreign_sent = 0, foreign_received = 0;    // of the link's speed
  double stream_waits = 0;                          // on a GPU, in an iteration: then no thread is blocked
  double demoted = 0, stalls_per_send = 0.1, window = 262144, staging = 0.1;
};

struct MadeUpJob {
  explicit MadeUpJob(std::size_t count) : hosts(count) {}

  std::vector<MadeUpHost> hosts;
  double seconds = 5, communication = 0.030;  // of an iteration in which all wait for the network
  double speed = 1e8;                         // of links, bits/s
  double bytes = 340'000;                     // that a host sends in an iteration: the link is full while it does
  double urgent = 0.7;                        // of the bytes, the share of class urgent
  double operations = 6;                      // of an iteration, in each class
  double noise = 0;                           // each figure is up to so much larger or smaller, as a share
  double clock_off = 0;                       // of the second host, seconds
  std::uint64_t seed = 1;

  double longest() const {
    double longest = 0;
    for (const MadeUpHost& host : hosts) longest = std::max(longest, total(host.rank));
    return longest;
  }
  double iteration() const { return longest() + communication; }
  static double total(const MadeUpRank& rank) { return rank.compute + rank.input + rank.without_cpu; }

  // The two reports of each host.
  std::vector<std::pair<nlohmann::json, nlohmann::json>> reports() const {
    std::mt19937_64 random(seed);
    std::vector<std::pair<nlohmann::json, nlohmann::json>> all;
    for (std::size_t h = 0; h < hosts.size(); ++h) {
      std::mt19937_64 same = random;
      all.emplace_back(report(h, 0, same), report(h, seconds, random));
    }
    return all;
  }

 private:
  nlohmann::json report(std::size_t h, double time, std::mt19937_64& random) const;
};

inline nlohmann::json MadeUpJob::report(std::size_t h, double time, std::mt19937_64& random) const {
  using nlohmann::json;
  const MadeUpHost& host = hosts[h];
  std::uniform_real_distribution<double> unlike(1 - noise, 1 + noise);
  const auto count = [&](double value) { return static_cast<std::uint64_t>(value * unlike(random)); };
  const auto ns = [&](double value) { return count(value * 1e9); };
  // Seven are enough for a host that has run for a while; counts do not begin at 0.
  const double n = static_cast<double>(static_cast<std::uint64_t>((time + 7) / iteration())), t = n * iteration();
  json classes = json::array(), connections = json::array();
  const std::string next = "h" + std::to_string((h + 1) % hosts.size());
  for (const char* name : {"urgent", "bulk"}) {
    const bool is_urgent = std::string(name) == "urgent";
    const MadeUpPath& path = is_urgent ? host.urgent : host.bulk;
    const double share = is_urgent ? urgent : 1 - urgent, sent = bytes * share * n;
    classes.push_back(
        {{"name", name},
         {"sent_bytes", count(is_urgent ? sent * (1 - host.demoted) : sent + bytes * urgent * host.demoted * n)},
         {"received_bytes", count(sent)},
         {"demoted_bytes", count(is_urgent ? sent * host.demoted : 0)},
         {"operations", count(operations * n)},
         {"completion_ns", ns(operations * n * communication)},
         {"sends", count(operations * 2 * n)},
         {"queue_ns", ns(operations * n * 0.0002)},
         {"host_window_stalls", count(operations * 2 * n * host.stalls_per_send)},
         {"window_bytes", host.window},
         {"limit_bits_per_second", nullptr}});
    connections.push_back({{"peer", next},
                           {"class", name},
                           {"rail", 0},
                           {"rtt_ns", ns(path.rtt)},
                           {"min_rtt_ns", ns(path.min_rtt)},
                           {"segments", count(sent / 1448)},
                           {"resent", count(sent / 1448 * path.lost)},
                           {"acked_bytes", count(sent)},
                           {"busy_ns", ns(sent * 8 / (path.rate * speed))},
                           {"peer_limited_ns", 0}});
  }
  const double wait = communication + longest() - total(host.rank);
  json rank{
      {"rank", h},
      {"operations", static_cast<std::uint64_t>(2 * operations * n)},
      {"wait_ns", ns(2 * operations * n * wait)},
      {"late_ns", 0},
      {"blocked_ns", ns(host.stream_waits > 0 ? 0 : (iteration() - total(host.rank)) * n)},
      {"stream_waits", count(host.stream_waits * n)},
      {"waiter",
       {{"thread", 100 + h}, {"run_ns", ns(host.rank.compute * n)}, {"runnable_ns", ns(host.rank.without_cpu * n)}}}};
  return {
      {"host", "h" + std::to_string(h)},
      {"job", "train"},
      {"at_ns", static_cast<std::uint64_t>((t + 100.0 * static_cast<double>(h)) * 1e9)},
      {"wall_clock_ns", static_cast<std::uint64_t>((1.7e9 + t + (h == 1 ? clock_off : 0)) * 1e9)},
      {"iterations", static_cast<std::uint64_t>(n)},
      {"batched_operations", 0},
      {"cpus", 8},
      {"lanes",
       {{"count", 1}, {"times", {{"run_ns", ns(host.lane_run * t)}, {"runnable_ns", ns(host.lane_without_cpu * t)}}}}},
      {"staging_bytes", host.staging * 64e6},
      {"staging_limit_bytes", 64e6},
      {"ranks", json::array({rank})},
      {"classes", classes},
      {"connections", connections},
      {"rails",
       json::array({{{"nic", "eth0"},
                     {"bits_per_second", speed},
                     {"sent_bytes", count(bytes * n)},
                     {"received_bytes", count(bytes * n)},
                     {"nic_sent_bytes", count(bytes * 1.06 * n + host.foreign_sent * speed / 8 * t)},
                     {"nic_received_bytes", count(bytes * 1.06 * n + host.foreign_received * speed / 8 * t)}}})}};
}

}  // namespace tensorlane::explain::test
