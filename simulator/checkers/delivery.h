// Counts what lands: every byte of an operation exactly once, from the hosts that owe it, and never two contributions
// in one place of the staging.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "daemon/engine/types.h"
#include "simulator/checkers/findings.h"
#include "simulator/network/packet.h"
#include "simulator/workload/scenario.h"

namespace tensorlane::simulator {

// Checker "delivery". One for all hosts.
class DeliveryChecker {
 public:
  DeliveryChecker(const Scenario& scenario, Findings& findings)
      : scenario_(scenario), worlds_(scenario.worlds()), findings_(findings) {}
  // The frame's payload is complete with its receiver; `contribution`: it landed in staging, else in the tensor.
  void landed(const Frame& frame, bool contribution);
  // (tensor, sequence) is complete on one more host. After the last one everything that is owed must have come.
  void completed(TensorId tensor, Sequence sequence);

  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t operations() const { return operations_; }

 private:
  using Piece = std::tuple<std::uint16_t, std::uint16_t, bool, std::uint32_t,
                           std::uint64_t>;  // from, to, contribution, slice, offset
  struct Operation {
    std::set<Piece> pieces;
    std::uint64_t contributed = 0, results = 0;  // bytes over all hosts
    std::uint16_t completed = 0;
  };
  void check_counts(const protocol::PlanTensor& planned, Sequence sequence, const Operation& operation);

  const Scenario& scenario_;
  const std::vector<TensorWorld> worlds_;  // by tensor
  Findings& findings_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, Operation> open_;
  std::uint64_t bytes_ = 0, operations_ = 0;
};

// Checker "staging". One per host: a place that holds a contribution which is not summed yet takes no other.
class StagingChecker {
 public:
  StagingChecker(HostIndex host, std::span<const std::byte> staging, Findings& findings)
      : host_(host), staging_(staging), findings_(findings) {}
  bool inside(std::span<const std::byte> place) const {
    return !place.empty() && place.data() >= staging_.data() && place.data() < staging_.data() + staging_.size();
  }
  void landing(std::span<const std::byte> place);
  // The engine's choices are not watched any more: nobody says what is summed.
  void judge_no_more() { judges_ = false; }
  void consumed(std::span<const std::byte> source);
  std::uint64_t held() const { return held_; }

 private:
  HostIndex host_;
  std::span<const std::byte> staging_;
  Findings& findings_;
  std::map<std::uint64_t, std::uint64_t> live_;  // offset -> end
  std::uint64_t held_ = 0;
  bool judges_ = true;
};

}  // namespace tensorlane::simulator
