#include "daemon/host/remote.h"

#include <vector>

#include "daemon/host/job_part.h"

namespace tensorlane::host {

// ---- to the rails ----

template <typename Call>
void RemoteRails::tell(Call call) {
  way_.post(RailsNote{std::move(call)});
}

void RemoteRails::open(Time /*now*/) {
  tell([](JobPart& part, Time now) { part.rails()->open(now); });
}

void RemoteRails::extend(const protocol::Plan& plan, protocol::TensorRange added, std::span<const OwnMemory> memory) {
  tell([chunk = plan.part(added), added, memory = std::vector(memory.begin(), memory.end())](JobPart& part, Time) {
    part.extend(chunk, added, memory);
  });
}

void RemoteRails::vacate(protocol::TensorRange range) {
  tell([range](JobPart& part, Time) { part.vacate(range); });
}

void RemoteRails::map(std::span<std::byte> bytes) {
  tell([bytes](JobPart& part, Time) { part.rails()->map(bytes); });
}

void RemoteRails::unmap(std::span<std::byte> bytes) {
  tell([bytes](JobPart& part, Time) { part.rails()->unmap(bytes); });
}

void RemoteRails::settle(std::uint64_t number, Time /*now*/) {
  tell([number](JobPart& part, Time now) { part.rails()->settle(number, now); });
}

void RemoteRails::bind(TensorId tensor, std::span<std::byte> buffer, std::span<std::byte> segment) {
  tell([=](JobPart& part, Time) { part.rails()->bind(tensor, buffer, segment); });
}

void RemoteRails::set_priorities(std::span<const Priority> priorities) {
  tell([all = std::vector(priorities.begin(), priorities.end())](JobPart& part, Time) {
    part.rails()->set_priorities(all);
  });
}

void RemoteRails::open_flows_to(HostIndex peer, Time /*now*/) {
  tell([peer](JobPart& part, Time now) { part.rails()->open_flows_to(peer, now); });
}

void RemoteRails::look_at_messages(std::span<const std::uint64_t> requests, Time /*now*/) {
  tell([all = std::vector(requests.begin(), requests.end())](JobPart& part, Time now) {
    part.rails()->look_at_messages(all, now);
  });
}

void RemoteRails::look_for_missing(std::span<const TensorId> operations, Time /*now*/) {
  tell([all = std::vector(operations.begin(), operations.end())](JobPart& part, Time now) {
    part.rails()->look_for_missing(all, now);
  });
}

void RemoteRails::close(bool abort, Time /*now*/) {
  tell([abort](JobPart& part, Time now) { part.rails()->close(abort, now); });
}

void RemoteRails::drain(Time /*now*/) {
  tell([](JobPart& part, Time now) { part.rails()->drain(now); });
}

// ---- to the job ----

template <typename Call>
void RemoteOwner::tell(Call call) {
  way_.post(JobNote{std::move(call)});
}

void RemoteOwner::left(const Status& cause) {
  tell([lane = way_.from, cause](Job& job, Time now) { job.leave(lane, cause, now); });
}

void RemoteOwner::rails_settled(std::size_t lane, const Settled& settled, Time /*now*/) {
  tell([=](Job& job, Time now) { job.rails_settled(lane, settled, now); });
}

void RemoteOwner::rails_want_flows(HostIndex peer) {
  tell([peer](Job& job, Time) { job.rails_want_flows(peer); });
}

void RemoteOwner::rails_failed(const Status& cause) {
  tell([cause](Job& job, Time) { job.rails_failed(cause); });
}

void RemoteOwner::rails_lost(Lost lost, const Status& cause, Time /*now*/) {
  tell([=](Job& job, Time now) { job.rails_lost(lost, cause, now); });
}

void RemoteOwner::rails_closed(Time /*now*/) {
  tell([](Job& job, Time now) { job.rails_closed(now); });
}

void RemoteOwner::rails_drained(Time /*now*/) {
  tell([](Job& job, Time now) { job.rails_drained(now); });
}

void RemoteOwner::rails_gone() {
  tell([](Job& job, Time) { job.rails_gone(); });
}

void RemoteOwner::rails_await(std::size_t lane, const Awaited& awaited) {
  tell([=](Job& job, Time) { job.rails_await(lane, awaited); });
}

void RemoteOwner::rails_missing(const Missing& missing, Time /*now*/) {
  tell([=](Job& job, Time now) { job.rails_missing(missing, now); });
}

void RemoteOwner::rails_messages_wait(const MessagesWait& waiting, Time /*now*/) {
  tell([=](Job& job, Time now) { job.rails_messages_wait(waiting, now); });
}

void RemoteOwner::rails_progress(std::size_t lane, const ports::LaneProgress& progress) {
  tell([=](Job& job, Time) { job.rails_progress(lane, progress); });
}

}  // namespace tensorlane::host
