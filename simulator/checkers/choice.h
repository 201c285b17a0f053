// Checker "choice": what an engine sums next, and to whom it gives staging next, is the most urgent of what could be
// (law 9), and no class waits for the staging that is kept for it (law 2). Judged from outside: from the plan, from the
// frames that came and went, and from the blocks of work.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "daemon/engine/types.h"
#include "simulator/checkers/findings.h"
#include "simulator/checkers/urgencies.h"
#include "simulator/workload/scenario.h"

namespace tensorlane::simulator {

// One per engine. `urgencies` is told of every event before this is, and outlives it.
class ChoiceChecker {
 public:
  ChoiceChecker(HostIndex host, RailIndex rail, const Scenario& scenario, const Urgencies& urgencies,
                Findings& findings);

  // As OrderChecker.
  void stepped(Time now, const engine::Event& event, std::optional<TensorId> boosted);
  void picked(engine::Flow flow, std::span<const engine::Send> sends);
  // The engine has chosen this block.
  void working(const engine::Work& work);
  // The class of the most urgent block that can be done.
  std::optional<ClassId> next_work() const;
  // Of the whole run, once it is over and nothing has failed.
  void check_grants();

 private:
  // One host's contribution to a slice.
  struct Source {
    HostIndex peer;
    bool leaf = false;
    std::uint32_t operations = 0;                 // that it comes in, under a grant
    std::array<std::uint64_t, 2> announced = {};  // by parity: the last sequence
    std::array<std::uint64_t, 2> eager = {};      // the same, of those that came unasked
    std::uint32_t grant = 0, arrived = 0;         // of the operation that runs
  };
  struct Slice {
    std::uint64_t offset = 0, elements = 0;
    std::vector<Source> sources;
    // Of the operation that runs.
    std::uint32_t missing = 0;      // contributions that may not exist, then those that have not landed
    std::uint64_t own_missing = 0;  // elements of the host's own data that do not exist
    bool ready = false;             // it can be summed
    std::uint64_t left = 0;         // elements to sum, once per pass
    std::size_t wait = kNone;       // in waits_
  };
  struct Tensor {
    std::uint32_t first = 0;  // slice number of slices[0] on this rail; the next one's is `rails` more
    std::vector<Slice> slices;
    std::map<HostIndex, std::vector<std::pair<std::uint32_t, std::uint32_t>>> leaves;  // slice and source
    Descriptor buffer, fp32_scratch;
    std::size_t element_bytes = 1;
    std::map<std::uint64_t, std::uint32_t> tokens;  // slice of a block that tells it, for those that do not
  };
  // A slice that was given staging, or waits for it.
  struct Wait {
    ClassId cls;
    Urgency urgency;              // not boosted
    std::optional<Time> boosted;  // from then on
    Time announced;
    std::optional<Time> granted, done;
  };
  // Blocks that are being summed, of one slice.
  struct UnderWay {
    TensorId tensor;
    Slice* slice = nullptr;
    std::uint32_t blocks = 0;
  };
  using Ready = std::pair<ClassId, Urgency>;
  static constexpr std::size_t kNone = ~std::size_t{0};

  void add_slices(const protocol::PlanTensor& planned);
  // `owner`: as the tensor's world counts hosts.
  void add_sources(const protocol::PlanTensor& planned, const TensorWorld& world, HostIndex owner, Slice* slice) const;
  Slice* find(const protocol::FrameHeader& header);
  Source* find(Slice& slice, HostIndex peer);
  void begin(Time now, const engine::TensorReady& ready);
  void part_exists(Time now, const engine::PartReady& part);
  void arrived(Time now, HostIndex peer, const protocol::FrameHeader& header);
  void announced(Time now, TensorId tensor, std::uint64_t sequence, Slice& slice, Source& source);
  void all_announced(Time now, TensorId tensor, Slice& slice);
  void worked(Time now, std::uint64_t token);
  void landed(HostIndex peer, const protocol::FrameHeader& header);
  void make_ready(TensorId tensor, Slice& slice);
  Slice* slice_of(Tensor& tensor, const engine::Work& work);
  void check_order(ClassId cls);
  void check_reserve(ClassId cls);

  const HostIndex host_;
  const RailIndex rail_;
  const Scenario& scenario_;
  const Urgencies& urgencies_;
  Findings& findings_;
  std::vector<Tensor> tensors_;
  std::vector<Wait> waits_;
  std::map<Ready, std::uint64_t> ready_;         // slices that can be summed, by tensor
  std::map<std::uint64_t, UnderWay> under_way_;  // by token
};

}  // namespace tensorlane::simulator
