// The engine's insides. One object, one owner thread, no locks; its methods are spread over files by idea:
//   engine.cc        events in, actions out, reports
//   plan.cc          extend_plan, vacate
//   begin.cc         an operation begins, whole or in parts: what is announced, what goes at once
//   contribution.cc  announcements, staging, arithmetic, partial sums
//   result.cc        results, completion
//   frames.cc        frames from peers, each checked before it counts
//   pick.cc          what goes next
#pragma once

#include <array>

#include "daemon/engine/digest.h"
#include "daemon/engine/eager.h"
#include "daemon/engine/egress/control_queue.h"
#include "daemon/engine/egress/send_queue.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/grants.h"
#include "daemon/engine/operation.h"
#include "daemon/engine/ordering/negotiation.h"
#include "daemon/engine/staging.h"
#include "daemon/engine/tables.h"

namespace tensorlane::engine {

// A place in the staging region; see Layout.
inline constexpr std::uint64_t kBarrierPlaceBytes = 64;
inline constexpr std::uint32_t kBarrierPlaces = 256;

// How the staging region is divided: scratch for barriers, the eager slots, pages.
struct Layout {
  std::uint64_t eager_slot_bytes = 0;
  std::uint32_t eager_slots = 0;
  std::uint64_t eager_offset = 0;
  std::uint64_t pages_offset = 0;
  std::uint32_t pages = 0;
  std::uint64_t bytes = 0;

  explicit Layout(const EngineConfig& config);
};

// Null, or a text that says which rule of the protocol a frame breaks.
using Fault = const char*;

struct Engine::Impl {
  Impl(const EngineConfig& config, const Descriptor& staging);

  // ---- engine.cc ----
  void take(const Event& event, ActionRing& out);
  bool take_drained(ActionRing& out);
  void take_send_done(std::uint64_t token, ActionRing& out);
  void take_boost(const Boost& boost);
  void take_offer(TensorId tensor, ActionRing& out);
  void take_peer_up(HostIndex peer);
  void act(const Action& action, ActionRing& out);
  void announce_agreed(const TensorWord& word, ActionRing& out);
  void complete(std::uint32_t tensor, bool ok, ActionRing& out);

  // ---- plan.cc ----
  Status extend_plan(const Plan& plan, protocol::TensorRange added);
  Status vacate(protocol::TensorRange range);
  using Pages = std::array<std::uint64_t, kMaxDataClasses>;
  Status check_capacity(const Pages& reserves) const;
  Pages reserves(protocol::TensorRange added) const;
  void count_room(const Tensor& t, bool comes);
  void make_room(protocol::TensorRange added);
  void meet(protocol::TensorRange added);
  template <typename F>
  void for_each_class_of(const Tensor& t, F&& f) const;

  // ---- begin.cc ----
  void begin(const TensorReady& ready, ActionRing& out);
  void announce(Tensor& t);
  bool eager_fits(const Tensor& t, const Link& link) const;
  bool keeps_parts(const Tensor& t, const Link& link) const;
  void begin_slice(Tensor& t, std::uint32_t slice);
  void begin_contributions(Tensor& t, std::uint32_t slice);
  void take_part(const PartReady& part, ActionRing& out);
  void own_part_exists(const Tensor& t, std::uint32_t slice);

  // ---- contribution.cc ----
  void source_announced(std::uint32_t slice);
  void all_announced(std::uint32_t slice);
  void serve_staging();
  std::uint64_t pages_wanted(const Slice& slice) const;
  void grant(std::uint32_t slice);
  void source_landed(std::uint32_t slice);
  void queue_work(std::uint32_t slice);
  bool needs_arithmetic(const Tensor& t, const Slice& slice) const;
  std::optional<ClassId> next_work() const;
  bool pick_work(Work* out);
  void fill_work(std::uint32_t slice, std::uint32_t unit, Work* out) const;
  void take_work_done(std::uint64_t token, ActionRing& out);
  void reduced(std::uint32_t slice);
  void release_sources(const Tensor& t, const Slice& slice);
  void contribute_partial(const Tensor& t, const Slice& slice);
  void announce_slice(const Tensor& t, std::uint32_t send);
  void send_eagerly(std::uint32_t send, std::uint32_t aux);
  Descriptor source_place(const Source& source, Parity parity, std::uint64_t offset, std::uint64_t bytes) const;
  Work::Source own_contribution(const Tensor& t, std::uint64_t offset, std::uint64_t elements) const;
  Work::Source partial_place(const Tensor& t, std::uint64_t offset, std::uint64_t elements) const;

  // ---- result.cc ----
  void result_in_place(std::uint32_t slice);
  void send_result(std::uint32_t send, const Link& link);
  void peer_announced(const Tensor& t, const Link& link);
  void end_part(std::uint32_t slice, ActionRing& out);
  void complete_if_done(std::uint32_t tensor, ActionRing& out);

  // ---- frames.cc ----
  struct DataPlace {  // where a data frame belongs
    bool stale = false;
    std::uint32_t tensor = kNoIndex, slice = kNoIndex, source = kNoIndex;  // source: unless it is a result
    Parity parity = 0;
    Descriptor landing;
  };
  Fault check_header(HostIndex peer, const protocol::FrameHeader& header) const;
  Fault find_operation(const protocol::FrameHeader& header, bool* current) const;
  Fault find_slice(const protocol::FrameHeader& header, std::uint32_t* slice) const;
  Fault find_data(HostIndex peer, const protocol::FrameHeader& header, DataPlace* place) const;
  Fault find_eager(HostIndex peer, const protocol::FrameHeader& header, DataPlace* place) const;
  Fault find_result(HostIndex peer, const protocol::FrameHeader& header, std::uint32_t slice, DataPlace* place) const;
  Fault take_frame(HostIndex peer, const protocol::FrameHeader& header, ActionRing& out);
  Fault take_ready(HostIndex peer, const protocol::FrameHeader& header);
  Fault take_rts(HostIndex peer, const protocol::FrameHeader& header);
  Fault take_grant(HostIndex peer, const protocol::FrameHeader& header);
  Fault take_data(HostIndex peer, const protocol::FrameHeader& header, ActionRing& out);
  Fault take_eager(HostIndex peer, const protocol::FrameHeader& header, const DataPlace& place);
  Fault take_result(const protocol::FrameHeader& header, const DataPlace& place, ActionRing& out);
  std::uint32_t find_link(const Tensor& t, HostIndex peer) const;
  std::uint32_t find_source(const Slice& slice, HostIndex peer) const;
  Fault take_word(HostIndex peer, const protocol::FrameHeader& header, ActionRing& out);
  void note_announced(Tensor& t, const protocol::FrameHeader& header);
  void end_awaited(Tensor& t);

  // ---- pick.cc ----
  std::size_t pick(Time now, Flow flow, Bytes credit, std::span<Send> out);
  std::size_t pick_control(HostIndex peer, std::span<Send> out);
  // The classes whose sends travel in the flows of one class: from `first` to before `end`.
  struct Feeding {
    std::uint8_t first = 0, end = 0;
  };
  Feeding feeding(Time now, ClassId cls) const;
  ClassId most_urgent(Time now, Flow flow) const;
  void charge(Time now, ClassId of, ClassId in, std::uint64_t bytes);
  bool has_sends(Time now, Flow flow) const;
  bool has_sends(Time now, ClassId cls) const;
  bool next_flow(Time now, ClassId cls, HostIndex after, HostIndex* peer) const;
  std::optional<Time> promotion(Time now) const;
  Send make_send(Flow flow, std::uint32_t send, std::uint64_t from, std::uint64_t bytes);
  std::uint64_t send_bytes(const SendItem& item) const;
  void queue_send(std::uint32_t send);
  std::size_t granted(HostIndex peer, const protocol::FrameHeader& header, std::span<Descriptor> out) const;
  std::uint64_t key_of(const Tensor& t, bool result);
  protocol::FrameHeader header_for(protocol::FrameType type, ClassId cls) const;

  EngineConfig config_;
  Layout layout_;
  Descriptor staging_;
  PlanTables tables_;
  GrantTable grants_;
  StagingPool pool_;
  EagerCredits credits_;
  SendQueue queue_;
  ControlQueue control_;
  Negotiation negotiation_;
  bool negotiates_ = false;                           // the plan says so
  std::vector<bool> is_neighbour_;                    // by host
  std::vector<HostIndex> neighbours_;                 // in the order in which the plan came to need them
  std::size_t neighbours_up_ = 0;                     // of them
  std::array<TokenBucket, kMaxDataClasses> buckets_;  // by class
  bool limited_ = false;                              // some class is
  // Slices in urgency order, one heap per class; a slice waits in at most one of them.
  HeapPositions slice_positions_;
  std::array<UrgencyHeap, kMaxDataClasses> staging_wait_, work_;
  // What the plan can ask for at most: pages of the largest slice that it ever had; slices that are summed, by class;
  // sends, by class and peer.
  Pages reserves_{};
  std::array<std::size_t, kMaxDataClasses> most_slices_{};
  std::vector<std::size_t> most_sends_;
  Time now_;                                             // of the step that runs, or ran last
  std::uint32_t oldest_ = kNoIndex, newest_ = kNoIndex;  // open operations
  std::vector<TensorId> awaited_;                        // peers have announced their next operation
  Iterations iterations_;                                // of the operations that begin
  std::uint64_t arrivals_ = 0;                           // orders the single queue
  bool staging_changed_ = false;
  bool aborted_ = false, drained_ = false;
  EngineCounters counters_;
  Digest digest_;
};

}  // namespace tensorlane::engine
