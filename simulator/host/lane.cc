#include "simulator/host/lane.h"

#include <algorithm>
#include <utility>

namespace tensorlane::simulator {
namespace {

constexpr Duration kHousekeeping = milliseconds(100);

}  // namespace

SimLane::SimLane(Context context, Random random)
    : context_(std::move(context)),
      random_(random),
      executor_({.events = context_.events,
                 .workers = context_.scenario.lane.workers,
                 .block_time = context_.scenario.lane.block_time,
                 .done = [this] { wake(); },
                 .begins =
                     [this](const ports::Block& block) {
                       context_.block_begins(*this, static_cast<const host::JobBlock&>(block));
                     }},
                Random(context_.scenario.seed).fork(1000u + context_.self.value + 10'000 * context_.number)),
      fairness_(context_.self, context_.findings),
      ports_(context_.ports) {
  ports_.executor = &executor_;
  ports_.metrics = &metrics_;
  ports_.lane = context_.number;
  ports_.links = this;
  Result<std::unique_ptr<host::Host>> made = host::Host::create(context_.config, ports_, [this] {
    // Workers' blocks take none of the lane's time.
    const LaneConfig& lane = context_.scenario.lane;
    local_ = std::max(local_, context_.events.now());
    if (lane.workers == 0) local_ = local_ + random_.between(Duration(0), lane.block_time);
    return local_;
  });
  TL_ASSERT(made.ok());
  host_ = std::move(*made);
  host_->report_to(context_.listener);
}

SimLane::~SimLane() = default;

void SimLane::wake() {
  if (scheduled_) return;
  scheduled_ = true;
  const Time at = now() + random_.between(Duration(0), context_.scenario.lane.poll_delay);
  context_.events.at(at, [this] {
    scheduled_ = false;
    turn();
  });
}

void SimLane::receive(host::Note note) {
  notes_.push_back(std::move(note));
  wake();
}

bool SimLane::take(host::Note* note) {
  if (notes_.empty()) return false;
  *note = std::move(notes_.front());
  notes_.pop_front();
  return true;
}

// As daemon/lane does it.
void SimLane::turn() {
  if (!context_.runs()) return;
  local_ = now();
  std::size_t progress = host_->receive(local_);
  if (host_->has_closed()) host_->reap();
  progress += host_->collect();
  progress += context_.carry_out();
  host_->submit([this](const host::Job& job) { return !context_.has_commands_of(job.id()); });
  for (SimTransport* transport : transports_) transport->begin_turn();
  progress += host_->send();
  progress += host_->work();
  local_ = std::max(local_, host_->now());
  host_->housekeep();
  host_->retire();
  if (progress > 0 || context_.has_commands() || host_->retires() || !notes_.empty()) return wake();
  sleep();
}

void SimLane::sleep() {
  const Time next = host_->next_deadline(local_ + kHousekeeping);
  const bool set = alarm_ && *alarm_ > context_.events.now() && *alarm_ <= next;
  if (!set) alarm_ = std::max(next, context_.events.now());
  if (!set && !context_.resolved()) context_.events.at(*alarm_, [this] { wake(); });
  if (!scheduled_) context_.sleeps(local_, *alarm_);
}

}  // namespace tensorlane::simulator
