// What a rank's process sends and receives beside its operations: it posts the requests of its program, round by round,
// and looks at what it got, and at memory that nobody may touch.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "simulator/checkers/messages.h"
#include "simulator/clock/event_queue.h"
#include "simulator/clock/random.h"
#include "simulator/clock/trace.h"
#include "simulator/host/memory.h"

namespace tensorlane::simulator {

class ClientMessages {
 public:
  struct Context {
    const Scenario& scenario;
    EventQueue& events;
    SimMemory& memory;
    MessageChecker& checker;
    Findings& findings;
    const Trace& trace;
    std::function<void(std::uint32_t slot, const protocol::MessageSlot&)> post;  // to the daemon
  };
  ClientMessages(HostIndex host, Rank rank, Context context);

  // All buffers; empty where there are no messages. To the daemon it is the segment behind those of the tensors.
  const Descriptor& arena() const { return arena_; }
  void start();
  // From the daemon: the slot's request is over. Checkers "messages", "memory".
  void ended(std::uint32_t slot, const protocol::MessageSlot& outcome, Code code);
  // From the daemon: the job has failed, and with it what is open.
  void fail();
  void set_frozen(bool frozen);
  void kill() { dead_ = true; }

  std::uint64_t open() const { return open_.size(); }
  // All of its program is over, or all that it has posted and it posts nothing more.
  bool finished() const { return open_.empty() && (failed_ || dead_ || next_ == requests().size()); }
  bool failed() const { return failed_; }
  // Memory that is not the daemon's is as it was left. Checker "memory".
  void check_arena() const;
  std::string describe_open() const;

 private:
  const std::vector<MessageRequest>& requests() const;
  void lay_out();
  void schedule();
  void act();
  bool may_post() const;
  void post();
  std::uint32_t free_slot();
  protocol::MessageSlot slot_of(std::size_t request);
  std::span<std::byte> buffer(std::size_t request) const;
  void check_untouched(std::uint64_t from, std::uint64_t to) const;
  void leave(std::size_t request);

  const HostIndex host_;
  const Rank rank_;
  Context context_;
  Random random_;
  Descriptor arena_;
  std::vector<std::uint64_t> places_;          // by request: where its buffer begins in the arena
  std::map<std::uint32_t, std::size_t> open_;  // by slot: requests
  std::size_t next_ = 0;                       // to be posted
  bool started_ = false, scheduled_ = false, frozen_ = false, dead_ = false, failed_ = false;
};

}  // namespace tensorlane::simulator
