// One job on one lane: its engine, its local ranks, and how an operation passes between them.
//
// An operation goes through three phases on a host: every local rank submits; local work brings their buffers together;
// the engine moves the leader's buffer between hosts; local work spreads the result; every local rank gets its
// completion. Where all ranks live on one host the engine has no part in it. Everything here runs on the lane's thread.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/units.h"
#include "daemon/engine/engine.h"
#include "daemon/lane/lane.h"
#include "daemon/lane/local_work.h"
#include "daemon/ports/job.h"

namespace tensorlane::lane {

// What a job uses of its lane. Outlives the job.
struct Surroundings {
  const LaneConfig* config = nullptr;
  ports::Memory* memory = nullptr;
  ports::Reducer* reducer = nullptr;
  ports::LaneMetrics* metrics = nullptr;
  ports::Timeline* timeline = nullptr;
  ports::Transport* transport = nullptr;
  ports::LaneListener* listener = nullptr;
};

class Job {
 public:
  Job(ports::JobSpec spec, const Surroundings& around);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  JobId id() const { return spec_.credentials.job; }
  bool closed() const { return state_ == State::kClosed; }

  // ---- commands (from LanePort) ----
  void connect(Time now);
  void attach(Rank rank, std::shared_ptr<ports::ClientSession> session);
  void apply_plan(protocol::Plan plan);
  void bind(Rank rank, TensorId tensor, const ports::BufferPlace& place);
  void abort(const Status& cause, Time now);
  void detach(Rank rank);

  // ---- from the transport ----
  Result<std::span<std::byte>> landing(const ports::FlowKey& flow, const protocol::FrameHeader& header);
  void frame_arrived(const ports::FlowKey& flow, const protocol::FrameHeader& header, Time now);
  void sent(std::uint64_t token, Time now);
  void flow_up(const ports::FlowKey& flow);
  void flow_down(const ports::FlowKey& flow, const Status& cause, Time now);

  // ---- the loop ----
  // Takes what the local ranks have submitted. Returns how many entries there were.
  std::size_t collect();
  // Begins what was collected. Between the two the lane carries out its commands: the client of a submission has been
  // told that its tensor is registered, so the command that binds the tensor is in the queue by then.
  void submit_collected(Time now);
  // The class of the most urgent block of arithmetic or copying that waits, if any.
  std::optional<ClassId> next_work(Time now);
  // Does that block, which begins at `now`. Returns its span for the timeline, without the length.
  ports::TraceSpan do_work(Time now);
  // Gives the transport operations of one class, of `credit` bytes at most (control frames count with their headers,
  // data with its payload).
  struct Sent {
    std::size_t operations = 0;
    Bytes bytes;
    bool more = false;  // what is next is larger than the credit that is left; else nothing is left, or flows are full
  };
  Sent send(ClassId cls, Bytes credit, Time now);
  bool has_sends(ClassId cls, Time now) const { return engine_ && engine_->has_sends(now, cls); }
  // When something may go in a more urgent class than now (engine.h).
  std::optional<Time> promotion(Time now) const { return engine_ ? engine_->promotion(now) : std::nullopt; }
  // What is left of this job's turn in a class: the lane's account.
  Bytes& deficit(ClassId cls) { return deficit_[ports::metrics_slot(cls)]; }
  // Reports ranks that keep others waiting, and connections that are lost. Call about every 100 ms.
  void report_late(Time now);
  // Adds what the engine has counted since the last call to the lane's metrics. Call about every 100 ms.
  void publish_counts();

  const std::vector<std::shared_ptr<ports::ClientSession>>& sessions() const { return sessions_; }
  const engine::EngineCounters* engine_counters() const { return engine_ ? &engine_->counters() : nullptr; }

 private:
  enum class State { kConnecting, kRunning, kClosing, kClosed };

  // The local side of a planned tensor.
  struct LocalTensor {
    std::vector<bool> bound;              // by local index
    std::vector<Buffer> buffers;          // by local index; empty for a barrier
    std::vector<std::uint64_t> sequence;  // by local index: last submitted
    std::uint64_t completed = 0;          // last sequence that all local ranks were told of
    std::uint32_t arrived = 0;            // local ranks that have submitted completed + 1
    Descriptor buffer;                    // the leader's, for the engine
    std::vector<std::byte> wide_storage;
    Descriptor wide;
    LocalTask task;
    bool raised = false;  // a client waits for the operation that runs
    Time first_arrival, ready;
    Duration reported{};  // lateness already reported
  };

  // Of two hosts the one with the lower index connects (ports/transport.h).
  bool dials(HostIndex peer) const { return spec_.credentials.self < peer; }
  std::uint32_t local_index(Rank rank) const;
  std::uint32_t leader_of(const protocol::PlanTensor& tensor) const;
  void submit(std::uint32_t local, const protocol::SubmissionEntry& entry, Time now);
  void raise(LocalTensor& local, const protocol::PlanTensor& tensor, std::uint64_t sequence, Time now);
  void all_arrived(LocalTensor& local, const protocol::PlanTensor& tensor, Time now);
  void start_local(LocalTensor& local, const protocol::PlanTensor& tensor, LocalStep step);
  void to_engine(LocalTensor& local, const protocol::PlanTensor& tensor, Time now);
  void finish_step(LocalTensor& local, const protocol::PlanTensor& tensor, Time now);
  void complete(LocalTensor& local, const protocol::PlanTensor& tensor, bool ok, Time now);
  ports::TraceSpan do_local_block(Time now);
  ports::TraceSpan do_engine_block(const engine::Work& work, Time now);
  void feed(const engine::Event& event, Time now);
  void carry_out(const engine::Action& action, Time now);
  void report_lost(Time now);
  void note_wait(const engine::Send& send, const ports::FlowKey& flow, Time now);
  void fail(const Status& cause);
  void drained(Time now);
  void close_flows();
  void map(std::span<std::byte> bytes);
  std::span<const std::span<std::byte>> granted(HostIndex peer, const protocol::FrameHeader& header);

  ports::JobSpec spec_;
  Surroundings around_;
  State state_ = State::kConnecting;
  std::vector<Rank> local_ranks_;
  std::vector<std::uint32_t> rank_numbers_;
  std::vector<std::shared_ptr<ports::ClientSession>>
      sessions_;  // by local index; empty until attached, kept until closed
  std::vector<bool> detached_;
  std::vector<std::pair<std::uint32_t, protocol::SubmissionEntry>> collected_;  // local index and entry
  std::unique_ptr<std::byte[]> staging_storage_;
  Descriptor staging_;
  std::unique_ptr<engine::Engine> engine_;  // none in a job of one host
  engine::ActionRing actions_;
  protocol::Plan plan_;
  std::vector<LocalTensor> tensors_;
  LocalQueue local_queue_;
  std::optional<engine::Work> work_;  // chosen by the engine, not done yet
  std::size_t flows_wanted_ = 0, flows_up_ = 0;
  std::size_t flows_open_ = 0;  // dialed or accepted, and not reported down
  bool failed_ = false;         // told the listener
  std::optional<Status> abort_cause_;
  std::optional<std::pair<Status, Time>> lost_;  // a connection that went, and when
  std::optional<Status> departed_;               // a peer went while nothing was pending
  std::array<HostIndex, kMaxDataClasses + 1> last_peer_{};
  static constexpr std::size_t kMaxPlaces = 64;          // pages behind one grant: a slice of 16 MiB
  std::array<std::span<std::byte>, kMaxPlaces> places_;  // of the frame that is being sent
  engine::EngineCounters published_;                     // as of the last publish_counts()
  std::array<Bytes, kMaxDataClasses + 1> deficit_{};
  std::shared_ptr<ports::JobMetrics> metrics_;
};

}  // namespace tensorlane::lane
