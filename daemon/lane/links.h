// The notes between the lanes of a daemon: a queue for each pair, without a lock.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "common/base/crossing.h"
#include "common/base/status.h"
#include "daemon/host/notes.h"

namespace tensorlane::lane {

class LaneLinks;

// All of them. Outlives the lanes.
class Switchboard {
 public:
  // Errors: kResourceExhausted (descriptors).
  static Result<std::unique_ptr<Switchboard>> create(std::size_t lanes);
  ~Switchboard();
  LaneLinks& of(std::size_t lane) { return *links_[lane]; }

 private:
  friend class LaneLinks;
  // Notes that wait between two lanes; more wait with the sender.
  static constexpr std::size_t kNotesOfAll = 4096, kFewestNotes = 256;
  using Queue = Crossing<host::Note>;

  Switchboard() = default;
  Queue& queue(std::size_t from, std::size_t to) { return *queues_[from * links_.size() + to]; }

  std::vector<std::unique_ptr<Queue>> queues_;  // by sender, then receiver
  std::vector<std::unique_ptr<LaneLinks>> links_;
};

// Those of one lane. Its thread alone.
class LaneLinks final : public host::Links {
 public:
  LaneLinks(Switchboard& board, std::size_t lane, std::size_t lanes, int wake);
  ~LaneLinks() override;

  void post(std::size_t lane, host::Note note) override;
  bool take(host::Note* note) override;

  // Gives the queues what they had no room for. True when something still waits: do not sleep.
  bool push_on();
  // For whoever sleeps until there is a note: a descriptor to watch edge-triggered, which is never read. arm() asks for
  // a wake-up, and returns false when there is one already.
  int wake_fd() const { return wake_; }
  bool arm();
  void disarm() { bell_.disarm(); }

 private:
  bool push(std::size_t lane, host::Note& note);

  Switchboard& board_;
  const std::size_t lane_;
  const int wake_;
  Bell bell_;
  std::vector<std::deque<host::Note>> held_;  // by receiver
  std::size_t next_ = 0;                      // whose note take() looks for first
};

}  // namespace tensorlane::lane
