// What is late in a group: time-outs, and ranks that do something else.
#pragma once

#include <string>
#include <vector>

#include "client-lib/torch/group.h"

namespace tensorlane::torch_backend {

// An operation that the ranks do not agree about may wait for ever: each waits for something that nobody else calls. So
// a rank whose operation is late writes into torch's store what it is in and what it called before, reads what the
// others have written, and fails, as they do, when at one place in the order two ranks have called different things.
// One thread.
class Watch {
 public:
  explicit Watch(Group& group) : group_(group) {}

  // Looks at what is under way: sees to what nobody waits for, ends what is over time, compares what is late.
  void look(const std::vector<c10::intrusive_ptr<OperationWork>>& works);
  // The daemon has said how ranks differ: for those that hear first that this rank has ended the group.
  void tell(const std::string& how);
  // How ranks differ, as far as the store says; empty when they do not.
  std::string differing();
  // Takes back what is written in the store, unless the group has failed: the others may have yet to read why.
  void take_back();

 private:
  void compare(const OperationWork& oldest);
  std::vector<Description> history();
  std::string timed_out(const OperationWork& work) const;
  std::string others_say(const std::vector<Description>& mine, std::vector<int>& missing, std::uint64_t sequence);
  void give_up_all(const std::string& why);
  std::string key(int rank) const;

  Group& group_;
  std::uint64_t written_ = 0;  // sequence of the operation that the store has of this rank
  OperationWork::Clock::time_point next_{};
  std::vector<int> missing_;  // ranks that were not late themselves when they were last looked at
};

}  // namespace tensorlane::torch_backend
