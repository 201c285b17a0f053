// The two ends of a job whose rails are on another lane than the job itself.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "daemon/host/notes.h"
#include "daemon/host/rails.h"

namespace tensorlane::host {

// From where a note comes, and where it goes.
struct Way {
  Links& links;
  JobId job;
  Epoch epoch;
  std::size_t from = 0, to = 0;  // lanes

  template <typename What>
  void post(What what) const {
    links.post(to, {job, epoch, from, std::move(what)});
  }
};

// The rails, as the job sees them.
class RemoteRails final : public Rails {
 public:
  explicit RemoteRails(const Way& way) : way_(way) {}

  void open(Time now) override;
  void extend(const protocol::Plan& plan, protocol::TensorRange added, std::span<const OwnMemory> memory) override;
  void vacate(protocol::TensorRange range) override;
  void map(std::span<std::byte> bytes) override;
  void unmap(std::span<std::byte> bytes) override;
  void settle(std::uint64_t number, Time now) override;
  void bind(TensorId tensor, std::span<std::byte> buffer, std::span<std::byte> segment) override;
  void set_priorities(std::span<const Priority> priorities) override;
  void start(TensorId tensor, Sequence sequence, bool in_parts, Time /*now*/) override {
    way_.post(StartNote{tensor, sequence, in_parts});
  }
  void part_ready(const engine::PartReady& part, Time /*now*/) override { way_.post(part); }
  void boost(TensorId tensor, Sequence sequence, Time /*now*/) override { way_.post(BoostNote{tensor, sequence}); }
  void offer(TensorId tensor, Time /*now*/) override { way_.post(OfferNote{tensor}); }
  void post(const MessagePost& post, Time /*now*/) override { way_.post(post); }
  void open_flows_to(HostIndex peer, Time now) override;
  void look_at_messages(std::span<const std::uint64_t> requests, Time now) override;
  void look_for_missing(std::span<const TensorId> operations, Time now) override;
  void close(bool abort, Time now) override;
  void drain(Time now) override;

 private:
  template <typename Call>
  void tell(Call call);

  const Way way_;
};

// The job, as the rails see it.
class RemoteOwner final : public RailsOwner {
 public:
  explicit RemoteOwner(const Way& way) : way_(way) {}

  // The rails could not begin: there are none.
  void left(const Status& cause);

  void rails_settled(std::size_t lane, const Settled& settled, Time now) override;
  void rails_completed(const engine::Complete& complete, Time /*now*/) override { way_.post(complete); }
  void rails_placed(const engine::PartInPlace& part, Time /*now*/) override { way_.post(part); }
  void rails_agreed(const engine::Agreed& agreed, Time /*now*/) override { way_.post(agreed); }
  void rails_message_done(const engine::MessageDone& done, Time /*now*/) override { way_.post(done); }
  void rails_want_flows(HostIndex peer) override;
  void rails_failed(const Status& cause) override;
  void rails_lost(Lost lost, const Status& cause, Time now) override;
  void rails_closed(Time now) override;
  void rails_drained(Time now) override;
  void rails_gone() override;
  void rails_await(std::size_t lane, const Awaited& awaited) override;
  void rails_missing(const Missing& missing, Time now) override;
  void rails_messages_wait(const MessagesWait& waiting, Time now) override;
  void rails_progress(std::size_t lane, const ports::LaneProgress& progress) override;

 private:
  template <typename Call>
  void tell(Call call);

  const Way way_;
};

}  // namespace tensorlane::host
