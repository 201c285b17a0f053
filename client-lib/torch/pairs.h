// Messages between two ranks of a process group.
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "client-lib/torch/work.h"
#include "tensorlane/tensorlane.h"

namespace tensorlane::torch_backend {

class Group;

// One end of a message.
struct Transfer {
  bool sends = false;
  int tag = 0;
  at::Tensor memory;  // contiguous; that of a receive is written
  c10::intrusive_ptr<OperationWork> work;
};

// The messages of this rank and one other. The two are a job of the C interface of their own, which they make when each
// has its first message for the other, on a thread of its own, since the other may not have one for long; messages wait
// for that. A message travels as broadcasts: a head, which says what it is and has what is short, and pieces. A piece
// is a power of two of bytes, so that messages of all lengths share a few names, which both ranks register. Names
// belong to a direction and a tag: messages of one tag are matched in the order in which they are given, and wait for
// none of another tag.
//
// Nothing of a message is at the receiver before that asks for it. Where the two disagree about a message, the receiver
// finds that out: this message and all that are under way between the two fail on both, and none can be given any more.
class Pair {
 public:
  // `other`: its rank in the group, which outlives the pair.
  Pair(Group& group, int other);
  ~Pair();

  // Never waits. The order of calls is that of the messages. Throws DistBackendError for what cannot be begun.
  void transfer(Transfer transfer);
  // Now and then, while messages are under way: whether the other one has found that they disagree.
  void look();
  // Fails what is under way and what is given later. Any thread.
  void abort(const std::string& why);
  // Ends it. Nothing is under way, or it was aborted.
  void leave();

 private:
  struct Message;
  struct Part;
  struct Lane {
    bool sends = false;
    int tag = 0;
    auto operator<=>(const Lane&) const = default;
  };

  void meet();
  void begin_locked(Transfer transfer);
  void post_locked(const std::shared_ptr<Message>& message, const Lane& lane, void* memory, std::uint64_t bytes);
  void end(Message& message);
  void differ(const std::string& why);
  std::string differing() const;  // what the other one has written of it, or nothing
  std::string text() const;
  std::string key(const char* what) const;
  static void on_part(tl_status_t status, void* part);

  Group& group_;
  const int other_;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;  // of what follows
  tl_context_t* context_ = nullptr;
  std::deque<Transfer> waiting_;  // for the two to meet
  std::set<Lane> lanes_;
  std::map<std::pair<Lane, std::uint64_t>, std::uint64_t> pieces_;  // so far, by length
  std::string failure_;                                             // why none can be given any more
  std::thread meeting_;
};

}  // namespace tensorlane::torch_backend
