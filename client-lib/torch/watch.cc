#include "client-lib/torch/watch.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

namespace tensorlane::torch_backend {
namespace {

using std::chrono::milliseconds;
using Clock = OperationWork::Clock;

constexpr milliseconds kLate{3000}, kAgain{500}, kUnattended{50};

std::string seconds(milliseconds time) {
  std::ostringstream text;
  text << static_cast<double>(time.count()) / 1000 << " s";
  return text.str();
}

// Lines "sequence description", the first of the operation that is waited for.
std::string written(const Description& waits, const std::vector<Description>& history) {
  std::ostringstream text;
  text << waits.sequence << ' ' << waits.text() << '\n';
  for (const Description& each : history) text << each.sequence << ' ' << each.text() << '\n';
  return text.str();
}

std::map<std::uint64_t, std::string> read(const std::string& text) {
  std::map<std::uint64_t, std::string> calls;
  std::istringstream in(text);
  std::uint64_t sequence = 0;
  std::string what;
  while (in >> sequence && in.get() == ' ' && std::getline(in, what)) calls[sequence] = what;
  return calls;
}

}  // namespace

Watch::Watch(Group& group) : group_(group), place_{group.name(), group.key(""), group.rank(), group.size()} {}

void Watch::look(const std::vector<c10::intrusive_ptr<OperationWork>>& works) {
  if (take_answer()) return;
  const Clock::time_point now = Clock::now();
  const OperationWork* oldest = nullptr;
  for (const auto& work : works) {
    const auto age = now - work->begun();
    if (age > kUnattended) work->arm_if_nobody_waits();
    if (work->timeout().count() > 0 && age >= work->timeout()) return give_up_all(timed_out(*work));
    const std::uint64_t sequence = work->description().sequence;
    if (sequence > 0 && (oldest == nullptr || sequence < oldest->description().sequence)) oldest = work.get();
  }
  if (oldest != nullptr && now >= next_ &&
      now - oldest->begun() > std::min<Clock::duration>(kLate, oldest->timeout() / 2)) {
    next_ = now + kAgain;
    compare(*oldest);
  } else if (oldest == nullptr || oldest->description().sequence > written_) {
    take_back();
  }
}

std::string Watch::timed_out(const OperationWork& work) const {
  const Description& what = work.description();
  const std::string within = " is not done: within " + seconds(work.timeout()) + ": ";
  if (what.sequence == 0) {
    const std::string who = what.peer < 0 ? "a rank" : "rank " + std::to_string(what.peer);
    return "Timed out: " + what.text() + " of process group '" + group_.name() + "'" + within + "let " + who +
           " make the matching call, or raise the timeout of the group";
  }
  std::string who;
  for (const int rank : missing_) who += (who.empty() ? "rank(s) " : ", ") + std::to_string(rank);
  return "Timed out: " + what.text() + " (operation " + std::to_string(what.sequence) + " of process group '" +
         group_.name() + "')" + within +
         (who.empty() ? "all ranks are in it: look at 'tensorlane status', or raise the timeout of the group"
                      : who +
                            " did not call it, or were not late yet: let all ranks make the same calls, or raise the "
                            "timeout of the group");
}

std::vector<Description> Watch::history() {
  std::lock_guard lock(group_.mutex_);
  return {group_.history_.begin(), group_.history_.end()};
}

void Watch::tell(const std::string& how) {
  (void)group_.notes().ask_for<bool>(kPatience, [place = place_, how](c10d::Store& store) {
    store.set(place.differs(), how);
    return true;
  });
}

std::string Watch::differing() {
  return group_.notes().ask_for<std::string>(kPatience, [place = place_, mine = history()](c10d::Store& store) {
    if (store.check({place.differs()})) return store.get_to_str(place.differs());
    return others_say(store, place, mine, 0).differs;
  });
}

// Without a store ranks are not compared. Its server may have ended with rank 0, which the job itself finds out.
void Watch::compare(const OperationWork& oldest) {
  if (answer_.valid()) return;  // the store has not answered yet
  const std::uint64_t sequence = oldest.description().sequence;
  std::vector<Description> history = this->history();
  std::string text = written(oldest.description(), history);
  written_ = sequence;
  answer_ = group_.notes().ask<Found>(
      [place = place_, history = std::move(history), text = std::move(text), sequence](c10d::Store& store) {
        store.set(place.late(place.rank), text);
        return others_say(store, place, history, sequence);
      });
}

// Whether it has ended the group.
bool Watch::take_answer() {
  if (!answer_.valid() || answer_.wait_for(milliseconds(0)) != std::future_status::ready) return false;
  const Found found = std::exchange(answer_, {}).get();
  if (!found.compared) return false;
  missing_ = found.missing;
  if (found.differs.empty()) return false;
  give_up_all(found.differs);
  return true;
}

// Where another rank has called something else at a place of the order. `missing` has not written anything of this
// operation.
Watch::Found Watch::others_say(c10d::Store& store, const Place& place, const std::vector<Description>& mine,
                               std::uint64_t sequence) {
  Found result;
  result.compared = true;
  for (int rank = 0; rank < place.size; ++rank) {
    if (rank == place.rank) continue;
    if (!store.check({place.late(rank)})) {
      result.missing.push_back(rank);
      continue;
    }
    const std::map<std::uint64_t, std::string> theirs = read(store.get_to_str(place.late(rank)));
    if (theirs.find(sequence) == theirs.end()) result.missing.push_back(rank);
    for (const Description& each : mine) {
      const auto found = theirs.find(each.sequence);
      if (found == theirs.end() || found->second == each.text()) continue;
      result.differs = "ranks have called different operations: operation " + std::to_string(each.sequence) +
                       " of process group '" + place.group + "' is " + each.text() + " on rank " +
                       std::to_string(place.rank) + " and " + found->second + " on rank " + std::to_string(rank) +
                       ": let all ranks make the same calls in the same order";
      return result;
    }
  }
  return result;
}

void Watch::give_up_all(const std::string& why) {
  {
    std::lock_guard lock(group_.mutex_);
    if (group_.failure_.empty()) group_.failure_ = why;
  }
  for (const auto& work : group_.under_way()) work->give_up(why);
  group_.end(why);  // no rank that comes late may write into the memory of what was given up
}

void Watch::take_back() {
  if (written_ == 0) return;
  {
    std::lock_guard lock(group_.mutex_);
    if (!group_.failure_.empty()) return;
  }
  written_ = 0;
  group_.notes().post([place = place_](c10d::Store& store) { store.deleteKey(place.late(place.rank)); });
}

}  // namespace tensorlane::torch_backend
