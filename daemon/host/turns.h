// Whose turn it is: deficit round robin (Shreedhar and Varghese, "Efficient Fair Queuing Using Deficit Round Robin",
// 1995), in two levels: users share evenly, and inside a user its jobs do (laws 11, 19, 20).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace tensorlane::host {

// Whose turn it is, and whether it has begun.
struct Turn {
  std::size_t member = 0;
  bool begun = false;
};

struct Served {
  std::uint64_t cost = 0;
  bool more = false;     // what is next costs more than was left; else nothing is left, or nobody takes it now
  bool blocked = false;  // ... more than what all share has left: the turn goes on once there is more
};

// Serves members in turn, `quantum` each, until `credit` is used up or none has anything. Members that always have
// something get the same, however many pieces it comes in; at any time they differ by less than a quantum and a piece.
// A turn that is interrupted because `credit` ends, or because what all share ends, goes on with the next call.
// `account(i)` is what is left of the turn of member i, a reference; serve(i, credit) serves it, and a piece may cost
// no more than `quantum`.
template <typename Account, typename Serve>
Served take_turns(Turn& turn, std::size_t members, std::uint64_t quantum, std::uint64_t credit, Account account,
                  Serve serve) {
  Served all;
  std::size_t idle = 0;   // members in a row that have nothing left
  std::size_t stuck = 0;  // that could not afford what they have: the next turn can
  while (idle < members && stuck <= 2 * members) {
    if (turn.member >= members) turn = {};
    std::uint64_t& deficit = account(turn.member);
    if (!turn.begun) deficit += quantum;
    turn.begun = true;
    const std::uint64_t left = credit - all.cost;
    const bool credit_binds = left < deficit;
    const Served served = serve(turn.member, std::min(left, deficit));
    all.cost += served.cost;
    deficit -= std::min(deficit, served.cost);
    if (served.blocked || (served.more && credit_binds)) {
      all.more = true;
      all.blocked = served.blocked;
      return all;
    }
    if (!served.more) deficit = 0;  // who has nothing saves nothing up
    idle = served.more ? 0 : idle + 1;
    stuck = served.cost == 0 && served.more ? stuck + 1 : 0;
    turn = {turn.member + 1, false};
  }
  return all;
}

// Whose piece is next, of the members that have one, where it is known only afterwards what a piece costs: a member is
// served while its account is above zero, and may overdraw it by a piece; once none of those that have something is
// above zero, each of them gets `quantum`, as often as it takes. What a piece cost is taken from `account(i)`, a
// reference to a signed number, by the caller. `turn` is who was served last. At least one of the `members` has(i)
// something. ("Surplus round robin": Adiseshu, Parulkar and Varghese, "A Reliable and Scalable Striping Protocol",
// 1996.)
template <typename Account, typename Has>
std::size_t next_in_turn(std::size_t* turn, std::size_t members, std::int64_t quantum, Account account, Has has) {
  std::int64_t nearest = std::numeric_limits<std::int64_t>::min();
  for (std::size_t i = 0; i < members; ++i) {
    const std::size_t at = (*turn + i) % members;
    if (!has(at)) continue;
    if (account(at) > 0) return *turn = at;
    nearest = std::max(nearest, account(at));
  }
  const std::int64_t gift = (-nearest / quantum + 1) * quantum;
  std::size_t first = members;
  for (std::size_t i = 1; i <= members; ++i) {  // who was served last comes last
    const std::size_t at = (*turn + i) % members;
    if (!has(at)) continue;
    account(at) += gift;
    if (first == members && account(at) > 0) first = at;
  }
  return *turn = first;
}

}  // namespace tensorlane::host
