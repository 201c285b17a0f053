// What is late in a group: time-outs, and ranks that do something else.
#pragma once

#include <chrono>
#include <future>
#include <string>
#include <vector>

#include "client-lib/torch/group.h"

namespace tensorlane::torch_backend {

// An operation that the ranks do not agree about may wait for ever: each waits for something that nobody else calls. So
// a rank whose operation is late writes into torch's store what it is in and what it called before, reads what the
// others have written, and fails, as they do, when at one place in the order two ranks have called different things. It
// never waits for the store (notes.h) longer than kPatience, where its caller is about to say how the group has ended,
// and else not at all. One thread.
class Watch {
 public:
  static constexpr std::chrono::milliseconds kPatience{2000};

  explicit Watch(Group& group);

  // Looks at what is under way: sees to what nobody waits for, ends what is over time, compares what is late.
  void look(const std::vector<c10::intrusive_ptr<OperationWork>>& works);
  // The daemon has said how ranks differ: for those that hear first that this rank has ended the group.
  void tell(const std::string& how);
  // How ranks differ, as far as the store says; empty when they do not.
  std::string differing();
  // Takes back what is written in the store, unless the group has failed: the others may have yet to read why.
  void take_back();

 private:
  // What is asked of the store, which may answer when the group is no more.
  struct Place {
    std::string group, keys;  // its name, and what its keys begin with
    int rank = 0, size = 0;

    std::string late(int of) const { return keys + "late/" + std::to_string(of); }
    std::string differs() const { return keys + "differs"; }
  };
  struct Found {
    bool compared = false;
    std::string differs;
    std::vector<int> missing;
  };

  static Found others_say(c10d::Store& store, const Place& place, const std::vector<Description>& mine,
                          std::uint64_t sequence);
  void compare(const OperationWork& oldest);
  bool take_answer();
  std::vector<Description> history();
  std::string timed_out(const OperationWork& work) const;
  void give_up_all(const std::string& why);

  Group& group_;
  const Place place_;
  std::shared_future<Found> answer_;  // to the last comparison, until it is taken
  std::uint64_t written_ = 0;         // sequence of the operation that the store has of this rank
  OperationWork::Clock::time_point next_{};
  std::vector<int> missing_;  // ranks that were not late themselves when they were last looked at
};

}  // namespace tensorlane::torch_backend
