// A host that lies: beside what its engine sends it sends frames that break one rule of the protocol each. Whoever gets
// one must end the job with an error that names the liar, or drop the frame; nothing may be written.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "common/protocol/frame.h"
#include "simulator/clock/random.h"
#include "simulator/workload/scenario.h"
#include "simulator/workload/values.h"

namespace tensorlane::simulator {

const char* lie_name(Lie lie);

// A grant that a host has sent to another, as everybody on the network might guess it.
struct GivenGrant {
  HostIndex from, to;
  protocol::FrameHeader header;
};

// One per rail of the host that lies.
class Liar {
 public:
  // `grants`: those of this rail, of all hosts; outlives it.
  Liar(HostIndex self, const Scenario& scenario, const std::vector<GivenGrant>& grants, Random random);

  // What the host has got.
  void heard(HostIndex from, const protocol::FrameHeader& header);
  struct Told {
    HostIndex to;
    ClassId on;  // the class of the flow
    protocol::FrameHeader header;
    bool after = false;  // the frame that was the occasion
  };
  // Says the lie of the scenario on the occasion of a frame that the host sends to `to`, if that is one.
  std::optional<Told> tell(HostIndex to, const protocol::FrameHeader& sent);

 private:
  using Header = protocol::FrameHeader;
  std::optional<Told> of_any(HostIndex to, const Header& sent) const;
  std::optional<Told> of_ready(HostIndex to, const Header& sent);
  std::optional<Told> of_grant(HostIndex to, const Header& sent) const;
  std::optional<Told> of_word(HostIndex to, const Header& sent) const;
  std::optional<Told> of_eager(HostIndex to, const Header& sent) const;
  std::optional<Told> of_data(HostIndex to, const Header& sent) const;
  std::optional<Told> of_message(HostIndex to, const Header& sent) const;  // liar_messages.cc
  std::optional<Told> result_early(HostIndex to, const Header& sent) const;
  std::optional<Told> result_elsewhere(HostIndex to, const Header& sent) const;
  std::optional<Told> eager_above_limit(HostIndex to, const Header& sent) const;
  std::optional<Told> grant_of_others(HostIndex to) const;
  bool name_leaf(HostIndex to, Header* header) const;
  // Whether `from` gives what it has of the slice to `to`; `leaf`: its own data only.
  bool passes(const PlannedSlice& slice, TensorId tensor, HostIndex from, HostIndex to, bool* leaf = nullptr) const;
  // Whether `from` sends the result of the slice to `to`.
  bool passes_result(const PlannedSlice& slice, TensorId tensor, HostIndex from, HostIndex to) const;
  std::uint32_t bytes(const PlannedSlice& slice, TensorId tensor, bool leaf) const;

  const HostIndex self_;
  const Scenario& scenario_;
  const std::vector<GivenGrant>& grants_;
  Random random_;
  std::vector<TensorWorld> worlds_;                                                   // by tensor
  std::vector<std::vector<PlannedSlice>> slices_;                                     // by tensor
  std::map<std::tuple<HostIndex, TensorId, Sequence>, std::uint32_t> result_grants_;  // of peers
  std::map<std::pair<HostIndex, std::uint32_t>, Header> announced_;                   // their messages, by their ids
};

}  // namespace tensorlane::simulator
