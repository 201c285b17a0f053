// Messages that a job's ranks exchange beside their operations: who posts what, and in which order.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/units.h"
#include "common/protocol/session.h"

namespace tensorlane::simulator {

struct Scenario;

// A send or a receive, as a rank posts it.
struct MessageRequest {
  bool sends = false;
  Rank peer;              // of a send the destination; of a receive the source, or kAnyRank
  std::uint32_t set = 0;  // the process set
  std::uint64_t tag = 0, count = 0;
  Dtype dtype{};
  float urgency = 0;        // of a send
  std::uint32_t round = 0;  // a rank posts those of a round once all of the round before are over

  std::pair<std::uint32_t, std::uint64_t> label() const { return {set, tag}; }
  bool from_any() const { return !sends && peer.value == protocol::kAnyRank; }
  std::uint64_t bytes() const { return count * dtype_size(dtype); }
};

// Every send has one receive. Of each (source, destination, set, tag) the n-th receive is for the n-th send, and has
// its count and dtype or ends in a mismatch; unless receives of this destination and tag are from any source: then all
// of its messages are of one count and dtype, which has at least 8 bytes or none, are posted in one round, and the
// receives that name their source are posted first, so that no order of arrival leaves any of them without a message.
struct MessageProgram {
  struct OfRank {
    std::vector<MessageRequest> requests;  // in the order in which it posts them
    Duration late{0};  // so long it waits before `late_round`, or the first that it has from there on
    std::uint32_t late_round = 0;
  };
  std::vector<OfRank> ranks;  // empty: the job has no messages
  Duration think;             // at most, between two posts
  double at_once = 0;         // probability that a post follows the one before at once

  bool empty() const { return ranks.empty(); }
};

// Jobs of more hosts have none: the tables of each host grow with their number.
inline constexpr std::uint16_t kMostHostsWithMessages = 16;

// Perhaps the job's ranks have messages, by a random stream of their own.
void random_messages(Scenario& scenario);
// They have, and some go between hosts where there are several.
void add_messages(Scenario& scenario, std::uint64_t seed);

// What the request of this rank has in it, which is a send.
void fill_message(std::uint64_t seed, Rank rank, std::size_t request, std::span<std::byte> buffer);

}  // namespace tensorlane::simulator
