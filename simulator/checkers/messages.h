// Checker "messages": each receive gets the bytes of one send that it matches, in order, and nobody else gets them;
// every announcement is answered once.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "common/base/hash.h"
#include "common/base/status.h"
#include "common/protocol/session.h"
#include "simulator/checkers/findings.h"
#include "simulator/network/packet.h"
#include "simulator/workload/scenario.h"

namespace tensorlane::simulator {

// One for all hosts of a job.
class MessageChecker {
 public:
  MessageChecker(const Scenario& scenario, Findings& findings);

  // ---- ranks: `request` is its place in the rank's program ----
  void posted(Rank rank, std::size_t request);
  // The daemon has told the rank so of a request that was posted; `buffer` is the request's, as it is now.
  void ended(Rank rank, std::size_t request, Code code, const protocol::MessageSlot& outcome,
             std::span<const std::byte> buffer);

  // ---- hosts: frames of messages, of which none is a lie ----
  void sent(const Frame& frame);
  void landed(const Frame& frame);
  // Whether what `from` sends to `to` under this grant is not all there.
  bool is_open(HostIndex from, HostIndex to, std::uint32_t grant) const { return grants_.contains({to, from, grant}); }
  // Nothing is under way any more, and the job has not failed.
  void check_quiet() const;

  std::uint64_t received() const { return received_; }
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t digest() const { return digest_.value(); }

 private:
  struct Request {
    std::size_t place = 0;  // of a send, in its stream; of a receive that names its source, likewise
    bool posted = false;
    bool over = false;
    bool received = false;  // a send
  };
  struct Name {
    Rank rank;
    std::size_t request = 0;
  };
  // Source, destination, set and tag.
  using StreamKey = std::tuple<Rank, Rank, std::uint32_t, std::uint64_t>;
  struct Stream {
    std::vector<Name> sends, receives;       // the receives that name the source
    std::map<std::size_t, std::size_t> got;  // where order of arrival decides: which send each receive got
  };
  // Of a destination, a set and a tag of which receives are from any source.
  struct Pool {
    std::uint64_t posted = 0, sent = 0;  // receives that are posted, sends that are over
  };
  using GrantKey = std::tuple<HostIndex, HostIndex, std::uint32_t>;  // who has given it, to whom
  struct Grant {
    std::uint64_t bytes = 0, landed = 0;
  };
  const MessageRequest& asked(Name name) const {
    return scenario_.messages.ranks[name.rank.value].requests[name.request];
  }
  Request& state(Name name) { return requests_[name.rank.value][name.request]; }
  // Where `of` goes by its set and tag; null where no receive of them is from any source.
  Pool* pool_of(Rank destination, const MessageRequest& of);
  void send_ended(Name name, Code code, const protocol::MessageSlot& outcome, std::span<const std::byte> buffer);
  void receive_ended(Name name, Code code, const protocol::MessageSlot& outcome, std::span<const std::byte> buffer);
  void got(Name receive, Name send, Code code, const protocol::MessageSlot& outcome, std::span<const std::byte> buffer);
  void got_from_pool(Name receive, Stream& stream, std::span<const std::byte> buffer,
                     const protocol::MessageSlot& outcome);
  bool holds(Name send, std::span<const std::byte> buffer) const;
  template <typename... Args>
  void fail(fmt::format_string<Args...> format, Args&&... args) const {
    findings_.fail("messages", format, std::forward<Args>(args)...);
  }

  const Scenario& scenario_;
  Findings& findings_;
  std::vector<std::vector<Request>> requests_;  // by rank
  std::map<StreamKey, Stream> streams_;
  std::map<std::tuple<Rank, std::uint32_t, std::uint64_t>, Pool> pools_;
  std::map<std::pair<HostIndex, HostIndex>, std::uint32_t> unanswered_;  // announcements, by sender and receiver
  std::map<GrantKey, std::uint64_t> announced_;  // by sender, receiver and the sender's id: bytes
  std::map<GrantKey, Grant> grants_;
  std::uint64_t received_ = 0, bytes_ = 0;
  Fnv1a digest_;
};

}  // namespace tensorlane::simulator
