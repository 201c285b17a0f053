// The arithmetic of `tensorlane bench`: from samples to figures.
#include <algorithm>

#include <fmt/format.h>

#include "monitor/cli/bench.h"
#include "monitor/cli/bench_statistics.h"

namespace tensorlane::cli {

namespace {

constexpr int kMinCount = 2;
constexpr int kMaxCount = 50;
constexpr std::uint64_t kBytesPerCommand = mib(64).value;

// CPU seconds of everything that belongs to a contender, per 10^9 bytes of tensor on each rank.
double cpu_seconds_per_gigabyte(const BenchSamples& samples, std::uint64_t bytes, int ranks) {
  return samples.cpu_seconds / (static_cast<double>(bytes) * static_cast<double>(samples.allreduces) * ranks) * 1e9;
}

std::uint64_t count_of(const std::map<std::string, std::uint64_t>& counters, const std::string& name) {
  const auto found = counters.find(name);
  return found == counters.end() ? 0 : found->second;
}

}  // namespace

int bench_count(std::uint64_t bytes) {
  return static_cast<int>(std::clamp<std::uint64_t>(kBytesPerCommand / bytes, kMinCount, kMaxCount));
}

nlohmann::json bench_result(std::uint64_t bytes, int ranks, const BenchSamples* ours,
                            const std::map<std::string, BenchSamples>& peers) {
  nlohmann::json result{{"bytes", bytes}, {"peers", nlohmann::json::object()}};
  if (ours != nullptr) {
    result["tensorlane_s_median"] = median(ours->seconds);
    result["tensorlane_s_p99"] = p99(ours->seconds);
    result["cpu_s_per_gb"] = cpu_seconds_per_gigabyte(*ours, bytes, ranks);
  }
  for (const auto& [name, samples] : peers) {
    nlohmann::json& peer = result["peers"][name];
    peer["s_median"] = median(samples.seconds);
    peer["s_p99"] = p99(samples.seconds);
    peer["cpu_s_per_gb"] = cpu_seconds_per_gigabyte(samples, bytes, ranks);
    if (ours != nullptr) peer["ratio"] = median(samples.seconds) / median(ours->seconds);
  }
  return result;
}

Status check_bytes_sent(const std::map<std::string, std::uint64_t>& before,
                        const std::map<std::string, std::uint64_t>& after, std::uint64_t needed) {
  const std::string where = "bytes sent between hosts";
  for (const auto& [transport, total] : after) {
    if (transport == "tcp" || total == count_of(before, transport)) continue;
    return {Code::kInternal,
            fmt::format("transport {} carried {} bytes", transport, total - count_of(before, transport)), where,
            "only tcp may carry bytes between hosts of a bench"};
  }
  const std::uint64_t sent = count_of(after, "tcp") - count_of(before, "tcp");
  if (sent >= needed) return {};
  return {Code::kInternal, fmt::format("tcp carried {} bytes where the sums need at least {}", sent, needed), where,
          "look for a path between hosts that is not the network"};
}

}  // namespace tensorlane::cli
