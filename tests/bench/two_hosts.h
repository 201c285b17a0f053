// Two hosts in this process, each with lanes, engines, transports and the reducer, that sum a tensor of all their ranks
// again and again.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "bench_host.h"

namespace tensorlane::bench {

struct PairOptions : HostOptions {
  std::uint64_t slice_bytes = kib(64).value;
  std::uint32_t slices = 64;  // of the tensor
};

class TwoHosts {
 public:
  explicit TwoHosts(const PairOptions& options) {
    const std::uint64_t bytes = options.slice_bytes * options.slices;
    for (std::uint16_t h = 0; h < kHosts; ++h) hosts_.push_back(std::make_unique<Host>(options, h, bytes));
    ports::JobSpec spec;
    spec.name = "bench";
    spec.world_size = static_cast<std::uint32_t>(kHosts * options.ranks);
    spec.detection = seconds(10);
    protocol::Plan plan;
    plan.version = 1;
    plan.rails = static_cast<std::uint8_t>(options.rails);
    for (std::uint16_t h = 0; h < kHosts; ++h) {
      ports::JobHost& host = spec.hosts.emplace_back();
      host.name = fmt::format("h{}", h);
      host.data_port = port_of(options.transport, h);
      for (std::uint8_t r = 0; r < options.rails; ++r)
        host.addresses.push_back(address_of(options.transport, h, RailIndex(r)));
      for (std::uint32_t r = 0; r < options.ranks; ++r) {
        host.ranks.push_back(rank(options, h, r));
        plan.rank_hosts.emplace_back(h);
        expected_ += contribution(h, r);
      }
    }
    protocol::PlanTensor& tensor = plan.tensors.emplace_back();
    tensor.name = "t";
    tensor.elements = bytes / sizeof(float);
    tensor.slice_elements = static_cast<std::uint32_t>(options.slice_bytes / sizeof(float));
    for (std::uint16_t h = 0; h < kHosts; ++h) {
      spec.credentials = {kJob, Epoch(1), HostIndex(h), ports::PairKeys(kHosts)};
      must(hosts_[h]->lane->start_job(spec));
      for (std::uint32_t r = 0; r < options.ranks; ++r)
        must(hosts_[h]->lane->attach(kJob, rank(options, h, r), hosts_[h]->clients[r]));
    }
    for (auto& host : hosts_) host->listener.connected.wait(false);
    for (std::uint16_t h = 0; h < kHosts; ++h) hosts_[h]->begin(plan, rank(options, h, 0).value, bytes);
  }

  const std::vector<std::unique_ptr<Host>>& hosts() const { return hosts_; }

  // One sum, which is checked. Returns its seconds, from the first submission to the last completion.
  double round() {
    ++sequence_;
    for (std::uint16_t h = 0; h < kHosts; ++h) {
      for (std::uint32_t r = 0; r < hosts_[h]->clients.size(); ++r)
        std::ranges::fill(hosts_[h]->clients[r]->elements(), contribution(h, r));
    }
    const auto begin = std::chrono::steady_clock::now();
    each_client([](Client& client) { client.submit(); });
    each_client([this](Client& client) { client.wait(sequence_); });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    each_client([this](Client& client) {
      for (const float value : client.elements()) {
        if (value != expected_) bench::fail(fmt::format("a sum is {} instead of {}", value, expected_));
      }
    });
    return seconds;
  }

 private:
  static constexpr std::uint16_t kHosts = 2;
  static float contribution(std::uint16_t host, std::uint32_t rank) { return static_cast<float>(3 + host + 2 * rank); }
  static Rank rank(const PairOptions& options, std::uint16_t host, std::uint32_t local) {
    return Rank(static_cast<std::uint32_t>(host * options.ranks) + local);
  }
  template <typename F>
  void each_client(F visit) {
    for (auto& host : hosts_) {
      for (auto& client : host->clients) visit(*client);
    }
  }

  std::vector<std::unique_ptr<Host>> hosts_;
  float expected_ = 0;
  std::uint64_t sequence_ = 0;
};

// Of a round's seconds.
inline double quantile(std::vector<double> times, double q) {
  std::ranges::sort(times);
  return times[static_cast<std::size_t>(q * static_cast<double>(times.size() - 1))];
}

}  // namespace tensorlane::bench
