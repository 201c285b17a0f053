#include "simulator/planner/host.h"

#include <algorithm>
#include <utility>

#include "common/base/assert.h"

namespace tensorlane::simulator {
namespace {
constexpr std::size_t kActionRing = 16;  // emptied after every step; a large one would leave the cache with every host
constexpr std::size_t kSendsAtOnce = 16;
constexpr std::uint64_t kLocalSumStep = mib(1).value;  // of every rank, before the engine's work has its turn
}  // namespace

using engine::Event;

PlannedHost::PlannedHost(HostIndex self, EventQueue& events, FabricNetwork& network, const HostOptions& options)
    : self_(self), events_(events), network_(network), options_(options), actions_(kActionRing) {
  network.attach(self, this);
}

Status PlannedHost::add_job(engine::EngineConfig config, const protocol::Plan& plan, Completed completed) {
  config.self = self_;
  const Descriptor staging{.region = 1, .generation = 1, .length = engine::Engine::staging_bytes(config).value};
  Job job{.engine = engine::Engine(config, staging), .completed = std::move(completed)};
  TL_RETURN_IF_ERROR(job.engine.apply_plan(plan));
  for (const protocol::PlanTensor& tensor : plan.tensors) {
    job.bytes.push_back(tensor.elements * dtype_size(tensor.dtype));
    job.sums.push_back(reduces(tensor.operation));
  }
  job.sequences.resize(plan.tensors.size());
  job.last_peer.fill(self_);
  jobs_.push_back(std::move(job));
  return {};
}

void PlannedHost::submit(std::size_t index, TensorId tensor) {
  const Job& job = jobs_[index];
  if (options_.ranks == 1 || !job.sums[tensor.value]) return ready(index, tensor);
  local_sums_.push_back({index, tensor, job.bytes[tensor.value]});
  wake();
}

void PlannedHost::ready(std::size_t index, TensorId tensor) {
  Job& job = jobs_[index];
  const Sequence sequence(++job.sequences[tensor.value].value);
  const Descriptor buffer{.region = 2 + tensor.value, .generation = 1, .length = job.bytes[tensor.value]};
  job.pending.push_back({.kind = Event::Kind::kTensorReady, .tensor_ready = {tensor, sequence, buffer, {}}});
  wake();
}

void PlannedHost::raise(std::size_t index, TensorId tensor) {
  Job& job = jobs_[index];
  job.pending.push_back({.kind = Event::Kind::kBoost, .boost = {tensor, job.sequences[tensor.value]}});
  wake();
}

void PlannedHost::on_delivered(const Message& message) {
  jobs_[message.job].pending.push_back({.kind = Event::Kind::kFrameArrived, .frame = {message.from, message.header}});
  wake();
}

void PlannedHost::on_acknowledged(const Message& message) {
  in_flight_[message.level] -= message.header.payload_bytes;
  if (message.token != 0)
    jobs_[message.job].pending.push_back({.kind = Event::Kind::kSendDone, .token = message.token});
  wake();
}

void PlannedHost::wake() {
  if (scheduled_ || working_) return;
  scheduled_ = true;
  events_.after(options_.wake, [this] {
    scheduled_ = false;
    poll();
  });
}

void PlannedHost::poll() {
  if (working_) return;
  for (Job& job : jobs_) step(job);
  for (std::size_t level = 0; level < kLevels; ++level) send_level(level);
  start_work();
}

void PlannedHost::step(Job& job) {
  // What completes may submit more, which is fed at once, too.
  while (!job.pending.empty()) {
    stepping_.clear();
    stepping_.swap(job.pending);
    std::span<const Event> events = stepping_;
    while (!events.empty()) {
      events = events.subspan(job.engine.step(events_.now(), events, actions_));
      while (!actions_.empty()) {
        const engine::Action action = actions_.front();
        actions_.pop();
        TL_ASSERT(action.kind == engine::Action::Kind::kComplete && action.complete.ok);
        job.completed(action.complete.tensor);
      }
    }
  }
}

// The most urgent block of arithmetic. As in the lane, nothing is fed until it is done (engine.h, pick_work).
void PlannedHost::start_work() {
  engine::Work work;
  for (std::size_t j = 0; j < jobs_.size(); ++j) {
    if (!jobs_[j].engine.pick_work(events_.now(), &work)) continue;
    std::uint64_t bytes = 0;
    for (std::uint32_t s = 0; s < work.source_count; ++s) bytes += work.sources[s].data.length;
    return work_on({.job = j, .token = work.token}, bytes);
  }
  if (local_sums_.empty()) return;
  LocalSum& sum = local_sums_.front();
  const std::uint64_t step = std::min(sum.bytes_left, kLocalSumStep);
  sum.bytes_left -= step;
  work_on({.local = true}, step * options_.ranks);
}

void PlannedHost::work_on(const Working& working, std::uint64_t bytes) {
  working_ = working;
  const auto time = static_cast<std::int64_t>(static_cast<double>(bytes) / options_.sum_bytes_per_second * 1e9);
  events_.after(Duration(time), [this] { work_done(); });
}

void PlannedHost::work_done() {
  const Working done = *std::exchange(working_, std::nullopt);
  if (!done.local) {
    // Before what arrived meanwhile.
    std::vector<Event>& pending = jobs_[done.job].pending;
    pending.insert(pending.begin(), {.kind = Event::Kind::kWorkDone, .token = done.token});
  } else if (const LocalSum first = local_sums_.front(); first.bytes_left == 0) {
    local_sums_.pop_front();
    ready(first.job, first.tensor);
  }
  poll();
}

Bytes PlannedHost::credit(std::size_t level) const {
  // Nothing in flight makes room for one operation, however small the window.
  const std::uint64_t window =
      in_flight_[level] == 0 ? std::max(options_.windows[level], kMaxOperation).value : options_.windows[level].value;
  return Bytes(window - std::min(window, in_flight_[level]));
}

// Jobs in turn, peers in turn, until the window is full or nothing is left.
void PlannedHost::send_level(std::size_t level) {
  std::size_t idle = 0;
  while (idle < jobs_.size()) {
    last_job_[level] = (last_job_[level] + 1) % jobs_.size();
    idle = send_one(last_job_[level], level) ? 0 : idle + 1;
  }
}

bool PlannedHost::send_one(std::size_t index, std::size_t level) {
  Job& job = jobs_[index];
  const ClassId cls = level == 0 ? kControlClass : ClassId(static_cast<std::uint8_t>(level - 1));
  HostIndex peer;
  if (!job.engine.next_flow(events_.now(), cls, job.last_peer[level], &peer)) return false;
  std::array<engine::Send, kSendsAtOnce> sends;
  // One operation at a time, so that jobs and peers share evenly; control frames carry nothing.
  const std::size_t most = level == 0 ? kSendsAtOnce : 1;
  const std::size_t picked = job.engine.pick(events_.now(), {peer, cls}, credit(level), std::span(sends).first(most));
  if (picked == 0) return false;
  job.last_peer[level] = peer;
  for (const engine::Send& send : std::span(sends).first(picked)) {
    in_flight_[level] += send.header.payload_bytes;
    network_.send({.from = self_,
                   .to = peer,
                   .level = static_cast<std::uint8_t>(level),
                   .job = static_cast<std::uint8_t>(index),
                   .header = send.header,
                   .token = send.token});
  }
  return true;
}

}  // namespace tensorlane::simulator
